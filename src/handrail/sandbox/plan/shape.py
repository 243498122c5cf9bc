"""Plans known by their shape: the plan of one workspace, moved to another of the same server.

A server makes directories of its own for clients: those of workspaces (``DIR/w/NAME``) and the
private ``/tmp`` of a session.  Two profiles that differ in the names of these alone have the same
*shape*, and their plans differ in the same names, if the disk looks the same around them.  So the
first command in a new workspace pays for looking, not for deciding once more what follows from it.

Everything that a new plan depends on is looked at on the disk: each path is opened component by
component without following a link, each fact of the known plan has to be one of the new paths too,
trees are searched for repositories.  Wherever anything differs, or the name could matter (mounts,
our own code, another private place), the plan is made from the beginning instead (``path_rules``).
"""

from __future__ import annotations

import os
import stat

from handrail import private_places
from handrail.sandbox import private_tmp
from handrail.sandbox.bwrap.arguments import Bind, EmptyFile, MountPoint
from handrail.sandbox.plan import mount_aliases
from handrail.sandbox.plan.placeholder_lease import Placeholder
from handrail.sandbox.plan.plan import Fact, Plan, look
from handrail.sandbox.plan.safe_open import (
    Crossed,
    Missing,
    Opened,
    Places,
    Refused,
    can_be_opened_up,
)
from handrail.sandbox.profile import Profile, Rule, within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.sandbox.plan.indexes import Indexes
    from handrail.sandbox.private_tmp import Part

#: Instead of a name in a shape; no path has it.
_NAME = b"\0"
#: What may lie at a path that moves: no link, and nothing that is read to decide.
_PLAIN = (stat.S_IFDIR, stat.S_IFREG)


class _Differs(Exception):
    """The disk does not look the same there."""


class Shape:
    """A profile without the names of the directories that a server made for it."""

    def __init__(self, profile: Profile) -> None:
        #: The directories whose names do not matter.
        self.directories: tuple[bytes, ...] = ()
        for rule in profile.rules:
            around = private_places.workspace_around(rule.path)
            if around is not None:
                self.directories = (around,)
                break
        temporary = profile.private_tmp
        if temporary is not None and not any(within(temporary, one) for one in self.directories):
            self.directories += (temporary,)
        self.moving = _Moving(self.directories)
        #: Equal for profiles of one shape.
        self.key = profile
        if self.directories:
            self.key = profile._replace(
                rules=tuple(Rule(self._nameless(rule.path), rule.access) for rule in profile.rules),
                private_tmp=None if temporary is None else self._nameless(temporary),
            )

    def _nameless(self, path: bytes) -> bytes:
        for directory in self.directories:
            if within(path, directory):
                return os.path.dirname(directory) + _NAME + path[len(directory) :]
        return path


def moved(
    known: Shape, plan: Plan, shape: Shape, profile: Profile, indexes: Indexes
) -> Plan | None:
    """The plan of a profile of the same shape as another's; None: it has to be resolved."""
    return _Move(plan, known, shape.directories).make(profile, indexes)


class _Moving(dict[bytes, bool]):
    """Whether a path is in one of some directories; the paths of a plan are asked for again and
    again, for each workspace that it is moved to."""

    def __init__(self, directories: tuple[bytes, ...]) -> None:
        self._directories = directories

    def __missing__(self, path: bytes) -> bool:
        found = self[path] = any(within(path, one) for one in self._directories)
        return found


class _Move:
    """Makes one plan from another."""

    def __init__(self, known: Plan, shape: Shape, after: tuple[bytes, ...]) -> None:
        self._known = known
        self._before, self._after = shape.directories, after
        pairs = zip(self._before, after, strict=True)
        self._pairs = [(one + b"/", len(one), two) for one, two in pairs]
        self._moving = shape.moving
        self._places = Places()
        self._parts: list[Part] = []
        #: The directories of the private /tmp, by path in the sandbox.
        self._shown: dict[bytes, Opened] = {}

    def _moved(self, path: bytes) -> bytes:
        """A path of the known plan in the new one."""
        if not self._moving[path]:
            return path
        for inside, length, after in self._pairs:
            if path.startswith(inside) or (len(path) == length and path + b"/" == inside):
                return after + path[length:]
        return path

    def make(self, profile: Profile, indexes: Indexes) -> Plan | None:
        """The plan, if the disk looks the same."""
        plan = Plan(profile, self._known.registry, indexes)
        try:
            self._check(profile, indexes)
            self._fill(plan)
            self._open(plan)
        except (_Differs, Missing, Crossed, Refused, OSError):
            plan.close()
            return None
        except BaseException:
            plan.close()
            raise
        finally:
            self._places.close()
            for part in self._parts:
                part.close()
        if profile.own_code:
            plan.avoid_imports()
        return plan

    # --- what both plans share ------------------------------------------------------------------

    def _check(self, profile: Profile, indexes: Indexes) -> None:
        """Whether the names make no difference; raises _Differs."""
        known = self._known
        if profile.globs or known.beforehand or known.found or known.own_code:
            raise _Differs
        if indexes.look() != known.mount_table:
            raise _Differs
        ours = (*profile.private, *(path for place in profile.own_code for path in place[:2]))
        for directory in (*self._before, *self._after):
            # A mount in it or of a part of it, at whatever path.
            if os.path.basename(directory) in known.mount_table:
                raise _Differs
            if os.path.basename(directory) in profile.protected or directory in profile.shared:
                raise _Differs
        inside = tuple(one + b"/" for one in (*self._before, *self._after))
        if any(path.startswith(inside) or path + b"/" in inside for path in ours):
            raise _Differs
        if mount_aliases.other_names(self._before, known.mount_table):
            raise _Differs  # each path there has a second one, which has the name in it

    def _fill(self, plan: Plan) -> None:
        """Everything that is no descriptor; raises _Differs."""
        known, moved, moving = self._known, self._moved, self._moving
        plan.rules.update(
            (moved(path) if moving[path] else path, access) for path, access in known.rules.items()
        )
        plan.masks = tuple(Placeholder(moved(one.path), one.directory) for one in known.masks)
        plan.refused = tuple(map(moved, known.refused))
        plan.transient = {moved(path) if moving[path] else path for path in known.transient}
        plan.mount_table = known.mount_table
        plan.arguments = [moved(word) if moving[word] else word for word in known.arguments]
        covered = {one.path for one in plan.masks}.union(plan.refused)
        parts = [path for path, _ in known.shown.parts.values()]
        for (path, follow), fact in known.facts.items():
            if path in parts:
                continue
            if moving[path]:
                place = moved(path)
                plan.facts[place, follow] = _same(plan, place, follow, fact, covered)
            elif plan.is_fact(path, follow, fact):
                plan.facts[path, follow] = fact
            else:
                raise _Differs
        for root, found in known.repositories.items():
            if found and moved(root) != root:
                raise _Differs
            plan.repositories[moved(root)] = found
        plan.sockets = dict(known.sockets)
        if not plan.found_the_same():
            raise _Differs

    # --- descriptors ----------------------------------------------------------------------------

    def _open(self, plan: Plan) -> None:
        """Open what is mounted; raises _Differs, and as ``open_path`` does."""
        self._show_parts(plan)
        for path in plan.rules:
            if path not in self._known.rules and path not in self._shown:
                self._opened(plan, path)
        for step in self._known.steps:
            path = self._moved(step.path)
            plan.steps.append(step if path == step.path else step._replace(path=path))
            if isinstance(step, EmptyFile | MountPoint):
                fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            elif isinstance(step, Bind) and step.number:
                fd = self._places.take(self._opened(plan, path))
            else:
                continue
            plan.passed.append((step.number, fd))
        if [number for number, _ in plan.passed] != [number for number, _ in self._known.passed]:
            raise _Differs

    def _show_parts(self, plan: Plan) -> None:
        """Make the parts of the private /tmp; raises _Differs and Refused."""
        if plan.profile.private_tmp is None:
            return
        names = private_tmp.places()
        for place, (path, shares) in self._known.shown.parts.items():
            name, kinds = os.path.basename(path), {}
            for share in shares:
                fact = plan.facts.get((self._moved(share), False))
                if fact is None:
                    raise _Differs
                kinds[self._moved(share)] = fact[2] == stat.S_IFDIR
            if tuple(sorted(kinds)) != shares:
                if place not in names or private_tmp.part_name(names[place], shares) != name:
                    raise _Differs  # it shows more than it is named for
                name = private_tmp.part_name(names[place], tuple(sorted(kinds)))
            part = private_tmp.open_part(plan.profile.private_tmp, place, name, kinds)
            self._parts.append(part)
            self._shown.update(part.opened)
            plan.shown.add(part)
            plan.facts[part.path, False] = look(part.path, follow=False)

    def _opened(self, plan: Plan, path: bytes) -> Opened:
        """A path of a rule, opened without following a link; raises _Differs if it is another."""
        shown = self._shown.get(path)
        if shown is not None:
            return shown
        opened = self._places.open(path, lambda link, status: False)
        fact = plan.facts.get((path, False))
        if fact is None or opened.identity != fact[:2] or opened.path != path:
            raise _Differs
        return opened


def _same(plan: Plan, path: bytes, follow: bool, fact: Fact, covered: set[bytes]) -> Fact:
    """What is at a path, if it is what is at another in the known plan; raises _Differs."""
    if fact is None:
        # Missing, and covered for that reason: it has to be so here, and for the same reason.
        if path not in covered or not can_be_opened_up(os.path.dirname(path)):
            raise _Differs
        if not plan.is_fact(path, follow, None):
            raise _Differs
        return None
    now = look(path, follow)
    if now is None or len(now) != 3 or fact[2:] != now[2:] or now[2] not in _PLAIN:
        raise _Differs
    return now
