"""``handrail policy``: check a command against rules files, and lint them.

``check`` prints the peer's JSON and, like it, exits with 0 whatever the rules say; ``--explain``
and ``--exit-code`` are for people and for CI.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from handrail.cli import error_output, options
from handrail.cli.stdio import say
from handrail.errors import PolicyError
from handrail.sandbox.profile import PEERS_OFF

if TYPE_CHECKING:
    from handrail.policy.check import CheckResult
    from handrail.policy.context import Situation

_APPROVALS = ("untrusted", "on-failure", "on-request", "never")
_SANDBOXES = ("read-only", "workspace-write", "off", PEERS_OFF)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its sub-commands."""
    parser.description = "Check a command against rules files, or check the files themselves."
    own = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_check(own)
    _add_lint(own)


def _add_check(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "check",
        help="say what rules files decide about a command",
        description="Print as JSON which rules match a command, and what they decide.",
        epilog="Exit codes: 0 answered, 1 a rules file cannot be used, 2 wrong usage. With"
        " --explain or --exit-code: 0 allow, 3 ask, 4 forbid; 5 no rule matches (--exit-code).",
        allow_abbrev=False,
    )
    add = parser.add_argument
    text = "a rules file or a directory, may be repeated (default: yours and the system's)"
    add("-r", "--rules", metavar="PATH", action="append", help=text)
    add(
        "--resolve-host-executables",
        action="store_true",
        help="apply a rule for a program's name to its paths too (host_executable)",
    )
    add("--pretty", action="store_true", help="JSON over several lines")
    add("--json", action="store_true", help="print errors as JSON too")
    add(
        "--shell",
        action="store_true",
        help="judge every command of a shell script; a single argument is the script",
    )
    add("--explain", action="store_true", help="say in words what would happen, and by which rule")
    add("--exit-code", action="store_true", help="return the decision as the exit code")
    add(
        "--approval",
        choices=_APPROVALS,
        default="on-request",
        help="with --explain: the approval policy (default: %(default)s)",
    )
    add(
        "--sandbox",
        choices=_SANDBOXES,
        default="workspace-write",
        help="with --explain: the sandbox mode (default: %(default)s)",
    )
    add("command", metavar="COMMAND", nargs=argparse.REMAINDER, help="with its arguments")
    parser.set_defaults(run_below=run_check, parser=parser)


def _add_lint(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "lint",
        help="find mistakes in rules files",
        description="Find mistakes in rules files and in directories of them, in the order given.",
        epilog="Exit codes: 0 they can be used, 1 they cannot (with --strict: there are remarks),"
        " 2 wrong usage.",
        allow_abbrev=False,
    )
    parser.add_argument("--strict", action="store_true", help="count warnings as errors")
    options.add_json(parser)
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a rules file or a directory")
    parser.set_defaults(run_below=run_lint, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Run the sub-command."""
    code: int = args.run_below(args)
    return code


def run_check(args: argparse.Namespace) -> int:
    """Check one command."""
    from handrail.policy.check import check
    from handrail.policy.load import working_directory

    command: list[str] = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        args.parser.error("the following arguments are required: COMMAND")
    if args.json and args.explain:
        args.parser.error("--explain is for people; leave it out with --json")
    if args.shell and len(command) == 1:
        command = ["/bin/bash", "-c", command[0]]
    result = check(
        args.rules,
        command,
        cwd=working_directory(),
        home=os.path.expanduser("~"),
        resolve_host_executables=args.resolve_host_executables,
        pretty=args.pretty,
        shell=args.shell,
        explain=_situation(args) if args.explain else None,
        exit_code=args.exit_code,
    )
    return _say(result)


def _situation(args: argparse.Namespace) -> Situation:
    from handrail.policy.context import Approval, Lookup, Situation
    from handrail.policy.load import working_directory

    cwd = working_directory()
    return Situation(
        cwd=cwd,
        approval=Approval(args.approval),
        restricted=args.sandbox not in ("off", PEERS_OFF),
        writable_roots=() if args.sandbox == "read-only" else (cwd, "/tmp"),  # noqa: S108
        lookup=Lookup(os.environ),
    )


def _say(result: CheckResult) -> int:
    for text in result.left_out:
        say(text)
    sys.stdout.write(result.output)
    if result.error:
        error_output.tell(PolicyError(result.error.rstrip("\n")), result.exit_code, "")
    return result.exit_code


def run_lint(args: argparse.Namespace) -> int:
    """Lint the files."""
    from handrail.policy.language import RulesFileError
    from handrail.policy.lint import lint
    from handrail.policy.load import rules_files

    paths: list[str] = []
    try:
        for path in args.paths:
            paths += rules_files(path) if os.path.isdir(path) else [path]
    except RulesFileError as error:
        return error_output.tell(error, 1, "")
    result = lint(paths)
    if args.json:
        options.print_json(
            {
                "errors": result.errors,
                "warnings": len(result.remarks) - result.errors,
                "remarks": [
                    {
                        "severity": remark.severity.value,
                        "source": str(remark.source),
                        "text": remark.text,
                    }
                    for remark in result.remarks
                ],
            }
        )
    else:
        sys.stdout.write(result.text())
    return result.exit_code(strict=args.strict)
