"""Copy files that a sandboxed command has as streams through pipes: an fd would allow it more.

A descriptor of a file is more than a stream: ``/proc/self/fd/0`` opens the same file for writing, a
log that is appended to can be cut or read back, its mode can be changed, and a directory leads to
everything above it.  The mounts of a sandbox stop none of that, since the descriptor belongs to a
mount of the host.  So a file is copied through a pipe, unless the command may write it anyway.
Terminals, pipes, sockets and devices like ``/dev/null`` are handed over as they are, but for the
pipe or socket of stderr: its end is kept, to explain a refusal (``tail``).  What goes to stdout
through the same pipe is copied with it, in its order.

It is imported only where there is a file or such a pipe (``is_plain``, ``is_line`` in ``run.py``).
"""

from __future__ import annotations

import _thread  # threading itself takes a while to import
import errno
import os
import stat

from handrail.process.foreground.run import is_line, is_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PIECE = 1 << 20
#: How much of the end of stderr is kept.
_TAIL = 1 << 14
_F_DUPFD_QUERY = 1027
_NAMES = ("stdin", "stdout", "stderr")


class NoStream(OSError):
    """A stream that a sandboxed command cannot have in any form."""


class StreamCopies:
    """The streams of one command that are copied; usually none."""

    def __init__(self, numbers: Sequence[int], may_write: Callable[[bytes], bool]) -> None:
        """``numbers``: which of 0, 1 and 2 the command is to have from us.

        ``may_write`` says whether the command may write a real path.  Raises NoStream.
        """
        shown = 2 in numbers and is_line(2)
        copied = [
            number
            for number in numbers
            if _is_copied(number, may_write)
            or (shown and (number == 2 or (number == 1 and _same_line())))
        ]
        #: (number in the child, descriptor here).
        self.passed: list[tuple[int, int]] = []
        self._input: _Input | None = None
        self._outputs: list[_Output] = []
        for number in copied:
            if number == 0:
                self._input = _Input()
                self.passed.append((0, self._input.theirs))
            elif number == 2 and self._outputs and (_same_line() or _same_description()):
                self._outputs[0].keeps = True
                self.passed.append((2, self._outputs[0].theirs))  # one pipe keeps the order
            else:
                self._outputs.append(_Output(number))
                self.passed.append((number, self._outputs[-1].theirs))

    def __bool__(self) -> bool:
        return bool(self.passed)

    @property
    def descriptors(self) -> list[int]:
        """The fds that a forked process has to close, so that each pipe can end."""
        found = [fd for output in self._outputs for fd in (output.ours, output.theirs)]
        if self._input is not None:
            found += [self._input.ours, self._input.theirs]
        return [fd for fd in found if fd >= 0]

    def sent(self) -> None:
        """Close the command's ends, of which it has copies."""
        for output in self._outputs:
            output.theirs = _closed(output.theirs)

    def begin(self) -> None:
        """Start the copying threads; no fork may come after this."""
        for output in self._outputs:
            output.begin()
        if self._input is not None:
            self._input.begin()

    def finish(self) -> None:
        """After the command's end: wait until everything it wrote is in the files."""
        for output in self._outputs:
            output.finish()
        if self._input is not None:
            self._input.finish()

    @property
    def failure(self) -> tuple[int, OSError] | None:
        """The number of a stream that could not be copied to its end, and why."""
        if self._input is not None and self._input.error is not None:
            return 0, self._input.error
        for output in self._outputs:
            if output.error is not None:
                return output.number, output.error
        return None

    @property
    def tail(self) -> bytes:
        """The end of stderr, as far as it was copied."""
        return b"".join(bytes(output.tail) for output in self._outputs if output.keeps)

    def spill(self) -> None:
        """Pass on what was written although there was no command, and close everything."""
        self.sent()
        for output in self._outputs:
            output.copy()
        for fd in self.descriptors:
            os.close(fd)


class _Input:
    """Copies our stdin to a command.

    The position of the file moves as if the command read it itself: by what it has read, so that
    the next program with the same stdin goes on behind that.
    """

    def __init__(self) -> None:
        self.theirs, self.ours = _pipe(stat.S_IRUSR)
        self.error: OSError | None = None
        try:
            self._start: int | None = os.lseek(0, 0, os.SEEK_CUR)
        except OSError:
            self._start = None  # a device
        self._moved = 0
        self._over = False

    def begin(self) -> None:
        if _is_open_for(0, os.O_RDONLY):
            _thread.start_new_thread(self._copy, ())
        else:
            self.ours = _closed(self.ours)  # nothing can be read from it

    def _copy(self) -> None:
        spliced = True
        try:
            while not self._over:
                at = None if self._start is None else self._start + self._moved
                if spliced:
                    try:
                        moved = os.splice(0, self.ours, _PIECE, offset_src=at)
                    except OSError as error:
                        if error.errno != errno.EINVAL:
                            raise
                        spliced = False
                        continue
                else:
                    data = os.read(0, _PIECE) if at is None else os.pread(0, _PIECE, at)
                    moved = _write(self.ours, data)
                if moved == 0:
                    break
                self._moved += moved
        except OSError as error:
            self.error = error
        self.ours = _closed(self.ours)

    def finish(self) -> None:
        self._over = True
        if self._start is None:
            return  # a device may have nothing to say for ever
        unread = 0
        while data := os.read(self.theirs, _PIECE):
            unread += len(data)
        self.theirs = _closed(self.theirs)
        if self._moved > unread and os.lseek(0, 0, os.SEEK_CUR) == self._start:
            os.lseek(0, self._start + self._moved - unread, os.SEEK_SET)


class _Output:
    """Copies what a command writes to a file of ours."""

    def __init__(self, number: int) -> None:
        self.number = number
        #: Whether its end is kept.
        self.keeps = number == 2
        self.tail = b""
        self.ours, self.theirs = _pipe(stat.S_IWUSR)
        self.error: OSError | None = None
        self._done = _thread.allocate_lock()

    def begin(self) -> None:
        self._done.acquire()
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            self.copy()
        finally:
            self.ours = _closed(self.ours)  # a command that goes on writing is told so
            self._done.release()

    def copy(self) -> None:
        spliced = not self.keeps
        try:
            while True:
                if spliced:
                    try:
                        moved = os.splice(self.ours, self.number, _PIECE)
                    except OSError as error:
                        if error.errno != errno.EINVAL:  # as for a file that is appended to
                            raise
                        spliced = False
                        continue
                else:
                    data = os.read(self.ours, _PIECE)
                    moved = _write(self.number, data)
                    if self.keeps:
                        self.tail = (self.tail + data[-_TAIL:])[-_TAIL:]
                if moved == 0:
                    return
        except OSError as error:
            # A reader that is gone is for the command to hear of, by its own pipe.
            self.error = None if error.errno == errno.EPIPE else error

    def finish(self) -> None:
        self._done.acquire()


def _is_copied(number: int, may_write: Callable[[bytes], bool]) -> bool:
    if is_plain(number):
        return False
    status = os.fstat(number)
    kind = stat.S_IFMT(status.st_mode)
    if kind in (stat.S_IFDIR, stat.S_IFLNK):
        raise NoStream(
            f"{_NAMES[number]} is a directory or a link, which leads out of the sandbox; give a"
            " file, a pipe or /dev/null"
        )
    if kind == stat.S_IFCHR:
        return True
    path = os.readlink(b"/proc/self/fd/%d" % number)
    return not (_leads_to(path, status) and may_write(path))


def _leads_to(path: bytes, status: os.stat_result) -> bool:
    """Whether the file still has this path; a file without a path is in no writable place."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(found, status)


def _same_line() -> bool:
    """Whether stdout and stderr are one pipe or socket."""
    return is_line(1) and is_line(2) and os.path.samestat(os.fstat(1), os.fstat(2))


def _same_description() -> bool:
    """Whether stdout and stderr are one open file description (``2>&1``), or append to one file."""
    import fcntl

    try:
        return fcntl.fcntl(1, _F_DUPFD_QUERY, 2) == 1 or _append_to_the_same()
    except OSError:  # before Linux 6.10
        same = os.path.samestat(os.fstat(1), os.fstat(2))
        return same and os.lseek(1, 0, os.SEEK_CUR) == os.lseek(2, 0, os.SEEK_CUR)


def _append_to_the_same() -> bool:
    same = os.path.samestat(os.fstat(1), os.fstat(2))
    return same and _flags(1) & _flags(2) & os.O_APPEND != 0


def _is_open_for(fd: int, direction: int) -> bool:
    flags = _flags(fd)
    return flags & os.O_ACCMODE in (direction, os.O_RDWR) and not flags & os.O_PATH


def _flags(fd: int) -> int:
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_GETFL)


def _pipe(mode: int) -> tuple[int, int]:
    """The end to read from and the end to write to, with room for a large piece.

    Its mode says in which direction it can be opened again, by ``/dev/stdout`` for instance: a
    program that opens it for reading too is told at once, and does not wait for itself.
    """
    import fcntl

    ends = os.pipe2(os.O_CLOEXEC)
    os.fchmod(ends[0], mode)
    try:
        fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, _PIECE)
    except OSError:
        pass  # this user has many pipes: an ordinary one will do
    return ends


def _write(fd: int, data: bytes) -> int:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # another process that shares the pipe has made it so
            import select

            select.select([], [fd], [])
    return len(data)


def _closed(fd: int) -> int:
    if fd >= 0:
        os.close(fd)
    return -1
