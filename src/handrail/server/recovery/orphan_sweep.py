"""Processes left by a keeper that was killed, which no server has adopted.

Their descriptors are lost, so they cannot be adopted; the next server on the same state directory
ends them.  They are known by the tag their keeper gave to everything it started (see
``keeper/spawn.py``), and the tag is in a file as long as a process with it may live.  A server
that finds a keeper ends what has the tags of all the others: a server that is killed just after
its keeper may already have started the next one, and that one knows only what it was given.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

from handrail import private_files
from handrail.process.recovery import tag_kill

_FILE = "marks"
_NEXT = "marks.next"
FILES = (_FILE, _NEXT)
_MOST_BYTES = 1 << 20
_MOST_DIGITS = 20


def remember(directory: int, mark: int) -> None:
    """Note that a keeper with this tag is running here."""
    if mark in _marks(directory):
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    file = private_files.open_file(directory, _FILE, flags)
    try:
        os.write(file, b"%d\n" % mark)
    finally:
        os.close(file)


def end(directory: int) -> int:
    """Kill what is left of keepers that are gone; returns how many processes."""
    marks = _marks(directory)
    if not marks:
        return 0
    ended = tag_kill.end_all_of(marks)
    forget(directory)
    return ended


def end_others(directory: int, keeper: int, known: Collection[int]) -> int:
    """Kill what keepers other than this one have left, except for the processes it was given.

    ``known``: the tags of those processes.  Returns how many processes were found.
    """
    others = [mark for mark in _marks(directory) if mark != keeper]
    if not others:
        return 0
    ended = tag_kill.end_all_of(others, known)
    needed = [mark for mark in others if tag_kill.started_any(mark, known)]
    with contextlib.suppress(OSError):  # then they are looked for once more
        _write(directory, [*needed, keeper])
    return ended


def any_left(directory: int) -> bool:
    """Whether a process lives that a keeper here has started."""
    marks = _marks(directory)
    return bool(marks) and tag_kill.any_of(marks)


def forget(directory: int) -> None:
    """Remove the records: nothing of any keeper is left here."""
    with contextlib.suppress(OSError):  # there is none, or it is looked through once more
        os.unlink(_FILE, dir_fd=directory)


def _marks(directory: int) -> list[int]:
    try:
        file = private_files.open_file(directory, _FILE, os.O_RDONLY)
    except FileNotFoundError:
        return []
    try:
        words = os.read(file, _MOST_BYTES).split()
    finally:
        os.close(file)
    # A word that a full disk has cut short may be a limit that other processes have.
    numbers = (int(word) for word in words if word.isdigit() and len(word) <= _MOST_DIGITS)
    return list(dict.fromkeys(mark for mark in numbers if mark >= tag_kill.SPAN))


def _write(directory: int, marks: list[int]) -> None:
    """Replace the file's content atomically."""
    data = b"".join(b"%d\n" % mark for mark in marks)
    private_files.replace_file(directory, _FILE, data, stage=_NEXT)
