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
import threading
from collections.abc import Callable
from typing import NamedTuple

from handrail.sandbox import attempts
from handrail.sandbox.denial import Denial

_RECEIVE, _SEND, _STILL_VALID = 0xC0502100, 0xC0182101, 0x40082102
_CONTINUE = 1
_NOTICE = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")
_LONGEST_PATH = 4096
#: Different denials that are noted of one command.
MOST_RECORDS = 256
#: Seconds until the helper must have sent its listener.
_START_SECONDS = 30.0

#: Places that hold no file of anybody.
_PLUMBING = (b"/dev/", b"/proc/", b"/newroot/", b"/oldroot/")


class _Notice(NamedTuple):
    id: int
    pid: int
    call: attempts.Call
    arguments: tuple[int, ...]


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
        buffer = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(listener, _RECEIVE, buffer)
        except OSError:
            return  # it was killed before we looked
        number, pid, _, call, _, _, *arguments = _NOTICE.unpack(buffer)
        known = self._calls.get(call)
        try:
            if known is not None and len(self._found) < MOST_RECORDS:
                self._look(listener, _Notice(number, pid, known, tuple(arguments)))
        except OSError:
            pass  # it ended meanwhile, or cannot be looked at: no evidence then
        finally:
            try:
                fcntl.ioctl(listener, _SEND, _ANSWER.pack(number, 0, 0, _CONTINUE))
            except OSError:
                pass  # nobody waits any more

    def _look(self, listener: int, notice: _Notice) -> None:
        call = notice.call
        if os.path.basename(os.readlink(f"/proc/{notice.pid}/exe")) in ("bwrap", "bwrap (deleted)"):
            return  # the sandbox is still being built
        with open(f"/proc/{notice.pid}/mem", "rb", buffering=0) as memory:
            where = memory.fileno()
            if call.address is not None:
                found = self._address(where, notice)
            else:
                found = self._paths(where, notice)
        # Only now is it sure that all this was about the process that asked.
        fcntl.ioctl(listener, _STILL_VALID, struct.pack("=Q", notice.id))
        for record in found:
            self._found[record] = None

    def _address(self, memory: int, notice: _Notice) -> list[Denial]:
        at = notice.call.address
        if self._network or at is None:
            return []
        raw = os.pread(memory, min(notice.arguments[at + 1] & 0xFFFF, 128), notice.arguments[at])
        text = attempts.address_text(raw)
        return [] if text is None else [Denial("network", "connect", text, "notify", certain=True)]

    def _paths(self, memory: int, notice: _Notice) -> list[Denial]:
        call = notice.call
        flags = 0
        if call.flags is not None:
            flags = notice.arguments[call.flags] & 0xFFFFFFFF
        elif call.how is not None:
            flags = struct.unpack("=Q", os.pread(memory, 8, notice.arguments[call.how]))[0]
            if not flags & attempts.WRITE_FLAGS:
                return []
        found = []
        for number, (directory, argument) in enumerate(call.paths):
            name = _text_at(memory, notice.arguments[argument])
            base = None if directory is None else ctypes.c_int(notice.arguments[directory]).value
            follow = call.sort == "open" and not flags & os.O_NOFOLLOW
            path = _host_path(notice.pid, base, name, follow=follow)
            if path is None or path.startswith(_PLUMBING) or self._may_write(path):
                continue
            sort = call.sort if call.sort != "move" else ("change", "put")[number]
            if not attempts.fails_first(sort, flags, os.path.lexists(path)):
                shown = path.decode("utf-8", "replace")
                found.append(Denial("file", call.name, shown, "notify", certain=True))
        return found


def _text_at(memory: int, address: int) -> bytes:
    """The C string there; a path that ends at the end of a page is read in two steps."""
    text = b""
    while len(text) < _LONGEST_PATH:
        step = 4096 - (address + len(text)) % 4096
        part = os.pread(memory, step, address + len(text))
        if not part:
            break
        head, end, _ = part.partition(b"\0")
        text += head
        if end:
            break
    return text


def _host_path(pid: int, base: int | None, name: bytes, *, follow: bool) -> bytes | None:
    """Absolute, with links resolved up to the last name; None when its directory is missing.

    Paths inside a plan are the same as outside, so ours is the view that is looked at.
    """
    if not name:
        return None
    if not name.startswith(b"/"):
        where = b"cwd" if base in (None, attempts.AT_FDCWD) else b"fd/%d" % (base or 0)
        name = os.readlink(b"/proc/%d/%b" % (pid, where)) + b"/" + name
    parent, last = os.path.split(name.rstrip(b"/") or b"/")
    parent = os.path.realpath(parent)
    try:
        if not stat.S_ISDIR(os.stat(parent).st_mode):
            return None
    except OSError:
        return None
    whole = os.path.normpath(os.path.join(parent, last))
    return os.path.realpath(whole) if follow else whole
