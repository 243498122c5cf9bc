"""A profile's mounts on this file system, and when they have to be computed again.

A plan records what it examined.  While that looks the same the plan is reused, and a second command
pays for a few ``lstat`` only.
"""

from __future__ import annotations

import os
import stat

from handrail import own_code, private_places
from handrail.sandbox.bwrap.arguments import Step
from handrail.sandbox.bwrap.instance import others_at_work
from handrail.sandbox.plan.git_index import COMMON
from handrail.sandbox.plan.indexes import Indexes, TreeKey
from handrail.sandbox.plan.placeholder_lease import Placeholder
from handrail.sandbox.plan.placeholders import PlaceholderRegistry
from handrail.sandbox.private_tmp import Shown
from handrail.sandbox.profile import Access, Profile, parents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.sandbox.bwrap.premount import Place
    from handrail.sandbox.plan.directory_cache import DirectoryCache
    from handrail.sandbox.plan.globs import Match
    from handrail.sandbox.plan.shape import Shape
    from handrail.sandbox.plan_retries import Tries

Fact = tuple[int, ...] | None  # device, inode, kind, and for a pointer file its ctime
Facts = dict[tuple[bytes, bool], Fact]  # by path, and whether the last link was followed
#: Files of git that say where another directory is.
_POINTERS = (b"/.git", b"/" + COMMON)


class Plan:
    """Mount arguments for one profile, with the fds they name.  Close it when done."""

    def __init__(self, profile: Profile, registry: PlaceholderRegistry, indexes: Indexes) -> None:
        self.profile = profile
        #: Without the private places.
        self.public_profile = profile._replace(private=())
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
        self.facts: Facts = {}
        #: Where patterns were looked for: what matched.
        self.matches: dict[TreeKey, tuple[Match, ...]] = {}
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
        #: What the mounter has to mount of that in bwrap's namespace: all the rest is in it.
        self.roots_beforehand: tuple[Place, ...] = ()
        #: Both as the mounter reads them, by whether bwrap outlives its parent.
        self.mounter_records: dict[bool, tuple[bytes, bytes]] = {}
        #: Whether missing names are covered then, too.
        self.masks_beforehand = False
        #: What is shown instead of the host's /tmp.
        self.shown = Shown()
        #: Programs and working directories that a command was seen to reach.
        self.reachable: set[tuple[bytes, bytes]] = set()
        #: Whether its mounts can be copied (``sandbox/warm/command_fits.py``), once it was asked.
        self.copyable: bool | None = None
        #: While these are the revisions of its trees, only these facts can have changed.
        self._unwatched: tuple[tuple[int, ...], Facts] | None = None
        self._mounted: tuple[object, ...] = ()
        #: The trees that it was found in.
        self._tree_keys: list[TreeKey] | None = None

    def mounted(self) -> tuple[object, ...]:
        """What a sandbox of it has mounted where: equal for plans that make the same one."""
        if not self._mounted:
            shown = [(number, *_identity(fd)) for number, fd in self.passed]
            self._mounted = (self.arguments, shown, self.masks, self.beforehand)
        return self._mounted

    def uncovered(self) -> list[Step]:
        """Its steps without those that cover missing names."""
        covered = {mask.path for mask in self.masks}
        return [step for step in self.steps if step.path not in covered]

    def access(self, path: bytes) -> Access:
        """The access that the plan gives to a real path."""
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

    @property
    def is_watched(self) -> bool:
        """Whether all that it was found in is watched, so that a look takes what was reported."""
        if self._unwatched is None or not all(self._unwatched[0]):
            return False
        shared = (root for root in self.profile.shared if root in self.repositories)
        return all(
            self._indexes.repositories(root, self.profile).directories.sees_names for root in shared
        )

    def still_true(self) -> bool:
        """Whether the file system looks as it did when this plan was made."""
        if self._indexes.look() != self.mount_table:
            return False
        trees = self._trees()
        known, before = self._unwatched, _revisions(trees)
        if known is not None and known[0] == before:
            return self._are_true(known[1]) and self.found_the_same()
        # What is to be noticed is named first: what changes from here on counts.
        rest = self._watch(trees)
        self._indexes.look()
        revisions = _revisions(self._trees())
        if not (self._are_true(self.facts) and self.found_the_same()):
            return False
        as_before = [*map(bool, revisions)] == [*map(bool, before)]
        self._unwatched = (revisions, rest) if as_before else None
        return True

    def _trees(self) -> list[DirectoryCache]:
        if self._tree_keys is None:  # from here on it is complete
            self._tree_keys = self._indexes.keys_of(self.profile, self.repositories)
        return [self._indexes.tree(key).directories for key in self._tree_keys]

    def _watch(self, trees: list[DirectoryCache]) -> Facts:
        """Have the trees notice changes of the facts that they see; the others."""
        rest: Facts = {}
        noted: list[tuple[bytes, bool]] = []
        for (path, follow), fact in self.facts.items():
            if follow and self.facts.get((path, False)) == fact:
                continue  # it is no link: asked once
            # A pointer's content may change without its name; so may what a link leads to.
            plain = not follow and (fact is None or len(fact) == 3)
            if plain and any(tree.sees(path) for tree in trees):
                noted.append((path, fact is None))
            else:
                rest[path, follow] = fact
        for tree in trees:
            tree.note(noted)
        missing = [(path, True) for (path, _), fact in self.facts.items() if fact is None]
        for root in self.profile.shared:
            if root in self.repositories:
                # Covers in it are no change; these are asked for each time nevertheless.
                self._indexes.repositories(root, self.profile).directories.note(missing)
        return rest

    def _are_true(self, facts: Facts) -> bool:
        for (path, follow), fact in facts.items():
            if look(path, follow) != fact and not self.is_fact(path, follow, fact):
                return False
        return True

    def is_fact(self, path: bytes, follow: bool, fact: Fact) -> bool:
        """Whether a path looks so; what a sandbox has put there to cover it counts as missing."""
        now = look(path, follow)
        if now == fact:
            return True
        if fact is not None or now is None or follow:
            return False
        return self.registry.is_mask(path, (now[0], now[1]))

    def found_the_same(self) -> bool:
        """Whether searching finds what it did, and the same is mounted."""
        indexes = self._indexes
        for root, found in self.repositories.items():
            if indexes.repositories(root, self.profile).refresh() != found:
                return False
        for key, matches in self.matches.items():
            index = indexes.tree(key).globs
            if index is None or index.refresh() != matches:
                return False
        for root, covered in self.sockets.items():
            if indexes.sockets(root) != covered:
                return False
        return indexes.mounts.text() == self.mount_table

    def avoid_imports(self) -> None:
        """Let this program import nothing that a command can write (``own_code``)."""
        writable, kept = set(), set()
        for path, access in self.rules.items():
            around = private_places.workspaces_around(path)
            if access is Access.WRITE:
                writable.add(around or path)  # of many workspaces all at once
            elif around is None:
                kept.add(path)
        own_code.avoid(writable, kept)

    def close(self) -> None:
        """Close the fds."""
        self.closed = True
        for _, fd in self.passed:
            os.close(fd)
        self.passed = []


def _revisions(trees: list[DirectoryCache]) -> tuple[int, ...]:
    """Of each tree; 0 for one that is not watched."""
    return tuple([tree.revision if tree.sees_names else 0 for tree in trees])


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def look(path: bytes, follow: bool) -> Fact:
    """What is at a path, as far as a plan depends on it."""
    try:
        status = os.stat(path, follow_symlinks=follow)
    except OSError:
        return None
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFREG and path.endswith(_POINTERS):
        return status.st_dev, status.st_ino, kind, status.st_ctime_ns, status.st_size
    return status.st_dev, status.st_ino, kind


class Planner:
    """Makes plans and caches them."""

    MOST_PLANS = 16

    def __init__(
        self, registry: PlaceholderRegistry, *, fresh_proc: bool = True, once: bool = False
    ) -> None:
        """``once``: no plan is used a second time, so it need not record what it examined."""
        self.registry = registry
        self._once = once
        self._fresh_proc = fresh_proc
        #: By profile, and whether untrusted sandboxes ran and that made a difference.
        self._plans: dict[tuple[Profile, bool], Plan] = {}
        #: By profile without names of directories that were made for it: the last plan of that.
        self._shapes: dict[Profile, tuple[Shape, Plan]] = {}
        self._indexes = Indexes(registry)

    def plan(self, profile: Profile, tries: Tries | None = None, *, careful: bool = False) -> Plan:
        """The plan for a profile, from memory if nothing has changed.

        ``careful``: other sandboxes may run while this one is set up.  After a try that came to
        nothing it is made anew.  Raises Refused, Exchanged among them.
        """
        failed = tries is not None and tries.failures > 0
        careful = careful or failed or others_at_work()
        if failed:
            self.forget(profile)
        known = None if self._once else self._known(profile, careful)
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
        from handrail.sandbox.plan.path_rules import Resolver  # which fills plans

        shape = None
        if only is None and private_places.has_workspaces():
            from handrail.sandbox.plan.shape import Shape, moved  # for servers that make them

            shape = Shape(profile)
            known = self._shapes.get(shape.key)
            if known is not None and known[1].profile != profile:
                plan = moved(*known, shape, profile, self._indexes)
                if plan is not None:
                    return plan
        plan = Resolver(
            profile, self.registry, self._indexes, self._fresh_proc, careful, only, once=self._once
        ).build()
        if shape is not None and shape.directories:
            self._shapes.pop(shape.key, None)
            self._shapes[shape.key] = shape, plan
            if len(self._shapes) > self.MOST_PLANS:
                self._shapes.pop(next(iter(self._shapes)), None)
        return plan

    def takes_long(self, profile: Profile, *, quick: bool = False) -> bool:
        """Whether examining may take so long that it belongs into a thread.

        ``quick``: it did not the last time, so only what was reported since makes a difference.
        """
        if self._indexes.much_has_changed(profile):
            return True
        if quick or any(
            known is not None and known.is_watched
            for known in (self._plans.get((profile, careful)) for careful in (False, True))
        ):
            return False
        self._indexes.look()
        return self._indexes.has_many_names(profile) or any(
            self._indexes.is_large(rule.path, profile)
            for rule in profile.rules
            if rule.access is Access.WRITE
        )

    def take_reports(self, profile: Profile) -> None:
        """Take what was reported of changes, so that the next plan need not; not if it is much."""
        self._indexes.take_reports(profile)

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
        self._indexes.close()
        for plan in self._plans.values():
            plan.close()
        self._plans.clear()
