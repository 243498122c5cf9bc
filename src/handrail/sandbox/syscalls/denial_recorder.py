"""Record what a sandboxed command tries to change and may not.

Evidence, never enforcement: each call goes ahead at once, and is recorded when the profile says
that it cannot succeed.  The arguments are read from the command's own memory, which it may change
meanwhile.  Off by default: each call costs two context switches (``supervisor.py``).
"""

from __future__ import annotations

import ctypes
import os
import platform
import stat
from collections.abc import Callable
from typing import NamedTuple

from handrail.sandbox.denial import Denial
from handrail.sandbox.plan.plan import Plan
from handrail.sandbox.profile import Access, within
from handrail.sandbox.syscalls import mutating_calls, notify

_MOST_PIDS = 4096

#: Paths that hold no user files.
_PLUMBING = (b"/dev/", b"/proc/", b"/newroot/", b"/oldroot/")


class _Attempt(NamedTuple):
    op: str
    sort: str  # as in the table of mutating_calls
    flags: int
    target: bytes


class DenialRecorder:
    """Turns the reported calls of one command into denials."""

    def __init__(self, may_write: Callable[[bytes], bool]) -> None:
        """``may_write`` answers for the profile."""
        self._may_write = may_write
        self._calls = mutating_calls.calls_of(platform.machine())
        self._commands: set[int] = set()  # pids that have left the set-up of the sandbox

    def see(self, listener: int, notice: notify.Notification) -> list[Denial]:
        """Read what the command is about to do, let it go on, then judge it.

        Judging comes last because the command waits meanwhile.  A call that will be refused changes
        nothing, so the file system still looks the same.
        """
        known = self._calls.get(notice.call)
        tried: list[_Attempt] = []
        try:
            if known is not None and self._is_command(notice.pid):
                tried = _read(notice.pid, known, notice.arguments)
        except OSError:
            pass  # the process exited or cannot be read: no evidence
        if not notify.go_on(listener, notice):
            return []  # the pid was reused: what was read is not the caller's
        return [denial for attempt in tried if (denial := self._judge(attempt)) is not None]

    def _is_command(self, pid: int) -> bool:
        """Whether this is the command: at first bwrap itself makes calls, to set the sandbox up."""
        if pid not in self._commands:
            program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
            if program in ("bwrap", "bwrap (deleted)"):
                return False
            if len(self._commands) >= _MOST_PIDS:
                self._commands.clear()
            self._commands.add(pid)
        return True

    def _judge(self, attempt: _Attempt) -> Denial | None:
        op, sort, flags, raw = attempt
        path = _host_path(raw, follow=sort == "open" and not flags & os.O_NOFOLLOW)
        if path is None or path.startswith(_PLUMBING) or self._may_write(path):
            return None
        if mutating_calls.fails_first(sort, flags, os.path.lexists(path)):
            return None
        return Denial("file", op, path.decode("utf-8", "replace"), "notify", certain=True)


def watch_plan(plan: Plan) -> DenialRecorder:
    """Make a recorder for a command that runs with this plan."""
    rules, masks = dict(plan.rules), plan.masks

    def may_write(path: bytes) -> bool:
        if any(within(path, mask.path) for mask in masks):
            return False
        while path not in rules and path != b"/":
            path = os.path.dirname(path)
        return rules.get(path) is Access.WRITE

    return DenialRecorder(may_write)


def _read(
    pid: int, call: mutating_calls.MutatingCall, arguments: tuple[int, ...]
) -> list[_Attempt]:
    flags = 0
    if call.flags is not None:
        flags = arguments[call.flags] & 0xFFFFFFFF
    found = []
    for number, (directory, argument) in enumerate(call.paths):
        path = notify.text_at(pid, arguments[argument])
        if not path:
            continue
        if not path.startswith(b"/"):
            base = None if directory is None else ctypes.c_int(arguments[directory]).value
            where = b"cwd" if base in (None, mutating_calls.AT_FDCWD) else b"fd/%d" % (base or 0)
            path = os.readlink(b"/proc/%d/%b" % (pid, where)) + b"/" + path
        sort = call.sort if call.sort != "move" else ("change", "put")[number]
        found.append(_Attempt(call.name, sort, flags, path))
    return found


def _host_path(name: bytes, *, follow: bool) -> bytes | None:
    """Resolve links up to the last component, or that too; None if its directory is missing.

    Paths in a sandbox are the same as on the host, so our own view is used.
    """
    parent, last = os.path.split(name.rstrip(b"/") or b"/")
    parent = os.path.realpath(parent)
    try:
        if not stat.S_ISDIR(os.stat(parent).st_mode):
            return None
    except OSError:
        return None
    whole = os.path.normpath(os.path.join(parent, last))
    return os.path.realpath(whole) if follow else whole
