"""A profile's mounts on this file system, and when they have to be computed again.

A plan records what it examined.  While that looks the same the plan is reused, and a second command
pays for a few ``lstat`` only.
"""

from __future__ import annotations

import os
import stat

from handrail.sandbox.bwrap.arguments import Step
from handrail.sandbox.bwrap.instance import others_at_work
from handrail.sandbox.plan.git_index import RepositoryIndex
from handrail.sandbox.plan.mount_aliases import MountTable
from handrail.sandbox.plan.placeholders import Placeholder, PlaceholderRegistry
from handrail.sandbox.private_tmp import Shown
from handrail.sandbox.profile import Access, Profile, parents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.sandbox.plan.trusted_tmp_names import SocketIndex
    from handrail.sandbox.tries import Tries

#: Examining this many directories takes a few milliseconds, short enough for a server's loop.
_LARGE = 500

Fact = tuple[int, ...] | None  # device, inode, kind, and for a pointer file its ctime


class Plan:
    """Mount arguments for one profile, with the fds they name.  Close it when done."""

    def __init__(self, profile: Profile, registry: PlaceholderRegistry, indexes: Indexes) -> None:
        self.profile = profile
        self.registry = registry
        self._indexes = indexes
        self.steps: list[Step] = []
        self.masks: tuple[Placeholder, ...] = ()
        #: The missing names that must not be made, under a profile without placeholders.
        self.refused: tuple[bytes, ...] = ()
        self.rules: dict[bytes, Access] = {}
        #: Paths of our own code: read-only in every plan, so no command can replace them.
        self.own_code: set[bytes] = set()
        #: Fd number in the child, fd here.
        self.passed: list[tuple[int, int]] = []
        self.repositories: dict[bytes, tuple[bytes, ...]] = {}
        self.facts: dict[tuple[bytes, bool], Fact] = {}
        self.changed: dict[bytes, int] = {}
        #: By shared directory: what is covered in it because programs of the host trust it.
        self.sockets: dict[bytes, tuple[bytes, ...]] = {}
        #: The mount table, if it made a difference.
        self.mount_table = b""
        self.arguments: list[bytes] = []
        #: Whether it was checked just now, for the very next use (``Planner.install``).
        self.fresh = False
        self.closed = False
        #: Whether it covers something below a writable path that was found, rather than named.
        self.found = False
        #: Rules for what was found in a shared directory, where it may vanish at any time.
        self.transient: set[bytes] = set()
        #: What is mounted before bwrap begins (``sandbox/bwrap/premount.py``).
        self.beforehand = b""
        #: Whether missing names are covered then, too.
        self.masks_beforehand = False
        #: What is shown instead of the host's /tmp.
        self.shown = Shown()

    def access(self, path: bytes) -> Access:
        """What may be done at a real path."""
        nearest = self.nearest(path)
        return Access.DENY if nearest is None else self.rules[nearest]

    def nearest(self, path: bytes) -> bytes | None:
        """The path of the rule that decides about a real path."""
        return next((place for place in (path, *parents(path)) if place in self.rules), None)

    def found_in_shared(self) -> frozenset[bytes]:
        """The repositories and sockets that it covers in shared directories."""
        shared = self.profile.shared
        repositories = (self.repositories[root] for root in shared if root in self.repositories)
        return frozenset().union(*repositories, *self.sockets.values())

    def still_true(self) -> bool:
        """Whether the file system looks as it did when this plan was made."""
        for (path, follow), fact in self.facts.items():
            now = look(path, follow)
            if now != fact:
                made = fact is None and now is not None and not follow
                if not (made and self.registry.is_mask(path, (now[0], now[1]))):  # type: ignore[index]
                    return False
        for path, changed in self.changed.items():
            try:
                if os.stat(path, follow_symlinks=False).st_ctime_ns != changed:
                    return False
            except OSError:
                return False
        for root, found in self.repositories.items():
            if self._indexes(root, shared=root in self.profile.shared).refresh() != found:
                return False
        for root, covered in self.sockets.items():
            if self._indexes.sockets(root).refresh() != covered:
                return False
        return self._indexes.mounts.text() == self.mount_table

    def close(self) -> None:
        """Close the fds."""
        self.closed = True
        for _, fd in self.passed:
            os.close(fd)
        self.passed = []


def look(path: bytes, follow: bool) -> Fact:
    """What is at a path, as far as a plan depends on it."""
    try:
        status = os.stat(path, follow_symlinks=follow)
    except OSError:
        return None
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFREG and path.endswith(b"/.git"):
        return status.st_dev, status.st_ino, kind, status.st_ctime_ns, status.st_size
    return status.st_dev, status.st_ino, kind


class Indexes:
    """The repositories below writable roots, cached from plan to plan."""

    def __init__(self) -> None:
        self._known: dict[bytes, RepositoryIndex] = {}
        self._sockets: dict[bytes, SocketIndex] = {}
        self.mounts = MountTable()

    def is_large(self, root: bytes) -> bool:
        """Whether there is much to examine below a root, or it was never examined."""
        index = self._known.get(root)
        return index is None or index.is_large(_LARGE)

    def sockets(self, root: bytes) -> SocketIndex:
        """What programs of the host trust in a shared directory."""
        index = self._sockets.get(root)
        if index is None:
            from handrail.sandbox.plan.trusted_tmp_names import (
                SocketIndex,  # for clients of the wire
            )

            index = self._sockets[root] = SocketIndex(root)
        return index

    def __call__(self, root: bytes, *, shared: bool) -> RepositoryIndex:
        index = self._known.get(root)
        if index is None:
            if len(self._known) >= 32:
                self._known.clear()
            index = self._known[root] = RepositoryIndex(root, shared=shared)
        return index


class Planner:
    """Makes plans and caches them."""

    MOST_PLANS = 16

    def __init__(self, registry: PlaceholderRegistry, *, fresh_proc: bool = True) -> None:
        self.registry = registry
        self._fresh_proc = fresh_proc
        #: By profile, and whether untrusted sandboxes ran and that made a difference.
        self._plans: dict[tuple[Profile, bool], Plan] = {}
        self._indexes = Indexes()

    def plan(self, profile: Profile, tries: Tries | None = None) -> Plan:
        """The plan for a profile, from memory if nothing has changed.

        After a try that came to nothing it is made anew.  Raises Refused, Exchanged among them.
        """
        failed = tries is not None and tries.failures > 0
        careful = failed or others_at_work()
        if failed:
            self.forget(profile)
        known = self._known(profile, careful)
        if known is None:
            known = self._made(profile, careful, None if tries is None else tries.found)
        # The last to go, from now on.
        key = profile, careful and known.found
        self._plans.pop(key, None)
        self._plans[key] = known
        while len(self._plans) > self.MOST_PLANS:
            self._plans.pop(next(iter(self._plans))).close()
        return known

    def _known(self, profile: Profile, careful: bool) -> Plan | None:
        """A cached plan that is still true, and made for running sandboxes if that matters."""
        for key in ((profile, False), (profile, True)):
            known = self._plans.get(key)
            if known is None:
                continue
            fresh, known.fresh = known.fresh, False
            if not fresh and not known.still_true():
                self._plans.pop(key).close()
            elif key[1] is (careful and known.found):
                return known
        return None

    def _made(self, profile: Profile, careful: bool, only: frozenset[bytes] | None = None) -> Plan:
        """``only``: what is covered of what is found in shared directories."""
        from handrail.sandbox.plan.resolve import Resolver  # which fills plans

        return Resolver(
            profile, self.registry, self._indexes, self._fresh_proc, careful, only
        ).build()

    def takes_long(self, profile: Profile) -> bool:
        """Whether examining may take so long that it belongs into a thread."""
        return bool(profile.globs) or any(
            self._indexes.is_large(rule.path)
            for rule in profile.rules
            if rule.access is Access.WRITE
        )

    def prepare(self, profile: Profile, careful: bool) -> Plan:
        """A plan that is true now, for ``install``; in any thread.  Raises as ``plan`` does."""
        for key in ((profile, careful), (profile, False)):
            known = self._plans.get(key)
            if known is not None and key[1] is (careful and known.found) and known.still_true():
                return known
        return self._made(profile, careful)

    def install(self, profile: Profile, careful: bool, plan: Plan) -> None:
        """Let the next call of ``plan`` use this one without another check."""
        if plan.closed:
            return  # evicted: too many other plans were made meanwhile
        key = profile, careful and plan.found
        before = self._plans.pop(key, None)
        if before is not None and before is not plan:
            before.close()
        plan.fresh = True
        self._plans[key] = plan

    def discard(self, plan: Plan) -> None:
        """Drop a prepared plan that is not needed any more."""
        if all(plan is not known for known in list(self._plans.values())):
            plan.close()

    def forget(self, profile: Profile) -> None:
        """Drop the cached plans of this profile."""
        for careful in (False, True):
            plan = self._plans.pop((profile, careful), None)
            if plan is not None:
                plan.close()

    def close(self) -> None:
        self._indexes.mounts.close()
        for plan in self._plans.values():
            plan.close()
        self._plans.clear()
