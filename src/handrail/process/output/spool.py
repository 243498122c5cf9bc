"""One stream of output, in a memfd that outlives the server.

How it works.  A memfd is used as a ring: bytes are spliced from the pipe to the memfd's own
file position, and at the end of the ring the position goes back to 0.  The kernel moves bytes
and position in one system call, so a server that is killed at any moment leaves behind
exactly what it took.  Position in the stream = laps x size + file position; the laps are kept
in a small head behind the ring, marked *pending* around the step back, so that a half-done
lap can be told apart.

The ring holds the retention and one step more, so that what the log still lists is never
overwritten.  A chunk never crosses the ring's end: one ``pread`` fetches it.

A terminal cannot be spliced to a file; there the bytes pass through a staging pipe that the
keeper holds as well.  Where the kernel or a filter refuses to splice, with whatever error, ``read``
and ``write`` do the same work without the promise for a killed server.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import struct
import termios

from handrail import fault_points, memory_file
from handrail.process import fd_reserve
from handrail.process.output.output_log import RETENTION_BYTES

#: Bytes moved in one step; larger ones were slower in every measurement.
STEP = 64 * 1024
RING = RETENTION_BYTES + STEP
#: Where an index of the process may lie (``event_index.py``): behind the ring and its head.
INDEX_AT = (RING // 4096 + 1) * 4096
_HEAD = struct.Struct("<8sQQ")  # magic, laps, pending
_MAGIC = b"hrspool1"
#: A terminal gives about 4 KiB a step, and the kernel makes pages for all that is asked for.
_TERMINAL_STEP = 8192
#: Steps gathered before the rest of the loop has its turn.
_TERMINAL_STEPS = 16


#: What is left of a read that could be written, one object for all spools.
_NO_REST = memoryview(b"")
#: Errors that say that there is no room, for now: of memory, of a disk, or by ``ulimit -f``.
_NO_ROOM = {errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
#: Errors of a call that is there and may be made: there is nothing to read, or no room.
_NOT_REFUSED = {errno.EAGAIN, errno.EINTR, errno.EIO, *_NO_ROOM}


class Spool:
    """The bytes of one stream."""

    __slots__ = ("_laps", "_offset", "_plain", "_rest", "fd")

    def __init__(self) -> None:
        self.fd = fd_reserve.outside(memory_file.create("handrail-spool"))
        self._offset = 0
        self._laps = 0
        self._plain = False
        self._rest = _NO_REST  # was read, and there was no room to write it
        self._write_head(pending=False)

    @classmethod
    def attach(cls, fd: int) -> Spool:
        """Continue the spool of a previous server, which may have been killed in any step."""
        spool = object.__new__(cls)
        spool.fd = fd
        spool._plain = False
        spool._rest = _NO_REST
        magic, spool._laps, pending = _HEAD.unpack(os.pread(fd, _HEAD.size, RING))
        if magic != _MAGIC:
            raise ValueError("no spool of ours")
        spool._offset = os.lseek(fd, 0, os.SEEK_CUR)
        if spool._offset == RING:
            spool._wrap()
        elif pending:  # the step back was taken and not noted
            spool._laps += 1
            spool._write_head(pending=False)
        return spool

    @property
    def position(self) -> int:
        """Bytes of the stream so far."""
        return self._laps * RING + self._offset

    def fill(self, source: int) -> int:
        """Move up to one step from a pipe.  0 at its end; raises BlockingIOError when empty.

        Raises another OSError when there is no room for it.  Even then ``position`` says how much
        was taken, and the next call goes on with the rest.
        """
        room = RING - self._offset
        want = min(room, STEP)
        if fault_points.armed:
            want = fault_points.at_most("spool.fill", want)
            fault_points.point("spool.fill")
        if not self._plain:
            try:
                moved = os.splice(source, self.fd, want)
            except OSError as error:
                if error.errno in _NOT_REFUSED:
                    raise
                self._plain = True
            else:
                self._moved(moved)
                return moved
        return self._copy(source, want)

    def read(self, start: int, size: int) -> bytes:
        """The bytes of one chunk."""
        return os.pread(self.fd, size, start % RING)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _copy(self, source: int, want: int) -> int:
        if not self._rest:
            self._rest = memoryview(os.read(source, want))
        size = len(self._rest)
        while self._rest:
            written = os.write(self.fd, self._rest)
            self._rest = self._rest[written:]
            self._moved(written)
        return size

    def _moved(self, size: int) -> None:
        self._offset += size
        if self._offset == RING:
            self._wrap()

    def _wrap(self) -> None:
        self._write_head(pending=True)
        if fault_points.armed:
            fault_points.point("spool.pending")
        os.lseek(self.fd, 0, os.SEEK_SET)
        if fault_points.armed:
            fault_points.point("spool.wrapped")
        self._laps += 1
        self._offset = 0
        self._write_head(pending=False)

    def _write_head(self, *, pending: bool) -> None:
        os.pwrite(self.fd, _HEAD.pack(_MAGIC, self._laps, pending), RING)


@functools.cache
def can_splice() -> bool:
    """Whether the kernel moves bytes and position in one step here: a killed server loses none.

    Found out once, at the start: later there may be no descriptor free for it.
    """
    source, drain = os.pipe2(os.O_CLOEXEC)
    spool = memory_file.create("handrail-probe")
    try:
        os.write(drain, b"x")
        return os.splice(source, spool, 1) == 1
    except OSError:
        return False
    finally:
        for fd in (source, drain, spool):
            os.close(fd)


class Staging:
    """The pipe between a terminal and its spool."""

    __slots__ = ("_plain", "held", "read_end", "write_end")

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.held = 0  # bytes in the pipe
        self._plain = False

    @classmethod
    def attach(cls, read_end: int) -> Staging:
        """Continue with the pipe of a previous server, and what it holds."""
        staging = object.__new__(cls)
        staging.read_end = read_end
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
        staging.write_end = os.open(f"/proc/self/fd/{read_end}", flags)
        staging.held = struct.unpack("i", fcntl.ioctl(read_end, termios.FIONREAD, bytes(4)))[0]
        staging._plain = False
        return staging

    def fill(self, terminal: int, want: int) -> tuple[int, bool]:
        """Read from a terminal; returns how many bytes, and whether it has ended.

        A terminal hands out small pieces, so several are gathered before they are numbered.
        """
        got = 0
        for _ in range(_TERMINAL_STEPS):
            if got >= want:
                break
            try:
                if self._plain:
                    if self.held:
                        break
                    moved = self._copy(terminal, want)
                else:
                    moved = os.splice(terminal, self.write_end, min(_TERMINAL_STEP, want - got))
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno not in _NOT_REFUSED and not self._plain:
                    self._plain = True
                    continue
                if error.errno in _NO_ROOM:
                    if got:
                        break
                    raise
                # EIO: no process has the terminal open any more.
                return got, True
            if moved == 0:
                return got, True
            got += moved
            self.held += moved
        return got, False

    def drain(self, spool: Spool) -> int:
        """Move the held bytes to the spool; in two steps only at the ring's end."""
        before = spool.position
        try:
            return spool.fill(self.read_end)
        finally:
            self.held -= spool.position - before  # some of it, where there is no room for all

    def _copy(self, terminal: int, want: int) -> int:
        """Copy one page at most into a pipe that is empty, which always has room for it."""
        data = os.read(terminal, min(4096, want))
        view = memoryview(data)
        while view:
            view = view[os.write(self.write_end, view) :]
        return len(data)

    def close(self) -> None:
        os.close(self.read_end)
        os.close(self.write_end)
