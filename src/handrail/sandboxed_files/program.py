"""The program of a sandboxed file helper: ``python -I -S program.py FD [greet]``.

It runs in a sandbox and answers frames on an inherited socket.  All threads wait for the socket and
the kernel wakes one of those that wait: it reads one frame and answers it, so an answer needs no
hand-over, and a hung call delays no other until all threads hang.  When the server closes its end,
or is gone, the helper ends.

What it passes to the server first is described in ``mount_view.py``; ``greet``: the stub of
``view_stub.py`` has not done that.
"""

from __future__ import annotations

import _socket  # the C part: the other imports what takes longer than a call
import os
import select
import struct
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING

if __name__ == "__main__":
    # The package's directory comes last in sys.path: no file beside it shadows a module.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    __import__("handrail")
    sys.path.pop()

from handrail.errors import FilesError
from handrail.sandboxed_files import frames

if TYPE_CHECKING:
    from handrail.sandboxed_files.service import FileService

#: Concurrent calls.
THREADS = 8
_STEP = 256 * 1024


class Helper:
    """One socket, one service, some threads."""

    def __init__(self, fd: int, service: FileService) -> None:
        self._fd = fd
        self._socket = _socket.socket(fileno=fd)
        self._service = service
        self._reader = frames.FrameReader()
        self._buffer = memoryview(bytearray(_STEP))  # one for all, as in client.py
        self._ready: deque[tuple[bytes, bytes]] = deque()
        self._more = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
        self._turn = threading.Lock()
        self._sending = threading.Lock()

    def run(self) -> None:
        """Serve until the socket ends; then end the whole process."""
        poll = select.epoll()
        for fd in (self._fd, self._more):
            poll.register(fd, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        try:
            while True:
                for fd, _ in poll.poll(None, 2):
                    if fd == self._more:
                        self._awoken()
                with self._turn:
                    frame = self._next()
                if frame is not None:
                    self._answer(*frame)
        except (OSError, frames.BrokenFrame):
            pass  # the server is gone
        self._service.close()
        os._exit(0)  # other threads may hang in a call

    def _next(self) -> tuple[bytes, bytes] | None:
        """The next frame; None: none has come.  Raises OSError at the end."""
        while not self._ready:
            try:
                size = self._socket.recv_into(self._buffer, 0, _socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            if not size:
                raise BrokenPipeError
            self._ready.extend(self._reader.feed(self._buffer[:size]))
        frame = self._ready.popleft()
        if self._ready:
            os.eventfd_write(self._more, 1)  # for another thread: the socket may have no more
        return frame

    def _awoken(self) -> None:
        try:
            os.eventfd_read(self._more)
        except BlockingIOError:
            pass  # another thread was faster

    def _answer(self, head: bytes, body: bytes) -> None:
        number, op, arguments = frames.decode_head(head)
        try:
            result, content = self._service.perform(op, arguments, body)
            pieces = frames.encode([number, result], content)
        except FilesError as error:
            pieces = frames.encode([number, None, str(error), error.kind, error.path])
        except Exception as bug:  # noqa: BLE001  one call must not end the others
            text = f"the file helper failed: {type(bug).__name__}: {bug}"
            pieces = frames.encode([number, None, text, "other", ""])
        with self._sending:
            for piece in pieces:
                view = memoryview(piece)
                while view:
                    view = view[os.write(self._fd, view) :]


def _greet(fd: int) -> None:
    """Pass root directory and mount namespace, as far as they can be opened."""
    passed: list[int] = []
    try:
        passed.append(os.open("/", os.O_PATH | os.O_DIRECTORY))
        passed.append(os.open("/proc/self/ns/mnt", os.O_RDONLY))
    except OSError:
        pass  # there is no /proc
    with_them = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("2i", *passed))]
    line = _socket.socket(fileno=fd)
    line.sendmsg([frames.GREETING], with_them if len(passed) == 2 else [])
    line.detach()
    for one in passed:
        os.close(one)


def main(arguments: list[str]) -> None:
    """Serve the fd that is given."""
    if arguments[1:] == ["greet"]:
        _greet(int(arguments[0]))
    from handrail.sandboxed_files.service import FileService

    helper = Helper(int(arguments[0]), FileService())
    for _ in range(THREADS - 1):
        threading.Thread(target=helper.run, daemon=True).start()
    helper.run()


if __name__ == "__main__":
    main(sys.argv[1:])
