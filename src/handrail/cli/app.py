"""The commands of ``handrail`` and how they are found."""

from __future__ import annotations

import argparse
import sys

from handrail.cli import serve, upgrade
from handrail.version import __version__


def main(argv: list[str] | None = None) -> int:
    """Run one command; its exit code (2 for a usage error, by argparse)."""
    parser = argparse.ArgumentParser(
        prog="handrail",
        description="Hands for agents, and the rail beside them.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"handrail {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    serve.add_parser(commands)
    upgrade.add_parser(commands)
    args = parser.parse_args(sys.argv[1:] if argv is None else argv)
    code: int = args.run(args)
    return code
