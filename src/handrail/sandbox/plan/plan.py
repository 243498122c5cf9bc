"""A profile on this file system: its mounts, and when they have to be thought of anew.

A plan remembers what it looked at.  As long as that looks the same it can be used again, and a
second command pays for a few ``lstat`` only.
"""

from __future__ import annotations

import os
import stat

from handrail.sandbox.bwrap.arguments import Step
from handrail.sandbox.bwrap.instance import others_at_work
from handrail.sandbox.plan.git_index import RepositoryIndex
from handrail.sandbox.plan.mount_aliases import MountTable
from handrail.sandbox.plan.placeholders import Placeholder, PlaceholderRegistry
from handrail.sandbox.plan.safe_open import Exchanged
from handrail.sandbox.private_tmp import Shown
from handrail.sandbox.profile import Access, Profile, parents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.errors import SandboxError
    from handrail.sandbox.plan.trusted_tmp_names import SocketIndex

#: How often one start is begun anew, in all, because the file system moves under it.
MOST_TRIES = 16

#: So many directories are looked at in a few milliseconds, by who serves others as well.
_LARGE = 500

Fact = tuple[int, ...] | None  # device, inode, kind, and for a pointer file when it was changed


class Tries:
    """How often one start may still be begun anew; one object from its plan to its command.

    A plan that is overtaken while it is made, a name that appears before it is covered and a mount
    point that is gone when bubblewrap comes to it have one cause: other programs work in the same
    directories.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MOST_TRIES

    def spend(self, problem: SandboxError) -> None:
        """Count one more; raises the problem when there are too many."""
        self.left -= 1
        if self.left <= 0:
            raise problem


class Plan:
    """Mount arguments for one profile, with the descriptors they name.  Close it when done."""

    def __init__(self, profile: Profile, registry: PlaceholderRegistry, indexes: Indexes) -> None:
        self.profile = profile
        self.registry = registry
        self._indexes = indexes
        self.steps: list[Step] = []
        self.masks: tuple[Placeholder, ...] = ()
        self.rules: dict[bytes, Access] = {}
        #: Those of our own code: read-only in every plan, so no command can exchange them.
        self.own_code: set[bytes] = set()
        #: Number in the child -> descriptor here.
        self.passed: list[tuple[int, int]] = []
        self.repositories: dict[bytes, tuple[bytes, ...]] = {}
        self.facts: dict[tuple[bytes, bool], Fact] = {}
        self.changed: dict[bytes, int] = {}
        #: By shared directory: what of it is covered because programs of the host trust it.
        self.sockets: dict[bytes, tuple[bytes, ...]] = {}
        #: The table of mounts, if it made a difference.
        self.mount_table = b""
        self.arguments: list[bytes] = []
        #: Whether it was looked at just now, for the very next use (``Planner.install``).
        self.fresh = False
        self.closed = False
        #: Whether it covers something that was found below a writable place, rather than named.
        self.found = False
        #: What is mounted before bwrap begins (``sandbox/bwrap/premount.py``).
        self.beforehand = b""
        #: Whether the names that are missing are covered then, too.
        self.masks_beforehand = False
        #: What is shown instead of the host's /tmp.
        self.shown = Shown()

    def access(self, path: bytes) -> Access:
        """What may be done at a real path."""
        rules = self.rules
        for place in (path, *parents(path)):
            if place in rules:
                return rules[place]
        return Access.DENY

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
        """Let go of the descriptors."""
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
    """The repositories below writable roots, remembered from plan to plan."""

    def __init__(self) -> None:
        self._known: dict[bytes, RepositoryIndex] = {}
        self._sockets: dict[bytes, SocketIndex] = {}
        self.mounts = MountTable()

    def is_large(self, root: bytes) -> bool:
        """Whether there is much to look at below a root, or it was never looked at."""
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
    """Makes plans and remembers them."""

    MOST_PLANS = 16

    def __init__(self, registry: PlaceholderRegistry, *, fresh_proc: bool = True) -> None:
        self.registry = registry
        self._fresh_proc = fresh_proc
        #: By profile, and whether others were at work and that made a difference.
        self._plans: dict[tuple[Profile, bool], Plan] = {}
        self._indexes = Indexes()

    def plan(self, profile: Profile, tries: Tries | None = None) -> Plan:
        """The plan for a profile, from memory if nothing has changed.  Raises Refused."""
        careful = others_at_work()
        known = self._known(profile, careful)
        if known is None:
            known = self._made(profile, careful, tries or Tries())
        # The last to go, from now on.
        key = profile, careful and known.found
        self._plans.pop(key, None)
        self._plans[key] = known
        while len(self._plans) > self.MOST_PLANS:
            self._plans.pop(next(iter(self._plans))).close()
        return known

    def _known(self, profile: Profile, careful: bool) -> Plan | None:
        """One that is still true; with others at work it must be made for that, if it matters."""
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

    def _made(self, profile: Profile, careful: bool, tries: Tries) -> Plan:
        from handrail.sandbox.plan.resolve import Resolver  # which fills plans

        while True:
            try:
                layout = Resolver(profile, self.registry, self._indexes, self._fresh_proc, careful)
                return layout.build()
            except Exchanged as moved:
                tries.spend(moved)

    def takes_long(self, profile: Profile) -> bool:
        """Whether looking may take so long that others should not wait for it."""
        return bool(profile.globs) or any(
            self._indexes.is_large(rule.path)
            for rule in profile.rules
            if rule.access is Access.WRITE
        )

    def prepare(self, profile: Profile, careful: bool) -> Plan:
        """A plan that is true now, for ``install``; in any thread.  Raises Refused."""
        for key in ((profile, careful), (profile, False)):
            known = self._plans.get(key)
            if known is not None and key[1] is (careful and known.found) and known.still_true():
                return known
        return self._made(profile, careful, Tries())

    def install(self, profile: Profile, careful: bool, plan: Plan) -> None:
        """Have the next call of ``plan`` use this one without another look."""
        if plan.closed:
            return  # others had so many made meanwhile that it was dropped
        key = profile, careful and plan.found
        before = self._plans.pop(key, None)
        if before is not None and before is not plan:
            before.close()
        plan.fresh = True
        self._plans[key] = plan

    def discard(self, plan: Plan) -> None:
        """What was prepared is not wanted any more."""
        if all(plan is not known for known in list(self._plans.values())):
            plan.close()

    def forget(self, profile: Profile) -> None:
        """Think of this profile anew the next time."""
        for careful in (False, True):
            plan = self._plans.pop((profile, careful), None)
            if plan is not None:
                plan.close()

    def close(self) -> None:
        self._indexes.mounts.close()
        for plan in self._plans.values():
            plan.close()
        self._plans.clear()
