"""Open files of one connection, read and written in blocks.

How ``replace`` differs from the peer's server
----------------------------------------------
exec-server 0.166.0 truncates the file when it is opened and writes in place; a reader sees the file
grow, and a connection lost halfway leaves half a file.  Here blocks go to a stage beside the file
and ``close`` puts it in place (see ``replacement``).  A client that opens, writes, closes and then
reads cannot tell the difference; one that reads *before* closing sees the old content, or no file,
where the peer shows what has been written so far.  No recorded exchange does that, and no client
can rely on half a file.  In return:

* ``close_all`` (connection gone) and ``forget`` drop the stage: nothing has changed;
* after a write that failed for lack of space or by an input/output error, ``close`` refuses to
  install the incomplete content, unless the same block was written again with success;
* the last of several handles to be closed wins as a whole instead of mixing blocks.

Errors follow the peer: a failed read closes its handle, a failed write and any refused argument
keep it.  Reading a ``replace`` handle or writing a ``read`` one is EBADF.

Blocking calls from any number of threads.  A read in flight keeps its fd open when the handle is
closed meanwhile; closing a ``replace`` handle waits for writes in flight.
"""

from __future__ import annotations

import errno
import os
import threading
from enum import Enum

from handrail.errors import FilesError
from handrail.filesystem.errors import NativePath, native, os_error, os_errors, refusal
from handrail.filesystem.regular_file import open_regular, read_range
from handrail.filesystem.replacement import Replacement

MAX_HANDLES = 128
MAX_ID_BYTES = 32
MAX_BLOCK = 1024 * 1024
_MAX_OFFSET = 2**63 - 1

#: Errors of the disk, which leave a hole in the content.
_SPOILING = {errno.ENOSPC, errno.EDQUOT, errno.EIO}


class Mode(Enum):
    """What a handle is for."""

    READ = "read"
    REPLACE = "replace"


class _Handle:
    __slots__ = ("doomed", "fd", "lost", "path", "replacement", "users")

    def __init__(self, path: bytes, fd: int, replacement: Replacement | None) -> None:
        self.path = path
        self.fd = fd
        self.replacement = replacement
        self.users = 0
        #: The last call that uses it drops it.
        self.doomed = False
        #: Blocks that could not be written: offset -> length.
        self.lost: dict[int, int] = {}

    def drop(self) -> None:
        if self.replacement is not None:
            self.replacement.discard()
        elif self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class HandleTable:
    """The handles of one connection, by the client's names."""

    def __init__(self, limit: int = MAX_HANDLES) -> None:
        self._limit = limit
        #: None while the file is being opened: the name is taken already.
        self._handles: dict[str, _Handle | None] = {}
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._handles)

    def __contains__(self, handle_id: str) -> bool:
        return handle_id in self._handles

    def open(
        self, handle_id: str, path: NativePath, mode: Mode = Mode.READ, *, follow: bool = True
    ) -> None:
        """Open a regular file under a free name."""
        _check_id(handle_id)
        raw = native(path)
        with self._changed:
            if handle_id in self._handles:
                raise refusal(f"file handle `{handle_id}` already exists", raw)
            if len(self._handles) >= self._limit:
                text = f"at most {self._limit} file handles may be open per connection"
                raise refusal(text, raw)
            self._handles[handle_id] = None
        handle = None
        try:
            handle = _open(raw, mode, follow)
        finally:
            with self._changed:
                welcome = handle is not None and not self._closed
                if welcome:
                    self._handles[handle_id] = handle
                else:
                    del self._handles[handle_id]
        if not welcome:
            handle.drop()
            raise refusal("the connection is closed", raw, kind="other")

    def read_block(self, handle_id: str, offset: int, length: int) -> tuple[bytes, bool]:
        """Up to ``length`` bytes from ``offset``, and whether the file ended before them all."""
        _check_id(handle_id)
        _check_length("read", length)
        handle = self._use(handle_id)
        try:
            with os_errors(handle.path):
                if handle.replacement is not None:
                    raise os_error(errno.EBADF)
                if not 0 <= offset <= _MAX_OFFSET:
                    raise os_error(errno.EINVAL)
                data = read_range(handle.fd, offset, min(length, _MAX_OFFSET - offset))
        except FilesError:
            self.forget(handle_id)
            raise
        finally:
            self._release(handle)
        return data, len(data) < length

    def write_block(
        self, handle_id: str, offset: int, data: bytes | bytearray | memoryview
    ) -> None:
        """Write ``data`` at ``offset``; gaps between blocks are zero."""
        _check_id(handle_id)
        _check_length("write", len(data))
        if not 0 <= offset <= _MAX_OFFSET - len(data):
            text = "file write range exceeds the signed 64-bit file offset limit"
            raise FilesError(text, kind="invalid_input")
        handle = self._use(handle_id)
        try:
            with os_errors(handle.path):
                if handle.replacement is None:
                    raise os_error(errno.EBADF)
                try:
                    handle.replacement.write(data, offset)
                except OSError as error:
                    if error.errno in _SPOILING:
                        handle.lost[offset] = len(data)
                    raise
                if handle.lost.get(offset, len(data) + 1) <= len(data):
                    del handle.lost[offset]
        finally:
            self._release(handle)

    def close(self, handle_id: str) -> None:
        """Forget a handle; ``replace`` installs the content now.  Unknown names are fine."""
        _check_id(handle_id)
        with self._changed:
            handle = self._take(handle_id)
            if handle is None:
                return
            if handle.replacement is None:
                self._drop_unused(handle)
                return
            self._changed.wait_for(lambda: not handle.users)
        with os_errors(handle.path):
            if handle.lost:
                handle.drop()
                text = "the file was not replaced: a block of it could not be written"
                raise refusal(text, handle.path, kind="other")
            handle.replacement.commit()

    def forget(self, handle_id: str) -> None:
        """Close without installing anything."""
        with self._changed:
            handle = self._take(handle_id)
            if handle is not None:
                self._drop_unused(handle)

    def close_all(self) -> None:
        """Drop everything, install nothing, open nothing more: the connection is gone."""
        with self._changed:
            self._closed = True
            for name in list(self._handles):
                self.forget(name)

    def _take(self, handle_id: str) -> _Handle | None:
        handle = self._handles.get(handle_id)
        if handle is not None:  # one that is being opened cannot be closed yet
            del self._handles[handle_id]
        return handle

    def _drop_unused(self, handle: _Handle) -> None:
        handle.doomed = True
        if not handle.users:
            handle.drop()

    def _use(self, handle_id: str) -> _Handle:
        with self._changed:
            handle = self._handles.get(handle_id)
            if handle is None:
                text = f"unknown file handle `{handle_id}`"
                raise FilesError(text, kind="not_found")
            handle.users += 1
            return handle

    def _release(self, handle: _Handle) -> None:
        with self._changed:
            handle.users -= 1
            if not handle.users:
                self._changed.notify_all()
                if handle.doomed:
                    handle.drop()


def _open(raw: bytes, mode: Mode, follow: bool) -> _Handle:
    if mode is Mode.READ:
        return _Handle(raw, open_regular(raw, follow=follow)[0], None)
    with os_errors(raw, follow=follow):
        return _Handle(raw, -1, Replacement(raw, follow=follow))


def _check_id(handle_id: str) -> None:
    if len(handle_id.encode("utf-8", "surrogatepass")) > MAX_ID_BYTES:
        text = f"file handle ID must not exceed {MAX_ID_BYTES} bytes"
        raise FilesError(text, kind="invalid_input")


def _check_length(verb: str, length: int) -> None:
    if not 1 <= length <= MAX_BLOCK:
        text = f"file {verb} block length must be between 1 and {MAX_BLOCK}"
        raise FilesError(text, kind="invalid_input")
