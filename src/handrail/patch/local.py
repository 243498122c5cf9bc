"""The files of this machine, as the patch tool sees them.  Plain syscalls.

Writing goes into the existing file, so its mode, owner and links stay.
"""

from __future__ import annotations

import errno
import os
import stat

from handrail.errors import FilesError

READ_LIMIT = 512 * 1024 * 1024
_BLOCK = 1024 * 1024

_KINDS = {
    errno.ENOENT: "not_found",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EROFS: "permission_denied",
    errno.EEXIST: "exists",
    errno.ENOTDIR: "not_a_directory",
    errno.EISDIR: "is_a_directory",
    errno.EFBIG: "too_large",
    errno.EINVAL: "invalid_input",
}

# The tool whose texts we keep is linked with musl, which words these differently from glibc.
_WORDS = {
    errno.ELOOP: "Symbolic link loop",
    errno.ENAMETOOLONG: "Filename too long",
    errno.EIO: "I/O error",
    errno.EBUSY: "Resource busy",
    errno.EMFILE: "No file descriptors available",
    errno.ENOMEM: "Out of memory",
    errno.EDQUOT: "Quota exceeded",
}


def system_text(number: int) -> str:
    """The system's sentence for an errno, as the patch tool prints it."""
    return f"{_WORDS.get(number) or os.strerror(number)} (os error {number})"


class LocalFiles:
    """``Files`` on this machine (see ``apply``)."""

    def read(self, path: str) -> bytes:
        """The bytes of a regular file; links are followed."""
        try:
            # Non-blocking: a pipe without a writer would block us for ever.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                return _read_regular(descriptor, path)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _failed(error, path) from error

    def write(self, path: str, data: bytes) -> None:
        """Replace a file's content, creating it if needed; its directory must exist.

        Truncated only after writing: a full disk then leaves the old length, not an empty file.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            descriptor = os.open(path, flags, 0o666)
            try:
                os.set_blocking(descriptor, True)
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    os.ftruncate(descriptor, len(data))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _failed(error, path) from error

    def copy(self, source: str, path: str) -> None:
        """Create an empty file with the mode of another."""
        try:
            mode = stat.S_IMODE(os.stat(source).st_mode)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(path, flags, mode)
            try:
                os.fchmod(descriptor, mode & 0o777)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _failed(error, path) from error

    def remove(self, path: str) -> None:
        """Remove a file; a link itself, not its target.

        Refused: directories, and links that lead to one or nowhere.
        """
        try:
            if stat.S_ISDIR(os.stat(path).st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            os.unlink(path)
        except OSError as error:
            raise _failed(error, path) from error

    def mkdir(self, path: str) -> None:
        """Make one directory; its parent must exist."""
        try:
            os.mkdir(path)
        except OSError as error:
            raise _failed(error, path) from error

    def rmdir(self, path: str) -> None:
        """Remove one empty directory."""
        try:
            os.rmdir(path)
        except OSError as error:
            raise _failed(error, path) from error


def _read_regular(descriptor: int, path: str) -> bytes:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        kind = "is_a_directory" if stat.S_ISDIR(status.st_mode) else "invalid_input"
        raise FilesError(f"path `{path}` is not a file", kind=kind, path=path)
    parts: list[bytes] = []
    size = 0
    while max(size, status.st_size) <= READ_LIMIT:  # the latter is 0 in /proc
        part = os.read(descriptor, _BLOCK)
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    sentence = f"file is too large to read: limit is {READ_LIMIT} bytes"
    raise FilesError(sentence, kind="too_large", path=path)


def _failed(error: OSError, path: str) -> FilesError:
    number = error.errno or 0
    return FilesError(system_text(number), kind=_KINDS.get(number, "other"), path=path)
