"""The mounts of a file helper, through which this process asks the kernel itself.

A helper passes two descriptors when its sandbox stands: of its root directory, and of its mount
namespace.  A path that is opened below the first is resolved by the kernel in the helper's mounts,
with all that they hide, so the answer is the helper's own, without the way to another process.  The
second keeps these mounts together as long as it is open: when the last process of a namespace ends,
they come apart, and what one of them has hidden would be seen.

Only for calls that change nothing, and that ``filesystem/at_once.py`` answers: BlockingIOError
means to ask the helper.  The helper has none of root's rights to pass over the modes of files, so
a thread of root lays them down for the moment of the call.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import TypeVar

from handrail.filesystem import at_once
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
    """The files of a sandbox, as far as they can be told at once."""

    def __init__(self, root: int, namespace: int) -> None:
        self._root = root
        self._namespace = namespace

    @classmethod
    def of(cls, descriptors: list[int]) -> MountView | None:
        """The view by what a helper has passed; None: it has none of its own."""
        try:
            if len(descriptors) == 2:
                own = os.stat(_OWN_MOUNTS)
                if not os.path.samestat(os.fstat(descriptors[1]), own):
                    return cls(*descriptors)
        except OSError:
            pass  # no /proc here
        for fd in descriptors:
            os.close(fd)
        return None

    @property
    def closed(self) -> bool:
        """Whether its helper has ended."""
        return self._root < 0

    def close(self) -> None:
        """Let go of the mounts; harmless when repeated."""
        root, namespace = self._root, self._namespace
        self._root = self._namespace = -1
        if root >= 0:
            os.close(root)  # before the other: it is of use only while they are together
            os.close(namespace)

    def get_metadata(self, path: bytes) -> Metadata:
        return self._ask(at_once.get_metadata, path)

    def canonicalize(self, path: bytes) -> bytes:
        return self._ask(at_once.canonicalize, path)

    def read_file(self, path: bytes, most: int) -> bytes:
        return self._ask(at_once.read_file, path, most)

    def _ask(self, work: Callable[..., T], path: bytes, *more: int) -> T:
        """Do it with the rights of the helper; raises BlockingIOError, or FilesError."""
        if self._root < 0 or not path.startswith(b"/"):
            raise BlockingIOError
        rights = _Rights()
        if _capget(_HEADER, ctypes.byref(rights)):
            raise BlockingIOError
        low, high = rights.effective_low, rights.effective_high
        if not (low or high):
            return work(path, *more, root=self._root)
        rights.effective_low = rights.effective_high = 0
        if _capset(_HEADER, ctypes.byref(rights)):
            raise BlockingIOError
        try:
            return work(path, *more, root=self._root)
        finally:
            rights.effective_low, rights.effective_high = low, high
            _capset(_HEADER, ctypes.byref(rights))
