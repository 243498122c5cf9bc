"""``handrail sandbox``: one command, sandboxed, with nothing of ours left behind."""

from __future__ import annotations

import os

from handrail.cli import foreground_command
from handrail.credentials import forget_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import NoReturn

    from handrail.sandbox.profile import Intent

USAGE = """\
usage: handrail sandbox [OPTIONS] [--] COMMAND [ARGUMENT...]

Run one command with no more than a profile allows; its exit code is passed on.

options:
  --profile P        workspace-write (default), read-only, off, or permissions as JSON
                     ('{"type": "managed", ...}'), or @FILE with such JSON
  --root DIR         a project root, may be given again (default: the current directory)
  --writable DIR     one more directory that may be written, may be given again
  --network          leave the network open
  -C, --cwd DIR      where the command starts (default: the current directory)
  --json             collect its output, and print it with the exit code as JSON
  -h, --help         show this
"""


class Options:
    """What was typed."""

    def __init__(self, words: list[str]) -> None:
        valued, flags = ("--profile", "--root", "--writable", "--cwd"), ("--network", "--json")
        given, self.command = foreground_command.read_options(words, valued, flags)
        self.profile = given.get("--profile", ["workspace-write"])[-1]
        self.roots = given.get("--root", [])
        self.writable = given.get("--writable", [])
        self.network = "--network" in given
        self.json = "--json" in given
        self.cwd = given.get("--cwd", [""])[-1]


def main(words: list[str]) -> int:
    """Run the command; its exit code, or one of ours."""
    if words[:1] in (["-h"], ["--help"]):
        from handrail.cli import stdio

        stdio.take_over()
        print(USAGE, end="")
        return stdio.settle(0)
    from handrail.errors import HandrailError

    try:
        options = Options(words)
        if options.json:
            from handrail.cli import sandbox_json

            return sandbox_json.run(options.command, lambda: _begin(options), _as_json)
        code = _begin(options)
        # Nothing is left to be done, and taking an interpreter down takes a while.
        os._exit(code)
    except (foreground_command.Usage, foreground_command.NotRun, HandrailError) as error:
        if isinstance(error, foreground_command.Usage) and "--json" in words:
            from handrail.cli import stdio

            stdio.take_over()
            print(_as_json(error))
            return stdio.settle(_code(error))
        foreground_command.complain(str(error), "handrail sandbox: ")
        return _code(error)


def _code(error: Exception) -> int:
    if isinstance(error, foreground_command.Usage):
        return 2
    return error.code if isinstance(error, foreground_command.NotRun) else foreground_command.FAILED


def _as_json(error: Exception) -> str:
    from handrail.cli import error_output

    return error_output.as_json(error, _code(error))


def _begin(options: Options) -> int:
    if not options.cwd or not all(
        path.startswith("/") for path in (options.cwd, *options.roots, *options.writable)
    ):
        here = foreground_command.current_directory()
        options.cwd = os.path.join(here, options.cwd)
        options.roots = [os.path.join(here, path) for path in options.roots]
        options.writable = [os.path.join(here, path) for path in options.writable]
    cwd = os.path.normpath(options.cwd)
    if not os.path.isdir(cwd):
        raise foreground_command.NotRun(f"{cwd} is no directory; give another --cwd")
    forget_variables()  # for servers far away, and for no command
    intent = _intent(options, cwd)
    if intent.is_off:
        _become(options.command, cwd)
    return foreground_command.run_sandboxed(intent, options.command, cwd)


def _become(command: list[str], cwd: str) -> NoReturn:
    """Run it without a sandbox; raises NotRun."""
    from handrail.process.foreground.run import keep_to_ourselves

    keep_to_ourselves()
    try:
        os.chdir(cwd)
        os.execvpe(command[0], command, os.environ)
    except OSError as error:
        raise foreground_command.not_started(command[0], error) from None


def _intent(options: Options, cwd: str) -> Intent:
    from handrail.sandbox import profile

    if not options.roots:  # --root / says that it is meant
        foreground_command.check_root(options.profile, cwd)
    roots = tuple(options.roots or [cwd])
    extra = tuple(
        profile.Entry(profile.Access.WRITE, path=os.fsencode(path)) for path in options.writable
    )
    intent = foreground_command.named_intent(options.profile, roots, network=options.network)
    if intent is None:
        from handrail.cli.profile_option import read_permissions

        intent = read_permissions(options.profile)
        if options.network:
            intent = intent._replace(network=True)
    return intent._replace(
        entries=intent.entries + extra, workspace_roots=tuple(map(os.fsencode, roots))
    )


def add_arguments(parser: ArgumentParser) -> None:
    """Describe the options for completions; ``main`` reads its words by itself."""
    for line in USAGE.splitlines():
        if line.startswith("  -") and "--help" not in line:
            names = [word.split()[0] for word in line[:21].split(",")]
            parser.add_argument(*names, help=line[21:])
    parser.add_argument("words", nargs="...")


def run(args: Namespace) -> int:
    """Run the command whose words argparse has left alone."""
    return main(args.words)
