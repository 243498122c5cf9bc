"""Seeing what a confined command tries to change.

Evidence, never enforcement: each attempt is let through at once, and noted when the profile says
that it cannot succeed.  What is read is the command's own memory, which it may change under us.
It is asked for, never the default: each attempt costs two switches (``supervisor.py``).
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

#: Places that hold no file of anybody.
_PLUMBING = (b"/dev/", b"/proc/", b"/newroot/", b"/oldroot/")


class _Attempt(NamedTuple):
    op: str
    sort: str  # as in the table
    flags: int
    target: bytes


class DenialRecorder:
    """What the attempts of one command mean."""

    def __init__(self, may_write: Callable[[bytes], bool]) -> None:
        """``may_write`` is the profile."""
        self._may_write = may_write
        self._calls = mutating_calls.calls_of(platform.machine())
        self._commands: set[int] = set()  # processes that are seen to be past the building

    def see(self, listener: int, notice: notify.Notification) -> list[Denial]:
        """Read what the command is about to do, let it, and then think about it.

        Thinking comes last because the command waits meanwhile.  What will be refused changes
        nothing, so the file system still looks as it did.
        """
        known = self._calls.get(notice.call)
        tried: list[_Attempt] = []
        try:
            if known is not None and self._inside(notice.pid):
                tried = _read(notice.pid, known, notice.arguments)
        except OSError:
            pass  # it ended meanwhile, or cannot be looked at: no evidence then
        if not notify.go_on(listener, notice):
            return []  # not the process that asked any more, so none of this is about it
        return [denial for attempt in tried if (denial := self._judge(attempt)) is not None]

    def _inside(self, pid: int) -> bool:
        """Whether this is the command's doing: at first the sandbox itself is still being built."""
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
    """For a command that this plan holds."""
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
    """With links resolved up to the last name, or that too; None when its directory is missing.

    Paths inside a plan are the same as outside, so ours is the view that is looked at.
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
