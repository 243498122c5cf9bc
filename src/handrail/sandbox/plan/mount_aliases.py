"""Other paths at which the same files are mounted.

A denied directory may be mounted a second time (``mount --bind``), and hiding it at one path would
leave it readable at the other.  The kernel's mount table has the device and the mounted path in it
for each mount: the same part of the same device is the same directory.
"""

from __future__ import annotations

import os

from handrail import own_code
from handrail.sandbox.profile import parents, within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from handrail.own_code import Place

_TABLE = "/proc/self/mountinfo"
_FLAGS = os.O_RDONLY | os.O_CLOEXEC
#: Device, the path in it, the mount point.
Mount = tuple[bytes, bytes, bytes]
#: The last table and what ``_mounted_several_times`` has found in it: a plan asks for it often.
_parsed: tuple[bytes, list[Mount]] = (b"", [])


class MountTable:
    """The mounts of this process; read again only when the kernel reports a change.

    A check without a change is one ``poll`` (4 us; reading a short table takes 100).
    """

    def __init__(self) -> None:
        self._fd = -1
        self._process = 0
        self._text = b""
        #: Asks the kernel for a change.
        self._poll: Callable[[int], list[tuple[int, int]]] | None = None

    def text(self) -> bytes:
        """The table as the kernel writes it; empty if there is none."""
        # A forked process shares the fd, and each change is reported to only one of them.
        if self._process != os.getpid() or self._fd < 0 or self._changed():
            self.close()
            self._read()
        return self._text

    def close(self) -> None:
        if self._fd >= 0 and self._process == os.getpid():
            os.close(self._fd)
        self._fd = -1
        self._poll = None

    def _changed(self) -> bool:
        poll = self._poll
        if poll is None:
            import select  # not needed for the first command

            looked = select.poll()
            looked.register(self._fd, select.POLLPRI)
            poll = self._poll = looked.poll
        return bool(poll(0))

    def _read(self) -> None:
        self._process = os.getpid()
        self._text = b""
        try:
            self._fd = os.open(_TABLE, _FLAGS)
            while piece := os.read(self._fd, 1 << 16):
                self._text += piece
        except OSError:
            self.close()


def read() -> bytes:
    """The table once; empty where there is none."""
    table = MountTable()
    try:
        return table.text()
    finally:
        table.close()


def aliases(paths: Collection[bytes], text: bytes) -> dict[bytes, bytes]:
    """Other paths of these paths, or of parts of what is below them: other -> path."""
    return {
        alias: path for alias, path in other_names(paths, text).items() if _is_there(alias, path)
    }


def other_names(paths: Collection[bytes], text: bytes) -> dict[bytes, bytes]:
    """Like `aliases`, but includes paths that do not exist."""
    mounts = _mounted_several_times(text)
    found: dict[bytes, bytes] = {}
    if not mounts:
        return found
    for path in paths:
        around = [mount for mount in mounts if within(path, mount[2])]
        if not around:
            continue
        # The deepest, and of several at one path the last: it is on top.
        device, root, point = max(enumerate(around), key=lambda one: (len(one[1][2]), one[0]))[1]
        own = _joined(root, path, point)
        for other, part, place in mounts:
            if other != device:
                continue
            if within(own, part):
                found[_joined(place, own, part)] = path
            elif within(part, own):
                found[place] = path
    known = set(paths)
    return {
        alias: path
        for alias, path in found.items()
        if alias not in known and known.isdisjoint(parents(alias))
    }


def of_code(places: tuple[Place, ...], text: bytes) -> list[Place]:
    """The places of our own code, and other paths at which they are mounted too.

    A directory that only surrounds them (``own_code.AROUND``) counts as a whole, not in parts.
    """
    kinds = {real: kind for _, real, kind in places}
    found = list(places)
    for alias, real in sorted(aliases(kinds, text).items()):  # the outermost first
        if kinds[real] != own_code.AROUND or os.path.samefile(alias, real):
            found.append((alias, alias, kinds[real]))
    return found


def same(paths: Collection[bytes], text: bytes) -> dict[bytes, bytes]:
    """Other paths at which exactly these directories are mounted: other -> path."""
    return {
        alias: path
        for path in paths
        for alias in other_names((path,), text)  # which may lie below another of these
        if _is_same(alias, path)
    }


def _is_same(alias: bytes, path: bytes) -> bool:
    try:
        return os.path.samefile(alias, path)
    except OSError:
        return False


def _mounted_several_times(text: bytes) -> list[Mount]:
    """All mounts if any device is mounted more than once; most often none is."""
    global _parsed
    known, mounts = _parsed  # at once: plans are made in several threads
    if known != text:
        mounts = [_mount(line) for line in text.splitlines()]
        if len({device for device, _, _ in mounts}) == len(mounts):
            mounts = []
        _parsed = text, mounts
    return mounts


def _is_there(alias: bytes, path: bytes) -> bool:
    """Whether the alias is visible: another file system may be mounted on top."""
    try:
        return os.lstat(alias).st_dev == os.lstat(path).st_dev
    except OSError:
        return False


def _mount(line: bytes) -> Mount:
    fields = line.split(b" ", 5)
    return fields[2], _plain(fields[3]), _plain(fields[4])


def _plain(text: bytes) -> bytes:
    """Decode the octal escapes for blanks and the like."""
    if b"\\" not in text:
        return text
    first, *rest = text.split(b"\\")
    return first + b"".join(bytes((int(part[:3], 8),)) + part[3:] for part in rest)


def _joined(place: bytes, path: bytes, root: bytes) -> bytes:
    """``path``, which lies below ``root``, moved below ``place``."""
    rest = path[len(root.rstrip(b"/")) :].strip(b"/")
    return os.path.join(place, rest) if rest else place
