"""A search through the directories of a tree that is repeated, and then examines what changed.

The first time all directories are visited, nearest first.  While the tree is watched
(``directory_cache``), the next time only those are that were reported since: a directory that came,
went or was replaced with all below it, one whose own names changed alone.  What was found elsewhere
is kept.  When very much was reported, or that is not known, everything is visited again.

Results are kept by the directory they were found in.  A search is never changed, only replaced, so
several threads may look at once: each begins with what the last one left.
"""

from __future__ import annotations

import os

from handrail.sandbox.profile import within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.sandbox.plan.directory import Directory
    from handrail.sandbox.plan.directory_cache import DirectoryCache

    #: A directory, the level it is visited at, and whether those below it are visited, too.
    Step = tuple[bytes, int, bool]

#: With more that has changed, visiting everything takes no longer.
_MOST_CHANGES = 256


class Found:
    """What one search has found."""

    __slots__ = ("by_directory", "mark", "result", "seen", "waiting")

    def __init__(self, mark: int) -> None:
        #: The change of the directories up to which it is true; 0: it is not used again.
        self.mark = mark
        self.by_directory: dict[bytes, tuple[bytes, ...]] = {}
        #: How much was examined.
        self.seen = 0
        #: What was left for the next time.
        self.waiting: list[Step] = []
        #: All results, sorted.
        self.result: tuple[bytes, ...] = ()


class TreeWalk:
    """The search; those that derive from it say what is visited and what is found there."""

    #: The level of the root.
    FIRST = 0
    #: Whether ``limit`` is for each look, which goes on with what the last one has left.
    by_portions = False
    #: Whether it is a number of names, not of directories.
    by_names = False

    def __init__(self, directories: DirectoryCache) -> None:
        self.directories = directories
        self.root = directories.root
        self._found: Found | None = None

    # --- what is searched for -----------------------------------------------------------------

    def enter(self, path: bytes, level: int) -> int | None:
        """The level at which a directory in one of this level is visited; None: it is not."""
        raise NotImplementedError

    def opens(self, path: bytes, entry: Directory) -> bool:
        """Whether the directories in one that is visited are, too."""
        raise NotImplementedError

    def visit(
        self, path: bytes, level: int, entry: Directory, found: Found
    ) -> tuple[list[bytes], list[Step]]:
        """What is found in a directory, and what is visited in it; counts what was examined."""
        raise NotImplementedError

    def missed(self, path: bytes, error: OSError) -> list[bytes]:
        """What is found in a directory that cannot be looked at."""
        return []

    def below(self, level: int, entry: Directory) -> list[Step]:
        """What is visited in a directory."""
        enter = self.enter
        inside = [(path, enter(path, level)) for path in entry.below]
        return [(path, into, True) for path, into in inside if into is not None]

    def limit(self) -> int:
        """How much is examined."""
        raise NotImplementedError

    def stop(self, found: Found) -> None:
        """There is more than that."""

    def finish(self, found: Found) -> None:
        """Everything was visited."""

    def needs_all(self, path: bytes) -> bool:
        """Whether a change there may matter in another way than by a visit."""
        return False

    # --- looking ------------------------------------------------------------------------------

    def known(self) -> Found | None:
        """What was found, if nothing has changed since."""
        found = self._found
        if found is None or found.waiting or found.mark != self.directories.mark:
            return None
        return found if self.directories.watched else None

    def look(self, most: int | None = None) -> Found | None:
        """Search; ``directories`` have begun a look.  None: that is more than ``most``."""
        mark = self.directories.mark
        found, steps = self._since(mark) or (Found(mark), None)
        if steps is None:
            if most is not None and self.directories.watched and len(self.directories) > most:
                return None
            steps = [(self.root, self.FIRST, True)]
        if not self._walk(found, steps, most):
            return None
        everything = {result for results in found.by_directory.values() for result in results}
        found.result = tuple(sorted(everything))
        if not self.directories.watched:
            found.mark = 0
        self._found = found
        return found

    def _since(self, mark: int) -> tuple[Found, list[Step]] | None:
        """What is still true of the last search, and what is to be visited; None: everything."""
        last = self._found
        if last is None or not last.mark or not self.directories.watched:
            return None
        changes = self.directories.changes(last.mark, mark)
        if changes is None or len(changes) > _MOST_CHANGES:
            return None
        found = Found(mark)
        found.by_directory = dict(last.by_directory)
        steps = list(last.waiting)
        whole = tuple(place + b"/" for place, below in changes.items() if below)
        if whole:
            for place in last.by_directory:
                if (place + b"/").startswith(whole):
                    del found.by_directory[place]
        for place, below in changes.items():
            if self.needs_all(place):
                return None
            found.by_directory.pop(place, None)
            level = self._level(place)
            if level is not None:
                steps.append((place, level, below))
        # Nearest first: what is found above may say that nothing below is visited.
        steps.sort(key=_depth)
        if not self.by_portions:
            found.seen = last.seen
            if last.seen + len(steps) > self.limit():
                return None  # it may be less by now
        return found, steps

    def _level(self, place: bytes) -> int | None:
        """The level at which a directory is visited; None: it is not."""
        level, path = self.FIRST, self.root
        if place == path:
            return level
        if not within(place, path):
            return None
        for name in place[len(path.rstrip(b"/")) + 1 :].split(b"/"):
            try:
                if not self.opens(path, self.directories.get(path)):
                    return None
            except OSError:
                return None
            path = os.path.join(path, name)
            into = self.enter(path, level)
            if into is None:
                return None
            level = into
        return level

    def _walk(self, found: Found, steps: list[Step], most: int | None) -> bool:
        """Visit directories and those below them; False: they are more than ``most``."""
        directories, limit, by_names = self.directories, self.limit(), self.by_names
        pending = 0
        while steps:
            pending += len(steps)
            if most is not None and pending > most:
                return False
            if most is None:
                directories.read_ahead([path for path, _, _ in steps[: limit - found.seen]])
            following: list[Step] = []
            known, watch = directories.known()
            for at, (path, level, below) in enumerate(steps):
                if found.seen >= limit:
                    if self.by_portions:
                        found.waiting = steps[at:] + following
                    self.stop(found)
                    return True
                try:
                    one = known.get(path)
                    entry = one if one and one.watch is watch else directories.get(path)
                except OSError as error:
                    results = self.missed(path, error)
                else:
                    if entry.plain:
                        found.seen += entry.count if by_names else 1
                        continue
                    results, inside = self.visit(path, level, entry, found)
                    if below:
                        following += inside
                if results:
                    found.by_directory[path] = tuple(results)
            steps = following
        self.finish(found)
        return True


def _depth(step: Step) -> int:
    return step[0].count(b"/")
