"""Deny patterns, expanded on the host when a command starts.

``glob_pattern`` has their language.  All patterns that begin at the same directory are looked for
in one walk of it (``directory_cache``).  Files that appear later are not covered.
"""

from __future__ import annotations

import os
import re

from handrail import glob_pattern
from handrail.sandbox.plan.safe_open import Refused
from handrail.sandbox.plan.tree_walk import TreeWalk
from handrail.sandbox.profile import BadIntent, Glob

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from handrail.sandbox.plan.directory import Directory
    from handrail.sandbox.plan.directory_cache import DirectoryCache
    from handrail.sandbox.plan.tree_walk import Found, Step

MOST_MATCHES = 8192
MOST_ENTRIES = 400_000
#: What stands for something else than itself in a pattern.
_SPECIAL = re.compile(r"[*?\[{\\]")

#: A path that matches and what it leads to, or a directory that we cannot read and nothing.
Match = tuple[bytes, bytes]


def translate(pattern: str) -> re.Pattern[str]:
    """Translate a pattern to a regular expression for paths below its base; raises BadIntent."""
    try:
        if any(".." in one.split("/") for one in glob_pattern.choices(pattern)):
            raise ValueError(
                f"the glob pattern `{pattern}` has `..` behind a wildcard or in a choice, where it"
                " would match nothing; write it without"
            )
        return glob_pattern.translate(pattern)
    except ValueError as error:
        raise BadIntent(str(error)) from None


def by_start(globs: Iterable[Glob]) -> dict[bytes, tuple[str, ...]]:
    """The patterns by the directory where the walk for them begins."""
    found: dict[bytes, dict[str, None]] = {}
    for glob in globs:
        start, pattern = _start(glob)
        found.setdefault(start, {})[pattern] = None
    return {start: tuple(patterns) for start, patterns in found.items()}


class NameFilter:
    """Tells quickly of most names that no pattern matches them."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        parts = {_literal(pattern) for pattern in patterns}
        shortest = [part for part in parts if not any(p != part and p in part for p in parts)]
        #: A name that matches has one of these in it.
        self._search = re.compile(b"|".join(map(re.escape, sorted(shortest)))).search

    def __call__(self, text: bytes) -> bool:
        """Whether a name, or one of several with ``/`` between them, may match."""
        return self._search(text) is not None


class GlobIndex(TreeWalk):
    """The matches of patterns below one directory; refreshed again and again.

    Among the results is a directory that we cannot read, with a slash at its end.
    """

    FIRST = 1
    by_names = True

    def __init__(
        self, directories: DirectoryCache, patterns: tuple[str, ...], depth: int | None
    ) -> None:
        """``directories`` has the names that ``NameFilter`` lets through."""
        super().__init__(directories)
        self._patterns = []
        for pattern in patterns:
            # Without ** a match is never deeper than the pattern.
            most = None if "**" in pattern else pattern.count("/") + 1
            if depth is not None:
                most = depth if most is None else min(most, depth)
            self._patterns.append((pattern, translate(pattern), most))
        limits = [most for _, _, most in self._patterns]
        self._levels = None if None in limits else max(most or 0 for most in limits)
        self._inside = len(self.root.rstrip(b"/")) + 1

    def is_large(self, most: int) -> bool:
        """Whether there are more directories than that to be examined, or nothing is known.

        If not, the ``refresh`` that follows at once has nothing left to do.
        """
        try:
            return self._found is None or (self.known() is None and self.look(most) is None)
        except Refused:
            return True  # as ``refresh`` will say

    def refresh(self) -> tuple[Match, ...]:
        """Search again: the paths that match now, and the directories that we cannot read.

        ``directories`` have begun a look.  Raises Refused when there is too much to examine.
        """
        found = self.known() or self.look()
        results = () if found is None else found.result
        # What a link leads to may change anywhere.
        matches = [(path, os.path.realpath(path)) for path in results if path[-1:] != b"/"]
        return (*matches, *((path[:-1], b"") for path in results if path[-1:] == b"/"))

    # --- TreeWalk -----------------------------------------------------------------------------

    def enter(self, path: bytes, level: int) -> int | None:
        if self._levels is not None and level >= self._levels:
            return None
        return None if self._match(path[self._inside :], level) else level + 1

    def below(self, level: int, entry: Directory) -> list[Step]:
        if entry.names:
            return super().below(level, entry)
        if self._levels is not None and level >= self._levels:
            return []
        return [(path, level + 1, True) for path in entry.below]

    def opens(self, path: bytes, entry: Directory) -> bool:
        return not entry.closed

    def visit(
        self, path: bytes, level: int, entry: Directory, found: Found
    ) -> tuple[list[bytes], list[Step]]:
        if entry.closed:
            return [path + b"/"], []
        found.seen += entry.count
        paths = [os.path.join(path, name) for name in entry.names]
        matched = [path for path in paths if self._match(path[self._inside :], level)]
        return matched, self.below(level, entry) if entry.below else []

    def missed(self, path: bytes, error: OSError) -> list[bytes]:
        # The one around it can be listed but not searched.
        return [os.path.dirname(path) + b"/"] if isinstance(error, PermissionError) else []

    def limit(self) -> int:
        return MOST_ENTRIES + 1

    def stop(self, found: Found) -> None:
        raise _too_much(self._patterns[0][0])

    def finish(self, found: Found) -> None:
        if found.seen > MOST_ENTRIES:
            self.stop(found)
        if sum(map(len, found.by_directory.values())) <= MOST_MATCHES:
            return
        counts = dict.fromkeys((pattern for pattern, _, _ in self._patterns), MOST_MATCHES)
        for directory, results in found.by_directory.items():
            level = 1 + os.path.join(directory, b"")[self._inside :].count(b"/")
            for path in results:
                pattern = self._match(path[self._inside :], level)
                if pattern is not None:
                    counts[pattern] -= 1
                    if counts[pattern] < 0:
                        raise _too_much(pattern)

    def _match(self, relative: bytes, level: int) -> str | None:
        text = glob_pattern.as_text(relative)
        for pattern, wanted, most in self._patterns:
            if (most is None or level <= most) and wanted.match(text):
                return pattern
        return None


def _too_much(pattern: str) -> Refused:
    return Refused(
        f"the glob pattern `{pattern}` has too much to look at (more than"
        f" {MOST_MATCHES} matches or {MOST_ENTRIES} names); deny directories by path, or"
        " set glob_scan_max_depth"
    )


def _literal(pattern: str) -> bytes:
    """The longest part that is in the name of whatever a pattern matches; may be empty."""
    if "{" in pattern or "[" in pattern or "\\" in pattern:
        return b""  # a choice or a set may have the slash in it
    name = pattern.rpartition("/")[2]
    if "**" in name:
        return b""  # it goes over several names
    return max(re.split(r"[*?]+", name), key=len).encode("utf-8", "surrogateescape")


def _start(glob: Glob) -> tuple[bytes, str]:
    """Where the walk begins: the literal prefix of the pattern is opened by name."""
    base = glob.base
    parts = glob.pattern.split("/")
    while len(parts) > 1 and not _SPECIAL.search(parts[0]):
        name = parts.pop(0)
        if name not in ("", "."):
            base = os.path.join(base, name.encode("utf-8", "surrogateescape"))
    return os.path.normpath(base), "/".join(parts)
