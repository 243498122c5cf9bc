"""``handrail shell``: an interactive shell on this terminal, sandboxed as ``handrail run`` is."""

from __future__ import annotations

import argparse
import os

from handrail.cli import options, run_fast, sandbox_options, terminal, variable_options
from handrail.cli.stdio import say
from handrail.errors import UsageError
from handrail.process.default_shell import default_shell

EXAMPLES = """\
examples:
  handrail shell                     writes here, has no network; Ctrl-D leaves
  handrail shell --read-only         writes nothing
  handrail shell --network --writable .git
  handrail shell --at ssh://box --cwd src
"""
_NETWORKS = {
    None: "no network",
    "off": "no network",
    "open": "the network",
    "managed": "a network of the hosts that are allowed",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Open a sandboxed shell on this terminal. Its commands may touch what those of `handrail"
        " run` with the same options may."
    )
    sandbox_options.add_sandbox(parser)
    options.add_place(parser)
    add = parser.add_argument
    add("--cwd", metavar="DIR", help="the workspace it opens in (default: here)")
    variable_options.add_variables(parser)
    add("--shell", metavar="PROGRAM", help="the shell (default: your login shell on that machine)")


def run(args: argparse.Namespace) -> int:
    """Run the shell; its exit code."""
    if not terminal.is_there():
        args.parser.error("a shell needs a terminal; use `handrail run -- sh -c ...` for a script")
    try:
        sandbox_options.profile(args)
    except UsageError as error:
        args.parser.error(str(error))
    say(f"handrail: a shell {_described(args)}; `exit` or Ctrl-D leaves it")
    plain = args.inherit_env == "all" and not args.secret and args.cwd is None and args.at is None
    if plain and args.network in (None, "open"):
        code = run_fast.run([*_words(args), "--", args.shell or default_shell(os.environ), "-i"])
        if code is not None:
            return code
    return _run_as_command(args)


def _run_as_command(args: argparse.Namespace) -> int:
    """Run it as ``handrail run`` does, with that command's defaults for what it has alone."""
    from handrail.cli.commands import run as command

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    values = (
        vars(parser.parse_args([]))
        | vars(args)
        | {"tty": True, "command": [args.shell or "sh", "-i"]}
    )
    values["default_shell"] = args.shell is None
    values["interactive"] = True
    values["cwd"] = "." if args.cwd is None else args.cwd
    return command.run(argparse.Namespace(**values))


def _words(args: argparse.Namespace) -> list[str]:
    """The options as ``handrail run`` reads them."""
    words = [] if args.sandbox is None else ["--sandbox", args.sandbox]
    words += ["--read-only"] if args.read_only else []
    words += ["--network"] if args.network else []
    for path in args.writable:
        words += ["--writable", path]
    return words


def _described(args: argparse.Namespace) -> str:
    if args.sandbox in ("off", "danger-full-access"):
        return "without a sandbox"
    if args.read_only or args.sandbox == "read-only":
        files = f"writes only {', '.join(args.writable)}" if args.writable else "writes nothing"
    else:
        files = f"writes only below {args.cwd or 'this directory'}"
        files += "".join(f" and {path}" for path in args.writable)
    return f"that {files} and has {_NETWORKS[args.network]}"
