"""The mounts of a file helper, through which this process asks the kernel itself.

A helper passes two descriptors when its sandbox stands: of its root directory, and of its mount
namespace.  A path that is opened below the first is resolved by the kernel in the helper's mounts,
with all that they hide, so the answer is the helper's own, without the way to another process.  The
second keeps these mounts together as long as it is open: when the last process of a namespace ends,
they come apart, and what one of them has hidden would be seen.

The event loop calls what ``filesystem/at_once.py`` answers, and ``briefly`` what
``filesystem/other_root.py`` does; other threads, also that of a blocking caller, call the latter as
it is.  BlockingIOError means to try that, and then to ask the helper.  That has none of root's
rights to pass over the modes of files, so a thread of root lays them down for the moment of the
call.  The names that the helper is told to refuse are refused here too.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from handrail.filesystem import at_once, other_root
from handrail.filesystem.directories import DirectoryEntry
from handrail.filesystem.local import Metadata

T = TypeVar("T")

_VERSION_3 = 0x20080522
_OWN_MOUNTS = "/proc/self/ns/mnt"

_libc = ctypes.CDLL(None, use_errno=True)
_capget, _capset = _libc.capget, _libc.capset
_capget.argtypes = _capset.argtypes = (ctypes.c_char_p, ctypes.c_void_p)


class _Rights(ctypes.Structure):
    """The capabilities of a thread: of each the low and the high half."""

    _fields_ = [
        (f"{name}_{half}", ctypes.c_uint32)
        for half in ("low", "high")
        for name in ("effective", "permitted", "inheritable")
    ]


_HEADER = _VERSION_3.to_bytes(4, "little") + bytes(4)  # of this thread


class MountView:
    """The files of a sandbox, as far as its process is not needed."""

    def __init__(self, root: int, namespace: int, refused: Iterable[bytes] = ()) -> None:
        self._root = root
        self._namespace = namespace
        self._refused = frozenset(refused)
        #: Calls in threads; the last one closes what was closed meanwhile.
        self._calls = 0
        self._closed = False
        self._lock = threading.Lock()

    @classmethod
    def of(cls, descriptors: list[int], refused: Iterable[bytes] = ()) -> MountView | None:
        """The view by what a helper has passed; None: it has none of its own.

        ``refused``: the names that it is told to refuse, as paths in its mounts.
        """
        try:
            if len(descriptors) == 2:
                own = os.stat(_OWN_MOUNTS)
                # Refused names are found by the path of a descriptor, which begins at this root.
                top = os.readlink(f"/proc/self/fd/{descriptors[0]}")
                if not os.path.samestat(os.fstat(descriptors[1]), own) and top == "/":
                    return cls(descriptors[0], descriptors[1], refused)
        except OSError:
            pass  # no /proc here
        for fd in descriptors:
            os.close(fd)
        return None

    @property
    def closed(self) -> bool:
        """Whether its helper has ended."""
        return self._closed

    def close(self) -> None:
        """Let go of the mounts, once no thread uses them; harmless when repeated."""
        with self._lock:
            self._closed = True
            self._let_go()

    def _let_go(self) -> None:
        root, namespace = self._root, self._namespace
        if root >= 0 and not self._calls:
            self._root = self._namespace = -1
            os.close(root)  # before the other: it is of use only while they are together
            os.close(namespace)

    # --- on the event loop -----------------------------------------------------------------

    def get_metadata(self, path: bytes) -> Metadata:
        return self._ask(at_once.get_metadata, path)

    def canonicalize(self, path: bytes) -> bytes:
        return self._ask(at_once.canonicalize, path)

    def read_file(self, path: bytes, most: int) -> bytes:
        return self._ask(at_once.read_file, path, most)

    def _ask(self, work: Callable[..., T], path: bytes, *more: int) -> T:
        """Do it with the rights of the helper; raises BlockingIOError, or FilesError."""
        if self._closed or not path.startswith(b"/"):
            raise BlockingIOError
        return _without_rights(work, path, *more, root=self._root)

    # --- in a thread, or briefly on the event loop -------------------------------------------

    def read_directory(self, path: bytes, *, briefly: bool = False) -> list[DirectoryEntry]:
        return self._do(other_root.read_directory, path, briefly=briefly)

    def create_directory(self, path: bytes, *, recursive: bool, briefly: bool = False) -> None:
        self._change(other_root.create_directory, path, recursive=recursive, briefly=briefly)

    def remove(self, path: bytes, *, force: bool, briefly: bool = False) -> None:
        self._change(other_root.remove, path, force=force, briefly=briefly)

    def write_file(self, path: bytes, data: bytes, *, briefly: bool = False) -> None:
        self._change(other_root.write_file, path, data, briefly=briefly)

    def copy(self, source: bytes, destination: bytes, *, briefly: bool = False) -> None:
        self._change(other_root.copy, source, destination, briefly=briefly)

    def _change(self, work: Callable[..., None], *given: bytes, **options: bool) -> None:
        self._do(work, *given, **options, refused=self._refused)

    def _do(self, work: Callable[..., T], *given: Any, **options: Any) -> T:
        """Do it while the mounts are held; raises BlockingIOError, or FilesError."""
        held = False
        try:
            with self._lock:
                if self._closed:
                    raise BlockingIOError
                self._calls += 1
                held = True
            return _without_rights(work, *given, **options, root=self._root)
        finally:
            if held:
                self._done()

    def _done(self) -> None:
        with self._lock:
            self._calls -= 1
            if self._closed:
                self._let_go()


def _without_rights(work: Callable[..., T], *given: Any, **options: Any) -> T:
    """Do it with none of root's rights, which this thread has again afterwards.

    Also if a signal handler raises at any moment of it: the last step is one call.
    """
    rights = _Rights()
    before = ctypes.byref(rights)
    if _capget(_HEADER, before):
        raise BlockingIOError
    if not (rights.effective_low or rights.effective_high):
        return work(*given, **options)
    fewer = _Rights.from_buffer_copy(rights)
    fewer.effective_low = fewer.effective_high = 0
    try:
        if _capset(_HEADER, ctypes.byref(fewer)):
            raise BlockingIOError
        return work(*given, **options)
    finally:
        _capset(_HEADER, before)
