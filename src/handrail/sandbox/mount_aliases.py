"""Other paths at which the same files are mounted.

A directory that is denied may be mounted a second time (``mount --bind``), and hiding it at one
path would leave it readable at the other.  The kernel's table of mounts has, for each, the device
and the path in it that is mounted: what lies in the same part of the same device is the same.
"""

from __future__ import annotations

import os

from handrail.sandbox.profile import within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

_TABLE = "/proc/self/mountinfo"
#: Device, the path in it, where it is mounted.
Mount = tuple[bytes, bytes, bytes]


def table() -> bytes:
    """The mounts of this process, as the kernel writes them; empty where there is no such table."""
    try:
        with open(_TABLE, "rb") as file:
            return file.read()
    except OSError:
        return b""


def aliases(paths: Collection[bytes], text: bytes) -> dict[bytes, bytes]:
    """Where else these paths, or parts of what is below them, are to be found: other -> path."""
    mounts = [_mount(line) for line in text.splitlines()]
    found: dict[bytes, bytes] = {}
    for path in paths:
        around = [mount for mount in mounts if within(path, mount[2])]
        if not around:
            continue
        # The deepest, and of several at one place the last: it lies on top.
        device, root, point = max(enumerate(around), key=lambda one: (len(one[1][2]), one[0]))[1]
        own = _joined(root, path, point)
        for other, part, place in mounts:
            if other != device:
                continue
            if within(own, part):
                found[_joined(place, own, part)] = path
            elif within(part, own):
                found[place] = path
    return {
        alias: path
        for alias, path in found.items()
        if not any(within(alias, denied) for denied in paths) and _is_there(alias, path)
    }


def _is_there(alias: bytes, path: bytes) -> bool:
    """Whether it is to be seen: another file system may be mounted on top."""
    try:
        return os.lstat(alias).st_dev == os.lstat(path).st_dev
    except OSError:
        return False


def _mount(line: bytes) -> Mount:
    fields = line.split(b" ", 5)
    return fields[2], _plain(fields[3]), _plain(fields[4])


def _plain(text: bytes) -> bytes:
    """Without the octal numbers that stand for blanks and their like."""
    if b"\\" not in text:
        return text
    first, *rest = text.split(b"\\")
    return first + b"".join(bytes((int(part[:3], 8),)) + part[3:] for part in rest)


def _joined(place: bytes, path: bytes, root: bytes) -> bytes:
    """``path``, which lies below ``root``, as it lies below ``place``."""
    rest = path[len(root.rstrip(b"/")) :].strip(b"/")
    return os.path.join(place, rest) if rest else place
