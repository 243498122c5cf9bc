"""The files of programs that are forbidden as a whole, on this machine.

A rule like ``prefix_rule(["zap"], decision="forbidden")`` is about a name; a sandbox can cover the
file that the name leads to, and then no script, however it is written, runs or copies it.  Other
names of that file (``sudoedit`` of ``sudo``) are covered with it.  A file that is many programs
(busybox), or that a name leads to which is not forbidden (``python3`` beside ``python``, both links
to ``python3.12``), is left alone: covering it would take programs away that are not forbidden.
Names in directories that a command can write do not count, else it could uncover a program by
giving it more names.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from handrail.policy.context import TRUSTED_DIRECTORIES
from handrail.policy.rules import Decision, Policy, is_within

#: Limit of entries of writable directories that are searched for hard links to a file.
_MOST_ENTRIES = 20_000

#: A file with this many other names is many programs, and so is one that is ``sh`` as well.
_MANY_NAMES = 16
#: Files that are many programs even if only one link to them is installed.
_MULTI_CALL = frozenset({"busybox", "toybox", "coreutils", "toolbox"})

_Inode = tuple[int, int]


def forbidden_whole(policy: Policy) -> tuple[str, ...]:
    """The programs that no command may run, whatever their arguments."""
    found = (r.first for r in policy.rules if r.decision is Decision.FORBIDDEN and not r.rest)
    return tuple(dict.fromkeys(found))


def search_directories(path: str | None, home: str | None, cwd: str) -> tuple[str, ...]:
    """Where a command finds programs: its PATH, and what login shells put in front of it."""
    given = [os.path.join(cwd, place) for place in (path or os.defpath).split(os.pathsep)]
    own = [f"{home}/bin", f"{home}/.local/bin"] if home else []
    return tuple(dict.fromkeys([*given, *TRUSTED_DIRECTORIES, *own]))


@dataclass(frozen=True, slots=True)
class Found:
    """What a name leads to: files to cover, and (file, other name) for those not covered."""

    covered: tuple[str, ...] = ()
    shared: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class ProgramFiles:
    """Finds such files; caches the names in a directory until the directory changes."""

    _names: dict[str, tuple[tuple[int, ...], dict[_Inode, set[str]]]] = field(default_factory=dict)

    def find(
        self,
        names: Sequence[str],
        directories: Sequence[str],
        *,
        writable: Sequence[str] = (),
        needed: Iterable[str] = (),
        also: Sequence[str] = (),
        home: str | None = None,
    ) -> Found:
        """The files these names lead to.  ``needed`` are programs that the run itself starts with.

        ``writable``: directories that commands may write in, with everything below.  ``also``:
        further names that are forbidden as a whole.  ``home``: where hard links are looked for as
        well.
        """
        roots = tuple(os.path.realpath(root) for root in writable)
        spared = {status[1] for path in needed if (status := _look(path)) is not None}
        forbidden = {os.path.basename(name) for name in (*names, *also)}
        firm = [place for place in directories if not is_within(os.path.realpath(place), roots)]
        covered: dict[str, None] = {}
        shared: list[tuple[str, str]] = []
        for path in _candidates(names, directories):
            found = _look(path)
            if found is None or found[1] in spared:
                continue
            links, inode = found
            others = self._other_names(inode, firm) - forbidden
            if _is_many_programs(path, others, forbidden):
                shared.append((path, min(others)))
                continue
            real = os.path.realpath(path)
            covered[real] = None
            if links > 1:
                above = os.path.dirname(os.path.dirname(real))
                around = (*directories, *roots, above, *((home,) if home else ()))
                covered.update(dict.fromkeys(_hard_links(inode, links, around)))
        return Found(tuple(covered), tuple(shared))

    def _other_names(self, inode: _Inode, directories: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for place in directories:
            found |= self._names_in(place).get(inode, set())
        return found

    def _names_in(self, directory: str) -> dict[_Inode, set[str]]:
        """Which names lead to which file there, by links of either kind."""
        try:
            status = os.stat(directory)
        except OSError:
            return {}
        facts = status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns
        known = self._names.get(directory)
        if known is None or known[0] != facts:
            found: dict[_Inode, set[str]] = {}
            for entry in _entries(directory):
                try:
                    leads_to = entry.stat() if entry.is_symlink() else None
                except OSError:
                    continue  # a dangling link
                if leads_to is None:
                    inode = status.st_dev, entry.inode()
                else:
                    inode = leads_to.st_dev, leads_to.st_ino
                found.setdefault(inode, set()).add(entry.name)
            known = self._names[directory] = facts, found
        return known[1]


def _is_many_programs(path: str, others: set[str], forbidden: set[str]) -> bool:
    """Whether covering a file would take programs away that have names of their own."""
    real = os.path.basename(os.path.realpath(path))
    if real in forbidden:
        return len(others) >= _MANY_NAMES or "sh" in others
    # The name of the file itself is where the forbidden link leads, and no further program.
    alias = real not in _MULTI_CALL and os.path.basename(path) != "sh"
    return bool(others - {real} if alias else others)


def _candidates(names: Sequence[str], directories: Sequence[str]) -> Iterator[str]:
    for name in names:
        if "/" in name:
            yield name
        else:
            yield from (os.path.join(place, name) for place in directories)


def _look(path: str) -> tuple[int, _Inode] | None:
    """Link count and identity of a regular file; None for anything else."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode) or not os.path.isabs(path):
        return None
    return status.st_nlink, (status.st_dev, status.st_ino)


def _hard_links(inode: _Inode, count: int, places: Iterable[str]) -> Iterator[str]:
    """The names of a file: in these directories and below them, as far as that is bounded."""
    todo = deque(os.path.realpath(place) for place in dict.fromkeys(places))
    seen: set[str] = set()
    left = _MOST_ENTRIES
    while todo and left > 0 and count > 0:
        place = todo.popleft()
        if place in seen:
            continue
        seen.add(place)
        for entry in _entries(place):
            left -= 1
            if entry.inode() == inode[1] and _is(entry.path, inode):
                count -= 1
                yield entry.path
            elif entry.is_dir(follow_symlinks=False):
                todo.append(entry.path)


def _is(path: str, inode: _Inode) -> bool:
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == inode


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return []
