"""The table of ``handrail`` commands, and the dispatch to one of them.

A command's module is imported when that command is run; all of them only to print the list.
``run`` and ``sandbox`` bypass argparse: users notice their start-up time.
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
    "run": "handrail.cli.commands.run",
    "ps": "handrail.cli.commands.ps",
    "attach": "handrail.cli.commands.attach",
    "logs": "handrail.cli.commands.logs",
    "kill": "handrail.cli.commands.kill",
    "cp": "handrail.cli.commands.cp",
    "sandbox": "handrail.cli.commands.sandbox",
    "doctor": "handrail.cli.commands.doctor",
    "serve": "handrail.cli.commands.serve",
    "upgrade": "handrail.cli.commands.upgrade",
    "mcp": "handrail.cli.commands.mcp",
    "policy": "handrail.cli.commands.policy",
    "apply-patch": "handrail.cli.commands.apply_patch",
    "proxy": "handrail.cli.commands.proxy",
    "completion": "handrail.cli.commands.completion",
}

#: The exit code of a shell for a command that Ctrl-C ended.
INTERRUPTED = 130


def program() -> int:
    """The program: run one command, and print a sentence for every expected failure."""
    words = sys.argv[1:]
    if words[:1] in (["sandbox"], ["run"]):
        gc.disable()  # nothing that is imported before the command starts is garbage
    if words[:1] == ["sandbox"]:  # bypasses argparse for start-up time
        from handrail.cli.commands import sandbox

        return sandbox.main(words[1:])
    if words[:1] == ["run"]:
        from handrail.cli import run_fast

        code = run_fast.run(words[1:])
        if code is not None:
            # Nothing is left to do, and taking down an interpreter takes a while.
            os._exit(code)
        gc.enable()
    return _ordinary(words)


def _ordinary(words: list[str]) -> int:
    from handrail.cli import error_output, stdio

    stdio.take_over()
    try:
        code = main(words)
    except SystemExit as end:  # argparse, which has printed why
        code = end.code if isinstance(end.code, int) else 1
    except stdio.OutputFailed as error:
        code = stdio.failed(error)
    except OSError as error:  # of the machine: no space, no permission, no such file
        code = error_output.tell(error, stdio.OWN_FAILURE)
    except KeyboardInterrupt:
        code = INTERRUPTED
        if error_output.wanted_as_json():
            error_output.tell(error_output.Interrupted(code - 128), code)
    return stdio.settle(code)


def main(words: list[str]) -> int:
    """Run one command by argparse; its exit code.  Raises SystemExit(2) for a usage error."""
    from handrail.cli import error_output

    error_output.use_json(error_output.asks_for_json(words))
    args = build_parser(words[0] if words else None).parse_args(words)
    error_output.use_json(getattr(args, "json", False))
    code: int = args.run(args)
    return code


def build_parser(wanted: str | None = None) -> ArgumentParser:
    """The parser of all commands, or of one if only that is needed."""
    from importlib import import_module

    from handrail.cli.error_output import Parser
    from handrail.version import __version__

    parser = Parser(
        prog="handrail",
        description="Run commands for AI agents: sandboxed, under policy, local or remote.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"handrail {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        if wanted not in COMMANDS or name == wanted:
            import_module(module).add_parser(commands)
    return parser
