"""Landlock rules that leave out handrail's own files (``handrail.private_places``).

Landlock grants trees and cannot exclude anything in one.  So a readable tree that holds a private
place is not granted as a whole: what lies *beside* the way to it is granted entry by entry, and the
directories on the way can only be listed.  A writable tree that holds one is refused.
"""

from __future__ import annotations

import os
import stat

from handrail import private_places
from handrail.sandbox.landlock.ruleset import Refusal, Rules
from handrail.sandbox.profile import within

#: Limit of entries granted beside the ways; more take longer than a command should.
_MOST = 20_000


def without_places(rules: Rules, private: tuple[bytes, ...]) -> Rules | Refusal:
    """Remove our own files from the rules, or say why that cannot be done."""
    places = set()
    for path in private:
        real = os.path.realpath(path)
        there = os.path.lexists(real)
        for root in rules.writable:
            if private_places.is_workspace(root):
                continue
            if within(root, real) or (within(real, root) and _matters(path, there)):
                shown, above = os.fsdecode(real), os.fsdecode(root)
                return Refusal(f"hiding {shown}, where our own files are, below {above}")
        if there and not private_places.is_readable(path):
            places.add(real)
    readable, listable, pieces = [], [], []
    for root in rules.readable:
        if private_places.is_workspace(root):
            readable.append(root)
            continue
        if any(within(root, place) for place in places):
            return Refusal(f"reading {os.fsdecode(root)}, where our own files are")
        if not any(within(place, root) for place in places):
            readable.append(root)
            continue
        listable.append(root)
        pieces += _beside(root, places)
        if len(pieces) > _MOST:
            return Refusal(f"hiding our own files among more than {_MOST} others")
    return rules._replace(readable=tuple(readable), listable=tuple(listable), beside=tuple(pieces))


def _matters(path: bytes, there: bool) -> bool:
    """Whether the place exists or is in use now; one that only earlier versions used is ignored."""
    return there or not private_places.is_retired(path)


def _beside(directory: bytes, places: set[bytes]) -> list[bytes]:
    """Everything in a directory but the places in it."""
    found = []
    try:
        names = os.listdir(directory)
    except OSError:
        return []  # the command cannot read it either
    for name in names:
        path = os.path.join(directory, name)
        if path in places:
            continue
        if any(within(place, path) for place in places):
            found += _beside(path, places)
        elif not _is_link(path):
            found.append(path)  # the target of a link has a rule of its own, or none
    return found


def _is_link(path: bytes) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError:
        return True
