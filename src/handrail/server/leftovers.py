"""Processes whose server and keeper were both killed.

Nobody has their descriptors any more, so they cannot be gone on with; they are ended by the next
server on the same state directory.  They are known by the mark their keeper gave to everything it
started (see ``keeper/spawn.py``), and the mark is in a file as long as that keeper may live.
"""

from __future__ import annotations

import contextlib
import os

from handrail import private_places
from handrail.process import family

_FILE = "marks"


def remember(directory: int, mark: int) -> None:
    """A keeper with this mark is at work here."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    file = private_places.open_file(directory, _FILE, flags)
    try:
        os.write(file, b"%d\n" % mark)
    finally:
        os.close(file)


def end(directory: int) -> int:
    """Kill what is left of keepers that are gone; how many processes that were."""
    try:
        file = private_places.open_file(directory, _FILE, os.O_RDONLY)
    except FileNotFoundError:
        return 0
    try:
        marks = [int(line) for line in os.read(file, 65_536).split() if line.isdigit()]
    finally:
        os.close(file)
    ended = family.end_all_of(marks)
    forget(directory)
    return ended


def forget(directory: int) -> None:
    """Nothing is left of any keeper here."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_FILE, dir_fd=directory)
