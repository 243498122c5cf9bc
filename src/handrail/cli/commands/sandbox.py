"""``handrail sandbox``: one command, contained, with nothing of ours left behind.

No argparse, no event loop, no server: what is imported here is what people wait for.
"""

from __future__ import annotations

import os

from handrail import compiled
from handrail.cli.stderr import complain
from handrail.credentials import forget_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from handrail.sandbox.profile import Intent

#: The sandbox's own failures, apart from the command's: as timeout, env and their like have it.
FAILED, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127

USAGE = """\
usage: handrail sandbox [OPTIONS] [--] COMMAND [ARGUMENT...]

Run one command with no more than a profile allows; its exit code is passed on.

options:
  --profile P        workspace-write (default), read-only, danger-full-access, or permissions as
                     JSON ('{"type": "managed", ...}'), or @FILE with such JSON
  --root DIR         a project root, may be given again (default: the current directory)
  --writable DIR     one more directory that may be written, may be given again
  --network          leave the network open
  -C, --cwd DIR      where the command starts (default: the current directory)
  --json             collect its output, and print it with the exit code as JSON
  -h, --help         show this
"""


class Usage(Exception):
    """What was typed makes no sense."""


class NotRun(Exception):
    """There was no command; ``code`` is what we exit with."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


class Options:
    """What was typed."""

    def __init__(self, words: list[str]) -> None:
        self.profile = "workspace-write"
        self.roots: list[str] = []
        self.writable: list[str] = []
        self.network = False
        self.json = False
        self.cwd = ""
        self.command: list[str] = []
        rest = list(words)
        while rest and rest[0].startswith("-"):
            word = rest.pop(0)
            if word == "--":
                break
            if word in ("--network", "--json"):
                setattr(self, word[2:], True)
                continue
            name, equals, value = word.partition("=")
            if name not in ("--profile", "--root", "--writable", "--cwd", "-C"):
                raise Usage(f"there is no option {word}; see handrail sandbox --help")
            if not equals:
                if not rest:
                    raise Usage(f"{name} needs a value; see handrail sandbox --help")
                value = rest.pop(0)
            self._set(name, value)
        self.command = rest
        if not rest:
            raise Usage("a command is missing; see handrail sandbox --help")

    def _set(self, name: str, value: str) -> None:
        if name == "--profile":
            self.profile = value
        elif name == "--root":
            self.roots.append(value)
        elif name == "--writable":
            self.writable.append(value)
        else:
            self.cwd = value


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
        compiled.make()
        # Nothing is left to be done, and taking an interpreter down takes a while.
        os._exit(code)
    except (Usage, NotRun, HandrailError) as error:
        if isinstance(error, Usage) and "--json" in words:
            from handrail.cli import stdio

            stdio.take_over()
            print(_as_json(error))
            return stdio.settle(_code(error))
        complain(str(error), "handrail sandbox: ")
        return _code(error)


def _code(error: Exception) -> int:
    if isinstance(error, Usage):
        return 2
    return error.code if isinstance(error, NotRun) else FAILED


def _as_json(error: Exception) -> str:
    from handrail.cli import error_output

    return error_output.as_json(error, _code(error))


def _begin(options: Options) -> int:
    try:
        cwd = os.path.abspath(options.cwd) if options.cwd else os.getcwd()
        options.roots = [os.path.abspath(path) for path in options.roots]
        options.writable = [os.path.abspath(path) for path in options.writable]
    except FileNotFoundError:  # nothing can be relative to it
        raise NotRun(
            "the current directory is gone; change to another, or give --cwd with an absolute path"
        ) from None
    forget_variables()  # for servers far away, and for no command
    return _run(options, cwd)


def _run(options: Options, cwd: str) -> int:
    from handrail.errors import SandboxUnavailable
    from handrail.sandbox.sandbox import Sandbox

    if not os.path.isdir(cwd):
        raise NotRun(f"{cwd} is no directory; give another --cwd")
    program = options.command[0]
    code = _lookup(program, cwd)
    if code:
        why = "cannot be run" if code == NOT_EXECUTABLE else "was not found"
        raise NotRun(f"{program} {why}", code)
    sandbox = Sandbox()
    intent = _intent(options, cwd)
    profile = sandbox.resolve(intent, os.fsencode(cwd))
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2:
            try:
                os.set_inheritable(fd, False)  # whatever we were given is not for the command
            except OSError:
                pass  # the one that was reading the list
    if not profile.confined:
        os.chdir(cwd)
        os.execvpe(program, options.command, os.environ)
    words = tuple(map(os.fsencode, options.command))
    where, env = os.fsencode(cwd), dict(os.environb)
    try:
        sandbox.sweep()
    except SandboxUnavailable as why:
        from handrail.cli import foreground_landlock  # machines without user namespaces

        return foreground_landlock.run(words, where, env, profile, why)
    from handrail.cli import foreground_sandbox

    own = foreground_sandbox.private_tmp() if intent.wants_tmp else None
    try:
        if own is not None:
            profile = sandbox.resolve(intent._replace(private_tmp=own.path), where)
        return foreground_sandbox.run(sandbox, profile, words, where, env, own=own)
    finally:
        if own is not None:
            own.remove()


def _lookup(program: str, cwd: str) -> int:
    """0, or the exit code for a program that cannot be there inside either."""
    if "/" in program:
        path = os.path.join(cwd, program)
        if not os.path.lexists(path):
            return NOT_FOUND
        return 0 if os.access(path, os.X_OK) and not os.path.isdir(path) else NOT_EXECUTABLE
    for place in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if os.access(os.path.join(cwd, place, program), os.X_OK):
            return 0
    return NOT_FOUND


def _intent(options: Options, cwd: str) -> Intent:
    from handrail.sandbox import profile

    if options.profile == "workspace-write" and not options.roots and os.path.realpath(cwd) == "/":
        raise NotRun(
            "a workspace at / that may be written holds nothing back; change to a directory, or say"
            " --root / if that is meant"
        )
    roots = tuple(os.fsencode(root) for root in options.roots or [cwd])
    extra = tuple(
        profile.Entry(profile.Access.WRITE, path=os.fsencode(path)) for path in options.writable
    )
    if options.profile == "workspace-write":
        intent = profile.workspace_write(roots, network=options.network)
    elif options.profile == "read-only":
        intent = profile.read_only(network=options.network)
    elif options.profile == "danger-full-access":
        intent = profile.off()
    else:
        from handrail.cli.profile_option import read_permissions

        intent = read_permissions(options.profile)
        if options.network:
            intent = intent._replace(network=True)
    return intent._replace(entries=intent.entries + extra, workspace_roots=roots)


def add_parser(commands: Any) -> None:
    """Describe the command for ``handrail --help``; ``main`` reads its words by itself."""
    parser = commands.add_parser(
        "sandbox", help="run one command contained", add_help=False, allow_abbrev=False
    )
    for line in USAGE.splitlines():  # for completions
        if line.startswith("  -"):
            names = [word.split()[0] for word in line[:21].split(",")]
            parser.add_argument(*names, help=line[21:])
    parser.add_argument("words", nargs="...")
    parser.set_defaults(run=lambda args: main(args.words))
