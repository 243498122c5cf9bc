"""The program of a sandboxed file helper: ``python -I -S program.py FD``.

It runs in a sandbox and answers frames on an inherited socket.  Its threads take turns at reading:
the thread with the turn reads one frame, passes the turn on and answers, so an answer needs no
hand-over and a hung call delays no other until all threads hang.  When the server closes its end,
or is gone, the helper ends.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from handrail.sandboxed_files.service import FileService

#: Concurrent calls.
THREADS = 8
_STEP = 256 * 1024


class Helper:
    """One socket, one service, some threads."""

    def __init__(self, fd: int, service: FileService) -> None:
        from handrail.sandboxed_files.frames import FrameReader

        self._fd = fd
        self._service = service
        self._reader = FrameReader()
        self._ready: deque[tuple[bytes, bytes]] = deque()
        self._turn = threading.Lock()
        self._sending = threading.Lock()

    def run(self) -> None:
        """Serve until the socket ends; then end the whole process."""
        from handrail.sandboxed_files.frames import BrokenFrame

        try:
            while True:
                with self._turn:
                    frame = self._next()
                if frame is None:
                    break
                self._answer(*frame)
        except (OSError, BrokenFrame):
            pass  # the server is gone
        self._service.close()
        os._exit(0)  # other threads may hang in a call

    def _next(self) -> tuple[bytes, bytes] | None:
        while not self._ready:
            data = os.read(self._fd, _STEP)
            if not data:
                return None
            self._ready.extend(self._reader.feed(data))
        return self._ready.popleft()

    def _answer(self, head: bytes, body: bytes) -> None:
        from handrail.errors import FilesError
        from handrail.sandboxed_files import frames

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


def main(arguments: list[str]) -> None:
    """Serve the fd that is given."""
    from handrail.sandboxed_files.service import FileService

    helper = Helper(int(arguments[0]), FileService())
    for _ in range(THREADS - 1):
        threading.Thread(target=helper.run, daemon=True).start()
    helper.run()


if __name__ == "__main__":
    # The package's directory comes last in sys.path: no file beside it shadows a module.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    __import__("handrail")
    sys.path.pop()
    main(sys.argv[1:])
