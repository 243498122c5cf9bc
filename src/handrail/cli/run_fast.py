"""``handrail run`` on this machine: as little as possible before the start.

Reads the few words that are usual without argparse; whatever else was asked for is left to
``handrail.cli.commands.run``.
"""

from __future__ import annotations

import os

from handrail.cli.stderr import complain
from handrail.credentials import forget_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: As a shell says it.
NOT_EXECUTABLE, NOT_FOUND = 126, 127
OWN_FAILURE = 125


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
    if asked is None:
        return None
    forget_variables()  # for servers far away, and for no command
    if asked.sandbox != "off":
        return _run_contained(asked)
    from handrail.process.foreground.crash_guard import CrashGuard, end_family
    from handrail.process.foreground.run import Foreground, own_terminal

    foreground = Foreground(own_terminal())
    try:
        foreground.start(asked.argv, os.environ)
    except OSError as error:
        return _not_started(asked.argv[0], error)
    guard = CrashGuard(lambda: end_family(foreground.pid), terminal=foreground.terminal)
    foreground.stranger = guard.pid
    try:
        return foreground.attend(asked.timeout)
    finally:
        guard.dismiss()


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


def _run_contained(asked: _Asked) -> int:
    """The same inside a sandbox; 125 when there can be none, for then nothing is run."""
    from handrail.cli import foreground_sandbox
    from handrail.errors import HandrailError
    from handrail.sandbox.profile import Access, Entry, Intent
    from handrail.sandbox.sandbox import Sandbox
    from handrail.sandbox.temp_dirs import TempDir

    missing = _missing(asked.argv[0])
    if missing is not None:
        return _not_started(asked.argv[0], missing)
    try:
        cwd = os.getcwdb()
    except FileNotFoundError:
        complain("nothing was run: the current directory is gone; change to another")
        return OWN_FAILURE
    if asked.sandbox == "workspace-write" and os.path.realpath(cwd) == b"/":
        complain(
            "nothing was run: a workspace at / that may be written holds nothing back; change to a"
            " directory, or give --sandbox off or read-only"
        )
        return OWN_FAILURE
    env = dict(os.environb)
    entries = [Entry(Access.READ, special="root")]
    own: TempDir | None = None
    sandbox = Sandbox()
    try:
        if asked.sandbox == "workspace-write":
            own = TempDir()
            entries.append(Entry(Access.WRITE, special="project_roots"))
            env[b"TMPDIR"] = b"/tmp"
        private_tmp = None if own is None else own.path
        intent = Intent(entries=tuple(entries), workspace_roots=(cwd,), private_tmp=private_tmp)
        profile = sandbox.resolve(intent, cwd)
        argv = tuple(map(os.fsencode, asked.argv))
        return foreground_sandbox.run(
            sandbox, profile, argv, cwd, env, timeout=asked.timeout, own=own
        )
    except (HandrailError, OSError) as error:
        complain(f"nothing was run: {error}")
        return OWN_FAILURE
    finally:
        sandbox.close()
        if own is not None:
            own.remove()


def _missing(program: str) -> OSError | None:
    """Why a program cannot be run, as exec would say it; None for one that is there."""
    import errno

    # Not os.get_exec_path, which imports warnings.
    given = os.environ.get("PATH", os.defpath)
    places = [""] if "/" in program else given.split(os.pathsep)
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
    complain(f"cannot run {program}: {error.strerror}")
    return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
