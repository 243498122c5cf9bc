"""The commands of ``handrail`` and how they are found."""

from __future__ import annotations

import sys


def main(argv: list[str] | None = None) -> int:
    """Run one command; its exit code (2 for a usage error, by argparse)."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["sandbox"]:  # around argparse: its start is what people wait for
        from handrail.cli import sandbox

        return sandbox.main(words[1:])
    import argparse

    from handrail.cli import doctor, sandbox, serve
    from handrail.version import __version__

    parser = argparse.ArgumentParser(
        prog="handrail",
        description="Hands for agents, and the rail beside them.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"handrail {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    serve.add_parser(commands)
    sandbox.add_parser(commands)
    doctor.add_parser(commands)
    args = parser.parse_args(words)
    code: int = args.run(args)
    return code
