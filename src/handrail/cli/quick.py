"""``handrail run`` on this machine, without a terminal: as little as possible before the start.

Reads the few words that are usual without argparse; whatever else was asked for is left to
``handrail.cli.run``.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from handrail.process.foreground import Foreground

#: As a shell says it.
NOT_EXECUTABLE, NOT_FOUND = 126, 127
OWN_FAILURE = 125
#: How often a sandbox is set up while the file system moves under it.
_MOST_TRIES = 8


class _Asked:
    """The words that were read."""

    __slots__ = ("argv", "sandbox", "timeout")

    def __init__(self, argv: list[str], sandbox: str, timeout: float | None) -> None:
        self.argv = argv
        self.sandbox = sandbox
        self.timeout = timeout


def run(words: Sequence[str]) -> int | None:
    """The exit code, or None when this is not a case for here."""
    asked = _read(words)
    if asked is None or (os.isatty(0) and os.isatty(1)):
        return None
    from handrail.process.foreground import Foreground

    foreground = Foreground()
    if asked.sandbox != "off":
        return _run_contained(foreground, asked)
    try:
        foreground.start(asked.argv, os.environ)
    except OSError as error:
        return _not_started(asked.argv[0], error)
    return foreground.attend(asked.timeout)


def _read(words: Sequence[str]) -> _Asked | None:
    """What was asked for, if it is usual; a word that is not known is somebody else's."""
    timeout: float | None = None
    sandbox = "workspace-write"
    at = 0
    while at < len(words):
        word = words[at]
        name, mark, value = word.partition("=")
        if word == "--":
            rest = list(words[at + 1 :])
            return _Asked(rest, sandbox, timeout) if rest and rest[0] else None
        if name not in ("--sandbox", "--timeout"):
            return None
        if not mark:
            at += 1
            value = words[at] if at < len(words) else ""
        if name == "--sandbox":
            if value not in ("workspace-write", "read-only", "off"):
                return None
            sandbox = value
        else:
            try:
                timeout = float(value)
            except ValueError:
                return None
            if not 0 <= timeout < 10**9:
                return None
        at += 1
    return None


def _run_contained(foreground: Foreground, asked: _Asked) -> int:
    """The same inside a sandbox; 125 when there can be none, for then nothing is run."""
    from handrail.errors import HandrailError
    from handrail.sandbox.profile import Access, Entry, Intent
    from handrail.sandbox.select import Sandbox

    missing = _missing(asked.argv[0])
    if missing is not None:
        return _not_started(asked.argv[0], missing)
    cwd = os.getcwdb()
    env = dict(os.environb)
    entries = [Entry(Access.READ, special="root")]
    temporary = b""
    if asked.sandbox == "workspace-write":
        entries.append(Entry(Access.WRITE, special="project_roots"))
        temporary = _make_temporary()
        entries.append(Entry(Access.WRITE, path=temporary))
        env[b"TMPDIR"] = temporary
    sandbox = Sandbox()
    try:
        profile = sandbox.resolve(Intent(entries=tuple(entries), workspace_roots=(cwd,)), cwd)
        if temporary:  # every name that is protected there would be one more mount
            profile = profile._replace(shared=(*profile.shared, temporary))
        argv = tuple(map(os.fsencode, asked.argv))
        for failures in range(_MOST_TRIES):
            held = sandbox.contain_command(argv, cwd, env, profile, failures)
            foreground.start_held(held.argv, held.env, held.passed, held.inside)
            if held.inside.stands():
                return foreground.attend(asked.timeout)
            # Something that was to be covered has vanished: the command was not run.
            foreground.attend(None)
            os.chdir(cwd)
        raise HandrailError("the sandbox was not set up; start the command again")
    except (HandrailError, OSError) as error:
        print(f"handrail: nothing was run: {error}", file=sys.stderr)
        return OWN_FAILURE
    finally:
        sandbox.close()
        if temporary:
            _remove(temporary)


def _make_temporary() -> bytes:
    """A directory for temporary files, which goes away with the command."""
    base = os.environb.get(b"TMPDIR") or b"/tmp"
    while True:
        path = os.path.realpath(base) + b"/handrail-tmp-" + os.urandom(4).hex().encode()
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            continue
        return path


def _remove(path: bytes) -> None:
    try:
        os.rmdir(path)  # nearly always empty
    except OSError:
        import shutil

        shutil.rmtree(path, ignore_errors=True)


def _missing(program: str) -> OSError | None:
    """Why a program cannot be run, as exec would say it; None for one that is there."""
    import errno

    places = [""] if "/" in program else os.get_exec_path()
    found = False
    for place in places:
        path = os.path.join(place, program)
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                return None
            found = True
    number = errno.EACCES if found else errno.ENOENT
    return OSError(number, os.strerror(number))


def _not_started(program: str, error: OSError) -> int:
    print(f"handrail: cannot run {program}: {error.strerror}", file=sys.stderr)
    return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
