"""Which names may come from another machine: a copy reads and writes nothing outside its root.

The other machine may be hostile.  Its names are checked here, by both sides of a copy; every
directory on the way is then opened by ``directory_fds.py`` without crossing a link, and a link at
the name itself is replaced, not followed.  Pure.
"""

from __future__ import annotations

from handrail.filesystem.errors import refusal, shown

_NO_NAMES = frozenset((b"", b".", b".."))


def are_sound(names: list[bytes]) -> bool:
    """Whether each is the name of an entry of a directory, all at once."""
    text = b"/".join(names)
    return _NO_NAMES.isdisjoint(names) and text.count(b"/") == len(names) - 1 and b"\0" not in text


def check_relative(path: bytes, *, alone: bool = False) -> None:
    """Refuse a path that could lead out of its root; raises FilesError.

    ``alone``: it must be one name.
    """
    names = path.split(b"/")
    if not _NO_NAMES.isdisjoint(names) or b"\0" in path or (alone and len(names) > 1):
        raise refusal(f"`{shown(path)}` is no name below the directory that is copied", path)
