"""The commands of ``handrail`` and how they are found.

A command's module is imported when it is the one that was asked for; all of them only to print
the list.  ``run`` and ``sandbox`` go around argparse: their start is what people feel.
"""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False

if TYPE_CHECKING:
    from argparse import ArgumentParser

#: Name -> module with ``add_parser``, in the order of the help.
COMMANDS = {
    "run": "handrail.cli.run",
    "ps": "handrail.cli.list",
    "attach": "handrail.cli.attach",
    "logs": "handrail.cli.logs",
    "kill": "handrail.cli.kill",
    "cp": "handrail.cli.copy",
    "sandbox": "handrail.cli.sandbox",
    "doctor": "handrail.cli.doctor",
    "serve": "handrail.cli.serve",
    "upgrade": "handrail.cli.upgrade",
    "mcp": "handrail.cli.mcp",
    "policy": "handrail.cli.policy",
    "apply-patch": "handrail.cli.patch",
    "proxy": "handrail.cli.proxy",
    "completion": "handrail.cli.completion",
}


def main(argv: list[str] | None = None) -> int:
    """Run one command; its exit code (2 for a usage error, by argparse)."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] in (["sandbox"], ["run"]):
        gc.disable()  # nothing of what is imported before the command starts is garbage
    if words[:1] == ["sandbox"]:  # around argparse: its start is what people wait for
        from handrail.cli import sandbox

        return sandbox.main(words[1:])
    if words[:1] == ["run"]:
        from handrail.cli import quick

        code = quick.run(words[1:])
        if code is not None:
            # Nothing is left to be done, and taking an interpreter down takes a while.
            sys.stderr.flush()
            os._exit(code)
        gc.enable()
    args = build_parser(words[0] if words else None).parse_args(words)
    done: int = args.run(args)
    return done


def build_parser(wanted: str | None = None) -> ArgumentParser:
    """The parser of everything, or of one command if that is all that is wanted."""
    import argparse
    from importlib import import_module

    from handrail.version import __version__

    parser = argparse.ArgumentParser(
        prog="handrail",
        description="Hands for agents, and the rail beside them.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"handrail {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        if wanted not in COMMANDS or name == wanted:
            import_module(module).add_parser(commands)
    return parser
