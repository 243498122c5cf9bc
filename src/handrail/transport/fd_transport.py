"""An asyncio transport over two fds of any kind, for stdio.

The loops' own pipe transports do not accept everything that stdin and stdout may be: epoll refuses
regular files and /dev/null (libuv then aborts the whole process), and both set O_NONBLOCK on a file
description that may be shared with a parent, or with our own stderr after ``2>&1``: its writes
would begin to fail.  Here pipes and terminals are reopened through /proc, which gives a description
of our own; files are read in the executor and written at once.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import stat
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import cast

#: The default size of a pipe; more would only cost allocation time.
_READ_SIZE = 64 * 1024
_PARTS_AT_ONCE = 64
#: Major device number of /dev/tty, /dev/console and /dev/ptmx: opening ptmx makes a new terminal.
_TTY_ALIASES = 5


class Descriptor:
    """One fd of our own for what ``fd`` refers to; ``fd`` itself stays untouched."""

    __slots__ = ("_restore", "fd", "pollable")

    def __init__(self, fd: int, access: int) -> None:
        self._restore = False
        self.fd = _reopen(fd, access)
        self.pollable = _is_pollable(self.fd)
        if self.pollable and os.get_blocking(self.fd):
            os.set_blocking(self.fd, False)
            self._restore = True

    def close(self) -> None:
        if self.fd < 0:
            return
        if self._restore:
            os.set_blocking(self.fd, True)
        os.close(self.fd)
        self.fd = -1


class DescriptorTransport(asyncio.Transport):
    """Reads from one fd, writes to the other; owns both."""

    #: writelines() hands the parts to the kernel as they are; see StreamConnection.open.
    takes_parts = True

    def __init__(self, reader: Descriptor, writer: Descriptor) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._reader = reader
        self._writer = writer
        self._protocol: asyncio.Protocol
        self._reading = False
        self._read_job: asyncio.Future[bytes] | None = None  # files only
        self._queue: deque[bytes | memoryview] = deque()
        self._queued = 0
        self._waits = False  # for the writer to become ready
        self._high = 64 * 1024
        self._low = 16 * 1024
        self._told_to_pause = False
        self._closing = False
        self._lost = False

    # -- reading ------------------------------------------------------------------------

    def resume_reading(self) -> None:
        if self._reading or self._closing:
            return
        self._reading = True
        if self._reader.pollable:
            self._loop.add_reader(self._reader.fd, self._readable)
        elif self._read_job is None:
            self._read_in_executor()

    def pause_reading(self) -> None:
        if not self._reading:
            return
        self._reading = False
        if self._reader.pollable:
            self._loop.remove_reader(self._reader.fd)

    def _readable(self) -> None:
        try:
            data = os.read(self._reader.fd, _READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            # A terminal that was hung up reads as EIO; that is an end like any other.
            if error.errno != errno.EIO:
                self._force_close(error)
                return
            data = b""
        self._received(data)

    def _read_in_executor(self) -> None:
        self._read_job = self._loop.run_in_executor(None, os.read, self._reader.fd, _READ_SIZE)
        self._read_job.add_done_callback(self._read_done)

    def _read_done(self, job: asyncio.Future[bytes]) -> None:
        self._read_job = None
        if self._lost:
            self._reader.close()  # not earlier: the thread was reading from it
        if self._closing or job.cancelled():
            return
        error = job.exception()
        if error is not None:
            self._force_close(cast("Exception", error))
            return
        # Delivered even when paused meanwhile: the connection keeps it, as with a socket.
        self._received(job.result())
        if self._reading and self._read_job is None:
            self._read_in_executor()

    def _received(self, data: bytes) -> None:
        if data:
            self._protocol.data_received(data)
            return
        self.pause_reading()
        if not self._protocol.eof_received():
            self.close()

    # -- writing ------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        if self._closing:
            return
        for data in list_of_data:
            if data:
                self._queue.append(data if isinstance(data, bytes) else memoryview(data))
                self._queued += len(data)
        if not self._waits:
            self._flush()
        if self._queued > self._high and not self._told_to_pause:
            self._told_to_pause = True
            self._protocol.pause_writing()

    def _flush(self) -> None:
        while self._queue:
            try:
                taken = os.writev(self._writer.fd, list(islice(self._queue, _PARTS_AT_ONCE)))
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._force_close(error)
                return
            self._forget(taken)
        self._wait_for_room(bool(self._queue))
        if self._told_to_pause and self._queued <= self._low:
            self._told_to_pause = False
            self._protocol.resume_writing()
        if self._closing and not self._queue:
            self._end(None)

    def _wait_for_room(self, waits: bool) -> None:
        if waits and not self._waits:
            self._loop.add_writer(self._writer.fd, self._flush)
        elif self._waits and not waits:
            self._loop.remove_writer(self._writer.fd)
        self._waits = waits

    def _forget(self, taken: int) -> None:
        self._queued -= taken
        while taken:
            size = len(self._queue[0])
            if size > taken:
                self._queue[0] = memoryview(self._queue[0])[taken:]
                return
            self._queue.popleft()
            taken -= size

    def get_write_buffer_size(self) -> int:
        return self._queued

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def can_write_eof(self) -> bool:
        return False

    # -- ending -------------------------------------------------------------------------

    def close(self) -> None:
        if self._closing:
            return
        self.pause_reading()
        self._closing = True
        if not self._queue:
            self._end(None)

    def abort(self) -> None:
        self._force_close(None)

    def _force_close(self, error: Exception | None) -> None:
        self.pause_reading()
        self._closing = True
        self._queue.clear()
        self._queued = 0
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._wait_for_room(False)
        self._writer.close()
        if self._read_job is None:
            self._reader.close()
        # Never within the caller's write() or close(), as with every transport.
        self._loop.call_soon(self._protocol.connection_lost, error)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast("asyncio.Protocol", protocol)


def _reopen(fd: int, access: int) -> int:
    info = os.fstat(fd)
    is_terminal = stat.S_ISCHR(info.st_mode) and os.major(info.st_rdev) != _TTY_ALIASES
    if stat.S_ISFIFO(info.st_mode) or is_terminal:
        try:
            flags = access | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
            return os.open(f"/proc/self/fd/{fd}", flags)
        except OSError:
            pass  # no /proc, another user's pipe, or no reader yet: share the description
    return os.dup(fd)


def _is_pollable(fd: int) -> bool:
    with select.epoll() as probe:
        try:
            probe.register(fd, 0)
        except PermissionError:
            return False
    return True
