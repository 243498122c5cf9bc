"""Directories for temporary files, one per session, removed with it.

A session outlives its server, so the path is in the session's note and, in case the keeper
dies as well, in a file of the state directory.  Without a state directory the sessions end with
the server, and the directories are locked as those of other users of ``temp_dirs`` are.
"""

from __future__ import annotations

import contextlib
import os

from handrail import private_files
from handrail.sandbox.temp_dirs import TempDir, clear, usual_place

_PREFIX = "handrail-session-"
FILE = "temporary"


class SessionTempDirs:
    """The temporary directories of one server."""

    def __init__(self) -> None:
        #: The state directory, where the paths are recorded, if there is one.
        self.directory: int | None = None
        self._held: dict[bytes, TempDir] = {}

    def make(self) -> bytes:
        """Make a directory; raises OSError."""
        if self.directory is None:
            held = TempDir()
            self._held[held.path] = held
            return held.path
        path = os.path.join(usual_place(), f"{_PREFIX}{os.urandom(8).hex()}".encode())
        _note(self.directory, path)  # first: what is not written down stays for ever
        os.close(private_files.make_directory(path))
        return path

    def remove(self, path: bytes) -> None:
        """Remove the directory; its session is over."""
        held = self._held.pop(path, None)
        if held is not None:
            held.remove()
        else:
            clear(path)


def clear_all(directory: int) -> None:
    """Remove all: nothing is left of any session of this state directory."""
    try:
        file = private_files.open_file(directory, FILE, os.O_RDONLY)
    except FileNotFoundError:
        return
    with open(file, "rb") as lines:
        for path in lines.read().split(b"\0"):
            name = os.path.basename(path)
            with contextlib.suppress(OSError):
                if name.startswith(_PREFIX.encode()) and os.lstat(path).st_uid == os.geteuid():
                    clear(path)
    os.unlink(FILE, dir_fd=directory)


def _note(directory: int, path: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    file = private_files.open_file(directory, FILE, flags)
    try:
        os.write(file, path + b"\0")
    finally:
        os.close(file)
