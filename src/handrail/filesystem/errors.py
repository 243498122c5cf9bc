"""File errors, in the words of the wire.

The system's own texts are sent as ``No such file or directory (os error 2)``.  Messages show names
that are not UTF-8 with replacement characters, since they become JSON; the ``path`` field keeps
every byte through surrogate escapes.
"""

from __future__ import annotations

import errno
import os
from types import TracebackType

from handrail.errors import FilesError

#: How callers may name a file.
NativePath = bytes | str

#: The sentence for a link where none is allowed (exec-server 0.166.0).
CONTAINS_LINK = "path contains a symbolic link"

_KINDS = {
    errno.ENOENT: "not_found",
    errno.EINVAL: "invalid_input",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EEXIST: "exists",
    errno.ENOTDIR: "not_a_directory",
    errno.EISDIR: "is_a_directory",
    errno.EROFS: "read_only",
    errno.EBUSY: "busy",
}


def kind_of(number: int) -> str:
    """Return the kind of file error that an errno means."""
    return _KINDS.get(number, "other")


def native(path: NativePath) -> bytes:
    """The path as the kernel wants it, without slashes at the end.

    The peer's URIs lose those slashes too, so ``link/`` names the link and ``file/`` the file.
    """
    raw = os.fsencode(path)
    if b"\0" in raw:
        raise FilesError("path contains a NUL byte", kind="invalid_input", path=os.fsdecode(raw))
    return raw.rstrip(b"/") or raw[:1]


def shown(path: bytes) -> str:
    """The path for a message."""
    return path.decode("utf-8", "replace")


def os_text(number: int) -> str:
    """An errno as the wire writes it."""
    return f"{os.strerror(number)} (os error {number})"


def os_error(number: int) -> OSError:
    """The exception for an errno."""
    return OSError(number, os.strerror(number))


def refusal(message: str, path: bytes, kind: str = "invalid_input") -> FilesError:
    """The error for a rule of ours, not of the kernel."""
    return FilesError(message, kind=kind, path=os.fsdecode(path))


def utf8_text(data: bytes, path: str = "") -> str:
    """The content of a file as text; raises FilesError with the peer's sentence."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            what = f"incomplete utf-8 byte sequence from index {error.start}"
        else:
            length = error.end - error.start
            what = f"invalid utf-8 sequence of {length} bytes from index {error.start}"
        raise FilesError(what, kind="invalid_input", path=path) from error


def named(error: FilesError) -> FilesError:
    """The error with its path in the sentence, for a reader far from the call."""
    text = str(error)
    if not error.path or error.path in text:
        return error
    path = shown(os.fsencode(error.path))
    return FilesError(f"{path}: {text}", kind=error.kind, path=error.path)


def not_a_file(path: bytes, *, follow: bool) -> FilesError:
    """The error for other than regular files; the peer has two sentences for it."""
    text = f"path `{shown(path)}` is not a file" if follow else "path is not a regular file"
    return refusal(text, path)


class _Translation:
    """A context manager without a generator, for each file call has one or more."""

    __slots__ = ("_follow", "_path")

    def __init__(self, path: bytes, follow: bool) -> None:
        self._path = path
        self._follow = follow

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A FilesError is an OSError too, which says all of it already.
        if isinstance(error, OSError) and not isinstance(error, FilesError):
            raise of_os_error(error, self._path, follow=self._follow) from error


def os_errors(path: bytes, *, follow: bool = True) -> _Translation:
    """Turn an OSError of the block into the FilesError it means for ``path``.

    Without ``follow`` the kernel returns ELOOP for any link at all; «too many levels» would then
    send the reader looking for a loop.
    """
    return _Translation(path, follow)


def of_os_error(error: OSError, path: bytes, *, follow: bool) -> FilesError:
    """The FilesError that an OSError means for ``path``."""
    if isinstance(error, FilesError):
        return error
    number = error.errno or errno.EIO
    text = CONTAINS_LINK if number == errno.ELOOP and not follow else os_text(number)
    return FilesError(text, kind=kind_of(number), path=os.fsdecode(path))
