"""Seeing what a confined command tries to change, by seccomp user notification.

Evidence, never enforcement: each attempt is let through at once, and noted when the profile says
that it cannot succeed.  What is read is the command's own memory, which it may change under us.
Needs no privilege.  It is asked for, never the default: each attempt costs two switches, and a
command whose watcher is gone finds those calls missing (ENOSYS).

The command is started by ``helper.py watch``, which installs the filter and sends the listening
descriptor over the socket that ``Watcher`` holds the other end of.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import select
import socket
import stat
import struct
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple

from handrail.sandbox import attempts
from handrail.sandbox.denial import Denial

_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1
_NOTICE = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")
_LONGEST_PATH = 4096
#: Different denials that are noted of one command.
MOST_RECORDS = 256
_MOST_PIDS = 4096
#: Seconds until the helper must have sent its listener.
_START_SECONDS = 30.0

#: Places that hold no file of anybody.
_PLUMBING = (b"/dev/", b"/proc/", b"/newroot/", b"/oldroot/")


class _Attempt(NamedTuple):
    op: str
    sort: str  # as in the table; empty for an address
    flags: int
    target: bytes


def watchable() -> bool:
    """Whether this kind of machine is known."""
    return platform.machine() in attempts.MACHINES


class Watcher:
    """One command, watched by one thread until all its processes have ended."""

    def __init__(
        self, sock: socket.socket, may_write: Callable[[bytes], bool], *, network: bool
    ) -> None:
        """``may_write`` is the profile; ``network``: whether connections may leave.

        The socket is ours from now on.
        """
        self._sock = sock
        self._may_write = may_write
        self._network = network
        self._calls = attempts.calls_of(platform.machine())
        self._stop, self._stopped = os.pipe2(os.O_CLOEXEC)
        self._found: dict[Denial, None] = {}
        self._commands: set[int] = set()  # processes that are seen to be past the building
        self._thread = threading.Thread(target=self._run, name="handrail-watcher", daemon=True)
        self._thread.start()

    @property
    def denials(self) -> list[Denial]:
        """What was noted so far."""
        return list(self._found)

    def close(self) -> None:
        """The command has ended: stop watching, and wait until that has happened."""
        fd, self._stopped = self._stopped, -1
        if fd >= 0:
            os.close(fd)
            self._thread.join()

    def _run(self) -> None:
        listener = -1
        try:
            listener = self._take_listener()
            if listener >= 0:
                self._watch(listener)
        finally:
            self._sock.close()
            os.close(self._stop)
            if listener >= 0:
                os.close(listener)

    def _take_listener(self) -> int:
        ours = self._sock.fileno()
        ready, _, _ = select.select([ours, self._stop], [], [], _START_SECONDS)
        if ours not in ready:
            return -1
        try:
            _, fds, _, _ = socket.recv_fds(self._sock, 1, 1)
        except OSError:
            return -1
        return fds[0] if fds else -1

    def _watch(self, listener: int) -> None:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        poll.register(self._stop, select.POLLIN)
        while True:
            events = dict(poll.poll())
            if events.get(listener, 0) & select.POLLIN:
                self._serve(listener)
            elif events:
                return  # everybody of it is gone, or we are told to stop

    def _serve(self, listener: int) -> None:
        """Read what the command is about to do, let it, and then think about it.

        Thinking comes last because the command waits meanwhile.  What will be refused changes
        nothing, so the file system still looks as it did.
        """
        buffer = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(listener, _RECEIVE, buffer)
        except OSError:
            return  # it was killed before we looked
        number, pid, _, call, _, _, *arguments = _NOTICE.unpack(buffer)
        known = self._calls.get(call)
        tried: list[_Attempt] = []
        try:
            if known is not None and len(self._found) < MOST_RECORDS and self._inside(pid):
                tried = self._read(pid, known, arguments)
        except OSError:
            pass  # it ended meanwhile, or cannot be looked at: no evidence then
        try:
            fcntl.ioctl(listener, _SEND, _ANSWER.pack(number, 0, 0, _CONTINUE))
        except OSError:
            return  # not the process that asked any more, so none of this is about it
        for attempt in tried:
            record = self._judge(attempt)
            if record is not None:
                self._found[record] = None

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

    def _read(self, pid: int, call: attempts.Call, arguments: list[int]) -> list[_Attempt]:
        if call.address is not None:
            if self._network:
                return []
            length = min(arguments[call.address + 1] & 0xFFFF, 128)
            return [_Attempt(call.name, "", 0, _memory(pid, arguments[call.address], length))]
        flags = 0
        if call.flags is not None:
            flags = arguments[call.flags] & 0xFFFFFFFF
        elif call.how is not None:
            flags = int.from_bytes(_memory(pid, arguments[call.how], 8), sys.byteorder)
            if not flags & attempts.WRITE_FLAGS:
                return []
        found = []
        for number, (directory, argument) in enumerate(call.paths):
            path = _text_at(pid, arguments[argument])
            if not path:
                continue
            if not path.startswith(b"/"):
                base = None if directory is None else ctypes.c_int(arguments[directory]).value
                where = b"cwd" if base in (None, attempts.AT_FDCWD) else b"fd/%d" % (base or 0)
                path = os.readlink(b"/proc/%d/%b" % (pid, where)) + b"/" + path
            sort = call.sort if call.sort != "move" else ("change", "put")[number]
            found.append(_Attempt(call.name, sort, flags, path))
        return found

    def _judge(self, attempt: _Attempt) -> Denial | None:
        op, sort, flags, raw = attempt
        if not sort:
            text = attempts.address_text(raw)
            return None if text is None else Denial("network", op, text, "notify", certain=True)
        path = _host_path(raw, follow=sort == "open" and not flags & os.O_NOFOLLOW)
        if path is None or path.startswith(_PLUMBING) or self._may_write(path):
            return None
        if attempts.fails_first(sort, flags, os.path.lexists(path)):
            return None
        return Denial("file", op, path.decode("utf-8", "replace"), "notify", certain=True)


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_readv.restype = ctypes.c_ssize_t


def _memory(pid: int, address: int, length: int) -> bytes:
    """Some bytes of another process."""
    buffer = ctypes.create_string_buffer(length)
    ours = _Vector(ctypes.cast(buffer, ctypes.c_void_p), length)
    theirs = _Vector(address, length)
    one = ctypes.c_ulong(1)
    got = _libc.process_vm_readv(
        pid, ctypes.byref(ours), one, ctypes.byref(theirs), one, ctypes.c_ulong(0)
    )
    if got < 0:
        raise OSError(ctypes.get_errno(), "the memory of the command cannot be read")
    return buffer.raw[:got]


def _text_at(pid: int, address: int) -> bytes:
    """The C string there; never beyond a page that may be the last."""
    text = b""
    while len(text) < _LONGEST_PATH:
        at = address + len(text)
        part = _memory(pid, at, min(256, 4096 - at % 4096))
        head, end, _ = part.partition(b"\0")
        text += head
        if end or not part:
            break
    return text


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
