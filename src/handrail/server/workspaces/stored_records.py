"""The records of workspaces on disk: one file, to which each change is appended.

    +{"id": ...}     this workspace, as it is from now on
    -ID              it is gone

An append is one system call into the page cache, so it is made by the event loop itself; a file for
each workspace took six calls and a thread.  A line that was cut (the server was killed, the disk is
full) is as if it had never been begun.  When most of the file is of the past it is written anew.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os

import msgspec

from handrail import private_files
from handrail.server.workspaces.directories import Directories
from handrail.server.workspaces.record import Record

log = logging.getLogger(__name__)

_FILE = "records"
#: Bytes that may be of the past; beyond them, as many as are of the present.
_PAST_BYTES = 256 * 1024


class StoredRecords:
    """The records of one server, which alone uses the directory."""

    def __init__(self, directories: Directories) -> None:
        """Read those that are whole and have a directory; raises OSError."""
        self._directories = directories
        #: By id; belongs to the registry.  One without a name is not on disk.
        self.found = self._read()
        self._file = -1
        self._size = 0
        self._most = 0
        self.write_all()

    def _read(self) -> dict[str, Record]:
        found: dict[str, Record] = {}
        for line in (self._directories.read(_FILE) or b"").split(b"\n")[:-1]:
            try:
                if line.startswith(b"-"):
                    found.pop(line[1:].decode(), None)
                else:
                    record = msgspec.json.decode(line[1:], type=Record)
                    found[record.id] = record
            except (msgspec.DecodeError, UnicodeDecodeError):
                log.error("a record of a workspace cannot be read; it is dropped")
        # One without a directory: its release was under way.
        return {
            key: record
            for key, record in found.items()
            if os.path.isdir(self._directories.root(record.name))
        }

    def write(self, record: Record) -> None:
        """Write what a workspace is now; raises OSError."""
        self._append(_line(record))

    def remove(self, record: Record) -> None:
        """Write that a workspace is gone; its directory is, and that alone says it as well."""
        with contextlib.suppress(OSError):
            self._append(b"-%b\n" % record.id.encode())

    def write_all(self) -> None:
        """Write the file anew, with the present alone; raises OSError."""
        data = b"".join(_line(record) for record in self.found.values() if record.name)
        self._directories.write(data, _FILE)
        self.close()
        folder = os.open(self._directories.path, private_files.DIRECTORY)
        try:
            self._file = private_files.open_file(folder, _FILE, os.O_WRONLY | os.O_APPEND)
        finally:
            os.close(folder)
        self._size = len(data)
        self._most = 2 * len(data) + _PAST_BYTES

    def close(self) -> None:
        """Write no more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, line: bytes) -> None:
        if self._file < 0:
            return  # the server has stopped, and the next one reads
        if self._size > self._most:
            self.write_all()
        written = os.write(self._file, line)
        if written < len(line):
            os.ftruncate(self._file, self._size)
            raise OSError(errno.ENOSPC, "the disk is full")
        self._size += written


def _line(record: Record) -> bytes:
    return b"+%b\n" % msgspec.json.encode(record)
