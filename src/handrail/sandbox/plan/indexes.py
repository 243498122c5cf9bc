"""What was found below the directories of plans, cached from plan to plan."""

from __future__ import annotations

import os

from handrail import private_places
from handrail.sandbox.plan.directory_cache import DirectoryCache
from handrail.sandbox.plan.git_index import RepositoryIndex
from handrail.sandbox.plan.mount_aliases import MountTable
from handrail.sandbox.profile import Access

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from handrail.sandbox.plan.globs import GlobIndex
    from handrail.sandbox.plan.placeholders import PlaceholderRegistry
    from handrail.sandbox.plan.trusted_tmp_names import SocketIndex
    from handrail.sandbox.profile import Glob, Profile

#: Examining this many directories takes a few milliseconds, short enough for a server's loop.
_LARGE = 500
#: The same for a workspace of the server that was not examined yet, on a disk that may be slow.
_LARGE_UNKNOWN = 50
#: How many roots are remembered.
MOST_INDEXES = 64

#: A root, the patterns that begin there and how deep they are looked for; whether it is shared.
TreeKey = tuple[bytes, tuple[str, ...], int | None, bool]


class Tree:
    """The directories below one root, and what is found in them."""

    def __init__(self, key: TreeKey, registry: PlaceholderRegistry) -> None:
        root, patterns, depth, shared = key
        concerns = None
        if patterns:
            from handrail.sandbox.plan import globs  # only when there are any

            concerns = globs.NameFilter(patterns)
        only_of = os.geteuid() if shared else None
        self.directories = DirectoryCache(root, concerns, registry.is_mask, only_of)
        self.repositories = RepositoryIndex(self.directories, shared=shared)
        self.globs: GlobIndex | None = None
        if patterns:
            self.globs = globs.GlobIndex(self.directories, patterns, depth)


class Indexes:
    """The trees, the names in shared directories, and the mount table."""

    def __init__(self, registry: PlaceholderRegistry) -> None:
        self._registry = registry
        self._trees: dict[TreeKey, Tree] = {}
        self._sockets: dict[bytes, SocketIndex] = {}
        #: The last patterns of a profile, by where they begin.
        self._starts: tuple[tuple[Glob, ...], dict[bytes, tuple[str, ...]]] = ((), {})
        #: The last profile that was asked about, and the trees that it is examined in.
        self._examined: tuple[Profile | None, list[TreeKey]] = (None, [])
        self._looks = iter(range(1, 1 << 62))
        #: The number of the last look, and the mount table when it began.
        self._look = 0, b""
        self.mounts = MountTable()

    def look(self) -> bytes:
        """Begin to examine everything anew; the mount table."""
        table = self.mounts.text()
        self._look = next(self._looks), table
        return table

    def repositories(self, root: bytes, profile: Profile) -> RepositoryIndex:
        """The repositories below a writable root."""
        return self.tree(self._key(root, profile)).repositories

    def globs(self, profile: Profile) -> Iterator[tuple[TreeKey, GlobIndex]]:
        """The matches of a profile's patterns."""
        for start in self._patterns(profile):
            key = self._key(start, profile)
            index = self.tree(key).globs
            assert index is not None  # noqa: S101 (there are patterns)
            yield key, index

    def keys_of(self, profile: Profile, roots: Iterable[bytes]) -> list[TreeKey]:
        """The trees of writable roots and patterns that are not shared, each once."""
        shared = profile.shared
        places = sorted({*roots, *self._patterns(profile)}.difference(shared))
        return [self._key(place, profile) for place in places]

    def tree(self, key: TreeKey) -> Tree:
        """A tree as it is since the last ``look``."""
        found = self._trees.get(key)
        if found is None:
            if len(self._trees) >= MOST_INDEXES:
                old = self._trees.pop(next(iter(self._trees)), None)  # or another thread did
                if old is not None:
                    old.directories.close()
            found = self._trees[key] = Tree(key, self._registry)
        found.directories.refresh(*self._look)
        return found

    def _patterns(self, profile: Profile) -> dict[bytes, tuple[str, ...]]:
        known, starts = self._starts
        if known is not profile.globs:
            from handrail.sandbox.plan import globs  # only when there are any

            starts = globs.by_start(profile.globs) if profile.globs else {}
            self._starts = profile.globs, starts
        return starts

    def _key(self, root: bytes, profile: Profile) -> TreeKey:
        patterns = self._patterns(profile).get(root, ()) if profile.globs else ()
        depth = profile.glob_depth if patterns else None
        return root, patterns, depth, root in profile.shared

    def is_large(self, root: bytes, profile: Profile) -> bool:
        """Whether there is much to examine below a root, or how much is not known."""
        key = self._key(root, profile)
        if key in self._trees:
            return self.tree(key).repositories.is_large(_LARGE)
        if not private_places.is_workspace(root):
            return True
        return self.tree(key).repositories.is_large(_LARGE_UNKNOWN)

    def take_reports(self, profile: Profile) -> None:
        """Take what was reported of a profile's trees, unless that takes a while."""
        if self.much_has_changed(profile):
            return
        self.look()
        for tree in self._known_trees(profile):
            if tree.directories.watched:
                tree.directories.refresh(*self._look)

    def much_has_changed(self, profile: Profile) -> bool:
        """Whether taking what was reported of a profile's trees takes a while."""
        trees = self._known_trees(profile)
        return any(tree.directories.has_much_to_take() for tree in trees)

    def _known_trees(self, profile: Profile) -> list[Tree]:
        """The trees of a profile that were looked at."""
        known, keys = self._examined
        if known is not profile:
            places = {rule.path for rule in profile.rules if rule.access is Access.WRITE}
            places.update(self._patterns(profile))
            keys = [self._key(place, profile) for place in places]
            self._examined = profile, keys
        return [tree for tree in map(self._trees.get, keys) if tree is not None]

    def has_many_names(self, profile: Profile) -> bool:
        """Whether there is much to examine for patterns, or how much is not known."""
        for start in self._patterns(profile):
            key = self._key(start, profile)
            index = self.tree(key).globs if key in self._trees else None
            if index is None or index.is_large(_LARGE_UNKNOWN):
                return True
        return False

    def sockets(self, root: bytes) -> tuple[bytes, ...]:
        """The names in a shared directory that programs of the host trust now."""
        index = self._sockets.get(root)
        if index is None:
            from handrail.sandbox.plan.trusted_tmp_names import (
                SocketIndex,  # for clients of the wire
            )

            index = self._sockets[root] = SocketIndex(root)
        return index.refresh(self.mounts.text())

    def close(self) -> None:
        """Close all descriptors."""
        self.mounts.close()
        for tree in self._trees.values():
            tree.directories.close()
        for index in self._sockets.values():
            index.close()
        self._trees.clear()
