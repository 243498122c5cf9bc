"""The table of ``handrail`` commands, and the dispatch to one of them.

A command's module is imported when that command is run; all of them only for completions.
``run`` and ``sandbox`` bypass argparse: users notice their start-up time.
"""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Container, Iterable

#: Name -> its line of help, in their order.  The module has ``add_arguments`` and ``run``.
COMMANDS = {
    "run": "run a command in a sandbox, here or on another machine",
    "shell": "open a sandboxed shell on this terminal",
    "ps": "list detached processes",
    "attach": "attach to a detached process",
    "logs": "print the output of a detached process",
    "wait": "wait for the end of a detached process",
    "exec": "run another command in a detached workspace",
    "kill": "end a detached process",
    "prune": "remove stored results and rows of dead servers",
    "cp": "copy files to or from another machine",
    "sandbox": "run one command sandboxed",
    "doctor": "say what this machine can enforce, and how to fix the rest",
    "serve": "run the exec-server",
    "servers": "list the servers of this user",
    "stop": "stop the server that run --detach has started",
    "upgrade": "replace a running server without ending its processes",
    "fleet": "run tasks in workspaces on many machines",
    "mcp": "give an MCP host tools to run commands",
    "policy": "check a command against rules files, or lint them",
    "network": "check a connection against a managed network",
    "apply-patch": "apply a patch to the files in this directory",
    "proxy": "connect stdin and stdout to this user's server",
    "completion": "print completions for a shell",
}


#: What may be there instead of a command.
_WITHOUT_COMMAND = ("-h", "--help", "--version")


def program() -> int:
    """The program: run one command, and print a sentence for every expected failure."""
    words = sys.argv[1:]
    if words[:1] == ["sandbox"]:  # bypasses argparse for start-up time
        from handrail.cli.commands import sandbox

        return sandbox.main(words[1:])
    if words[:1] == ["run"]:
        from handrail.cli import run_fast

        code = run_fast.run(words[1:])
        start_bundle = sys.modules.get("handrail.start_bundle")
        if code is not None:
            if start_bundle is not None:
                start_bundle.make()
            # Nothing is left to do, and taking down an interpreter takes a while.
            os._exit(code)
        if start_bundle is not None:
            start_bundle.noted()
        gc.enable()
    return _ordinary(words)


def _ordinary(words: list[str]) -> int:
    from handrail.cli import error_output, stdio
    from handrail.exit_codes import INTERRUPTED, OWN_FAILURE

    stdio.take_over()
    try:
        code = main(words)
    except SystemExit as end:  # argparse, which has printed why
        code = end.code if isinstance(end.code, int) else 1
    except stdio.OutputFailed as error:
        code = stdio.failed(error)
    except OSError as error:  # of the machine: no space, no permission, no such file
        code = error_output.tell(error, OWN_FAILURE)
    except KeyboardInterrupt:
        code = INTERRUPTED
        if error_output.wanted_as_json():
            error_output.tell(error_output.Interrupted(code - 128), code)
    return stdio.settle(code)


def main(words: list[str]) -> int:
    """Run one command by argparse; its exit code.  Raises SystemExit(2) for a usage error."""
    from handrail.cli import error_output

    error_output.use_json(error_output.asks_for_json(words))
    shown = words[:1] if words and words[0] in COMMANDS else COMMANDS
    parser = build_parser(shown, filled=words)
    if words and words[0].startswith("-") and words[0] not in _WITHOUT_COMMAND:
        text = "options go behind the command, as in `handrail run --timeout 5m -- make`"
        parser.error(f"{words[0]} is before the command; {text}")
    args = parser.parse_args(words)
    error_output.use_json(getattr(args, "json", False))
    code: int = args.run(args)
    return code


def build_parser(shown: Iterable[str], filled: Container[str]) -> ArgumentParser:
    """The parser with the commands ``shown``; those in ``filled`` have their arguments too."""
    from argparse import RawDescriptionHelpFormatter
    from importlib import import_module

    from handrail.cli.error_output import Parser
    from handrail.version import __version__

    parser = Parser(
        prog="handrail",
        description="Run commands for AI agents: sandboxed, under policy, local or remote.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"handrail {__version__}")
    # With its name given, argparse formats no usage to find it out, and imports nothing for that.
    commands = parser.add_subparsers(metavar="COMMAND", required=True, prog="handrail")
    for name in shown:
        command = commands.add_parser(name, help=COMMANDS[name], allow_abbrev=False)
        if name in filled:
            module = import_module(f"handrail.cli.commands.{name.replace('-', '_')}")
            module.add_arguments(command)
            if hasattr(module, "EXAMPLES"):
                command.formatter_class = RawDescriptionHelpFormatter
                command.epilog = module.EXAMPLES
            command.set_defaults(run=module.run, parser=command)
    return parser
