"""Seccomp user notifications: receive them, inspect the caller, answer.

``keeper/seccomp/spawn.py`` installs the filter.  A notification points into the caller's memory,
which the caller may change at any time: code that decides by that memory has to make the call
itself, and must not let the caller go on with it.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
from typing import NamedTuple

_RECEIVE, _SEND, _ID_VALID, _ADD = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103
_CONTINUE = 1
_NOTICE = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")
_ID = struct.Struct("=Q")
_ADDED = struct.Struct("=QIIII")
_PIDFD_GETFD = 438  # on every architecture
_PIDFD_THREAD = os.O_EXCL  # since Linux 6.9
_LONGEST_PATH = 4096
#: ERESTARTSYS: with a pending signal, the kernel turns it into EINTR or restarts the syscall.
INTERRUPTED = 512

_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_readv.restype = ctypes.c_ssize_t
_libc.syscall.restype = ctypes.c_long


class Notification(NamedTuple):
    """One syscall that waits for an answer."""

    number: int  # notification id
    pid: int  # of the calling thread, in our PID namespace
    call: int
    arguments: tuple[int, ...]


SIZE = _NOTICE.size


def from_raw(raw: bytes | mmap.mmap, at: int) -> Notification:
    """Parse a notification as the kernel writes it."""
    number, pid, _, call, _, _, *arguments = _NOTICE.unpack_from(raw, at)
    return Notification(number, pid, call, tuple(arguments))


def receive(listener: int, address: int) -> bool:
    """Receive the next one into zeroed memory of ours, after a poll has reported it.

    False: its caller has gone.
    """
    return bool(_libc.ioctl(listener, ctypes.c_ulong(_RECEIVE), ctypes.c_void_p(address)) == 0)


def still_waits(listener: int, notice: Notification) -> bool:
    """Whether the caller still waits; if not, its pid may belong to another process."""
    try:
        fcntl.ioctl(listener, _ID_VALID, _ID.pack(notice.number))
    except OSError:
        return False
    return True


def answer(listener: int, notice: Notification, error: int) -> bool:
    """Finish the call with an errno, or 0 for success; False if the caller has gone."""
    return _send(listener, _ANSWER.pack(notice.number, 0, -error, 0))


def go_on(listener: int, notice: Notification) -> bool:
    """Let the caller make the call itself; False if the caller has gone."""
    return _send(listener, _ANSWER.pack(notice.number, 0, 0, _CONTINUE))


def _send(listener: int, text: bytes) -> bool:
    try:
        fcntl.ioctl(listener, _SEND, text)
    except OSError:
        return False  # the caller has gone
    return True


def give_descriptor(listener: int, notice: Notification, fd: int, *, close_on_exec: bool) -> int:
    """Copy one of our fds to the caller and return its number there; raises OSError."""
    asked = _ADDED.pack(notice.number, 0, fd, 0, os.O_CLOEXEC if close_on_exec else 0)
    while True:
        try:
            number: int = fcntl.ioctl(listener, _ADD, bytearray(asked))
        except InterruptedError:
            continue  # interrupted by a signal of ours before it was done
        return number


# --- the caller -----------------------------------------------------------------------------------


def thread_group(pid: int) -> int:
    """Open a pidfd of the thread, or of its process on kernels before 6.9."""
    try:
        return os.pidfd_open(pid, _PIDFD_THREAD)
    except OSError:
        pass
    with open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"Tgid:"):
                return os.pidfd_open(int(line[5:]))
    raise ProcessLookupError(pid)


def has_signal(pid: int) -> bool:
    """Whether a signal is pending that this thread handles itself.

    A signal for the whole process counts for its main thread, unless that blocks it.
    """
    fields = {}
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                name, _, value = line.partition(b":")
                fields[name] = value.strip()
    except OSError:
        return False
    blocked, handled = int(fields[b"SigBlk"], 16), int(fields[b"SigCgt"], 16)
    pending = int(fields[b"SigPnd"], 16)
    if fields[b"Tgid"] == fields[b"Pid"]:
        pending |= int(fields[b"ShdPnd"], 16)
    return bool(pending & ~blocked & handled)


def descriptor_of(pidfd: int, number: int) -> int:
    """Copy a fd of another process; raises OSError."""
    fd: int = _libc.syscall(
        ctypes.c_long(_PIDFD_GETFD), ctypes.c_long(pidfd), ctypes.c_long(number), ctypes.c_long(0)
    )
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def memory(pid: int, address: int, length: int) -> bytes:
    """Read bytes of another process's memory; raises OSError."""
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


def text_at(pid: int, address: int) -> bytes:
    """Read the C string there, page by page: the next page may not be mapped."""
    text = b""
    while len(text) < _LONGEST_PATH:
        at = address + len(text)
        part = memory(pid, at, min(256, 4096 - at % 4096))
        head, end, _ = part.partition(b"\0")
        text += head
        if end or not part:
            break
    return text


def connect(fd: int, address: bytes) -> int:
    """``connect`` with the caller's raw address; return the errno or 0."""
    if _libc.connect(fd, address, len(address)) < 0:
        return ctypes.get_errno()
    return 0


def bind(fd: int, address: bytes) -> int:
    """``bind`` with a raw address; return the errno or 0."""
    if _libc.bind(fd, address, len(address)) < 0:
        return ctypes.get_errno()
    return 0
