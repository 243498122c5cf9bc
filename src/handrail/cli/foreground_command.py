"""What ``handrail run`` and ``handrail sandbox`` share: options, program look-up and refusals.

No argparse, no event loop, no server: people wait for what is imported here.
"""

from __future__ import annotations

import os

from handrail.exit_codes import OWN_FAILURE, of_unstarted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from handrail.sandbox.choose_sandbox import Sandbox
    from handrail.sandbox.profile import Intent, Profile
    from handrail.start_errors import SpawnFailed

#: Not taken apart when its command has ended: this process ends then.
_lasting: list[Sandbox] = []
GONE = "the current directory is gone; change to another, or give --cwd with an absolute path"


def complain(text: str, mark: str = "handrail: ") -> None:
    """Say it if it can be said: the exit code tells the same."""
    try:
        os.write(2, f"{mark}{harmless(text)}\n".encode("utf-8", "surrogateescape"))
    except OSError:
        pass


def harmless(text: str) -> str:
    """A text for a terminal: a server or a file name may have characters that move the cursor.

    Line ends and tabs stay, and bytes that are no UTF-8, which are names.
    """
    if text.isprintable():
        return text
    return "\r\n".join(map(_escaped, text.split("\r\n")))


def _escaped(text: str) -> str:
    return "".join(
        one
        if one.isprintable() or one in "\n\t" or "\udc80" <= one <= "\udcff"
        else repr(one)[1:-1]
        for one in text
    )


class Usage(Exception):
    """The command line cannot be used."""


class NotRun(Exception):
    """There was no command; ``code`` is what we exit with."""

    def __init__(self, message: str, code: int = OWN_FAILURE) -> None:
        super().__init__(message)
        self.code = code


def read_options(
    words: Sequence[str], valued: Sequence[str], flags: Sequence[str]
) -> tuple[dict[str, list[str]], list[str]]:
    """The options before a command, each with its values, and the command; raises Usage."""
    found: dict[str, list[str]] = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, value = word.partition("=")
        name = "--cwd" if name == "-C" else name
        if name in valued and not equals:
            if not rest:
                raise Usage(f"{name} needs a value; see --help")
            value = rest.pop(0)
        elif name not in valued and word not in flags:
            raise Usage(f"there is no option {word}; see --help")
        found.setdefault(name, []).append(value)
    if not rest or not rest[0]:
        raise Usage("a command is missing; see --help")
    return found, rest


def current_directory() -> str:
    """Where we are; raises NotRun."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise NotRun(GONE) from None


def not_started(program: str, why: OSError | SpawnFailed) -> NotRun:
    """The refusal for a program that exec refuses."""
    from handrail.process.find_program import spawn_failed

    number = why.errno or 0
    return NotRun(str(spawn_failed(os.fsencode(program), number)), of_unstarted(number))


def with_writable(intent: Intent, paths: Sequence[str], cwd: str) -> Intent:
    """The intent with more that may be written; relative paths are below ``cwd``.

    Raises NotRun for one that is missing and that a command could not make either.
    """
    from handrail.sandbox.profile import Access, Entry, within

    if "" in paths:  # of a variable that is not set, perhaps
        raise NotRun("--writable '' is no path; '.' is the working directory")
    more = [os.path.normpath(os.path.join(cwd, path)) for path in paths]
    tops = [os.fsencode(path) for path in more if os.path.exists(path)]
    for entry in intent.entries:
        if entry.access is Access.WRITE:
            tops += intent.workspace_roots if entry.special == "project_roots" else ()
            tops += [b"/"] if entry.special == "root" else [entry.path] if entry.path else ()
    for path in more:
        if not any(within(os.fsencode(path), top) for top in tops):
            raise NotRun(
                f"--writable {path} does not exist, so the command could neither write nor make"
                " it; make it before"
            )
    entries = (Entry(Access.WRITE, path=os.fsencode(path)) for path in more)
    return intent._replace(entries=(*intent.entries, *entries))


def duration(text: str) -> float:
    """Seconds, of a number or a text such as ``5m``; raises ValueError."""
    try:
        return float(text)
    except ValueError:
        from handrail import units  # few write a unit
        from handrail.start_errors import UsageError

        try:
            return units.parse_duration(text)
        except UsageError as error:
            raise ValueError(str(error)) from None


def named_intent(mode: str, roots: tuple[str, ...], *, network: bool) -> Intent | None:
    """A sandbox by its name; None for another name."""
    from handrail.sandbox import profile

    if mode == "read-only":
        return profile.read_only(network=network)
    if mode in ("off", profile.PEERS_OFF):
        return profile.off()
    if mode != "workspace-write":
        return None
    return profile.workspace_write(tuple(map(os.fsencode, roots)), network=network)


def run_sandboxed(
    intent: Intent,
    words: Sequence[str],
    cwd: str,
    timeout: float | None = None,
    *,
    surface: str = "COMMAND_LINE",
) -> int:
    """Run a command sandboxed, to its end; its exit code.

    A command that is to have a directory for temporary files gets a /tmp of its own, which goes
    with it.  Raises NotRun, SandboxError or OSError, and then nothing was run.
    """
    from handrail.cli import foreground_sandbox
    from handrail.process import find_program
    from handrail.sandbox.choose_sandbox import Sandbox
    from handrail.sandbox.sandboxed_command import Command
    from handrail.sandbox.temp_dirs import TempDir
    from handrail.start_errors import SpawnFailed

    argv, where = tuple(map(os.fsencode, words)), os.fsencode(cwd)
    env = dict(os.environb)
    try:
        find_program.check(argv[0], env, where)
    except SpawnFailed as error:
        raise not_started(words[0], error) from None
    own: TempDir | None = None
    sandbox = Sandbox(once=True)
    _lasting.append(sandbox)
    try:
        if intent.wants_tmp:
            try:
                own = TempDir()
            except OSError as error:
                raise NotRun(
                    f"no directory for temporary files can be made ({error.strerror}); set TMPDIR"
                ) from None
            intent = intent._replace(private_tmp=own.path)
            env[b"TMPDIR"] = b"/tmp"
            if b"/tmp" in env.get(b"PATH", b""):  # programs there are not shown
                _check_shown(sandbox.resolve(intent, where), argv[0], env, where)
        return foreground_sandbox.run(
            sandbox, intent, Command(argv, where, env), timeout=timeout, own=own, surface=surface
        )
    finally:
        # The sandbox itself is not closed: nothing runs in it any more, and this process ends.
        if own is not None:
            own.remove()


def _check_shown(profile: Profile, program: bytes, env: dict[bytes, bytes], cwd: bytes) -> None:
    """Raises NotRun for a program that the sandbox does not show."""
    from handrail.sandbox.private_tmp import check_program
    from handrail.start_errors import SpawnFailed

    try:
        check_program(profile, program, env, cwd)
    except SpawnFailed as error:
        raise NotRun(str(error), of_unstarted(error.errno)) from None


def check_root(mode: str, cwd: str) -> None:
    """Raises NotRun where a workspace that may be written would be the whole machine."""
    if mode == "workspace-write" and os.path.realpath(cwd) == "/":
        from handrail.sandbox.profile import AT_ROOT

        raise NotRun(AT_ROOT)
