"""From a profile to what it means on this file system.

Every rule's path is opened once (``safe_open``); implicitly protected paths and matches of patterns
are found and become rules too.  A name that is missing and must not appear is covered
(``placeholders``).  How all that is mounted is in ``mounts``.
"""

from __future__ import annotations

import os
import stat

from handrail import own_code
from handrail.sandbox.plan import host_tmp, mount_aliases
from handrail.sandbox.plan.git_index import (
    COMMON,
    GIT_DIRECTORY,
    MORE,
    MOST_DIRECTORIES,
    git_directories,
    is_git_directory,
)
from handrail.sandbox.plan.mounts import Mounts
from handrail.sandbox.plan.placeholder_lease import Placeholder
from handrail.sandbox.plan.placeholders import PlaceholderRegistry
from handrail.sandbox.plan.plan import Plan, look
from handrail.sandbox.plan.private_place_covers import PrivateCover
from handrail.sandbox.plan.safe_open import (
    Crossed,
    Exchanged,
    Missing,
    Opened,
    Places,
    Refused,
    Unreachable,
    alias_of_the_system,
    can_be_opened_up,
    shown,
)
from handrail.sandbox.profile import Access, Profile, parents, within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from handrail.sandbox.plan.indexes import Indexes
    from handrail.sandbox.private_tmp import Part

#: Limit of found repositories in which missing names are covered; existing ones are protected in
#: all.  Each name is a directory of the host for a while, and a mount.
MOST_NESTED_MASKS = 64
#: Every sandbox has its own of these; the host's is never shown.
ITS_OWN = (b"/dev", b"/proc")


class Resolver:
    """Makes one plan."""

    def __init__(
        self,
        profile: Profile,
        registry: PlaceholderRegistry,
        indexes: Indexes,
        fresh_proc: bool,
        careful: bool = False,
        only: frozenset[bytes] | None = None,
        *,
        once: bool = False,
    ) -> None:
        """``only``: what is covered of what is found in shared directories (``tries``).

        ``once``: the plan is not asked whether it is still true.
        """
        self._once = once
        self.profile = profile
        self._only = only
        self.registry = registry
        self.indexes = indexes
        self.fresh_proc = fresh_proc
        self.careful = careful
        self.plan = Plan(profile, registry, indexes)
        self.rules = self.plan.rules
        self.places = Places()
        self.masks: dict[bytes, Placeholder] = {}
        self.closed: set[bytes] = set()
        #: Missing paths that may be written by name, so that a command may make them.
        self._named: set[bytes] = set()
        self.parts: list[Part] = []
        #: Repositories that were found below writable roots.
        self.nested = 0

    def build(self) -> Plan:
        try:
            self.plan.mount_table = self.indexes.look()
            self._writable_rules()
            self._other_rules()
            self._protected()
            self._globs()
            self._own_code()
            self._private()
            host_tmp.cover(self)
            host_tmp.HostTmp(self).keep()
            self._mounted_twice()
            if not self.profile.placeholders:
                self.plan.refused = tuple(sorted(self.masks))
                self.masks.clear()
            own = {path: opened for part in self.parts for path, opened in part.opened.items()}
            Mounts(self.plan, self.places, self.masks, self.fresh_proc, self.careful, own).make()
        except BaseException:
            self.plan.close()
            raise
        finally:
            self.places.close()
            for part in self.parts:
                part.close()
        return self.plan

    # --- rules ----------------------------------------------------------------------------

    def _writable_rules(self) -> None:
        for rule in self.profile.rules:
            if rule.access is not Access.WRITE or rule.path in ITS_OWN:
                continue
            try:
                opened = self.open(rule.path, alias_of_the_system)
            except Missing as missing:
                # The command starts, and may make it where the directory around can be written.
                # Where it cannot, workspaces and the CLI have refused it: workspace/writable_paths.
                self.note(missing.path)
                above = os.path.realpath(os.path.dirname(rule.path))
                if missing.path == os.path.join(above, os.path.basename(rule.path)):
                    self._named.add(missing.path)
                if isinstance(missing, Unreachable):
                    self.keep_closed(os.path.dirname(missing.path), Access.READ)
                continue
            except Crossed as crossed:
                raise Refused(
                    f"{shown(rule.path)} is to be writable but leads over the symbolic link"
                    f" {shown(crossed.link)}, which a command could have made; give its real path"
                ) from None
            self.rule(opened.path, Access.WRITE)
            self.note(rule.path, follow=True)

    def _other_rules(self) -> None:
        for rule in self.profile.rules:
            own = rule.path in ITS_OWN and rule.access is Access.READ
            if rule.access is not Access.WRITE and not own:
                self.carve(rule.path, rule.access)

    def carve(
        self, path: bytes, access: Access, *, protected: bool = False, existing: bool = False
    ) -> None:
        """Give a path less than write access, whether it exists or not.

        ``existing``: only if it exists, and can be reached without a link made by a command.
        """
        try:
            opened = self.open(path, self.not_writable)
        except Missing as missing:
            self.note(missing.path)
            if existing:
                return
            if isinstance(missing, Unreachable):
                self.keep_closed(os.path.dirname(missing.path), access)
                return
            if self.plan.access(os.path.dirname(missing.path)) is Access.WRITE:
                self._mask(missing.path, directory=protected and missing.path == path)
            return
        except Crossed as crossed:
            if existing:
                return
            raise Refused(
                f"{shown(path)} leads over the symbolic link {shown(crossed.link)}, which a"
                " command could replace; give its real path, or make the link's directory"
                " read-only"
            ) from None
        self.note(path, follow=True)
        around = self.plan.nearest(opened.path)
        self.rule(opened.path, access, soft=protected)
        if existing and around != opened.path and around in self.profile.shared:
            self.plan.transient.add(opened.path)

    def keep_closed(self, path: bytes, access: Access) -> None:
        """Keep a directory that cannot be read now from being opened by the command.

        A directory's owner can change its mode, so one below a writable path becomes a separate
        mount.  Elsewhere, or with another owner, the command cannot open it anyway.
        """
        if path in self.closed:
            self.rule(path, access)
            return
        try:
            owner = os.stat(path, follow_symlinks=False).st_uid
        except OSError:
            return  # gone, or in another closed one that was found as well
        if owner != os.geteuid() or self.plan.access(path) is not Access.WRITE:
            return
        if path in self.rules:
            raise Refused(
                f"{shown(path)} is to be writable but its owner may not look into it, so what is"
                " protected there cannot be found; give it its mode back (chmod u+rwx)"
            )
        try:
            self.open(path, lambda link, status: False)
        except (Missing, Crossed):
            raise Exchanged(path) from None
        self.closed.add(path)
        self.rule(path, access)

    def not_writable(self, link: bytes, status: os.stat_result) -> bool:
        return self.plan.access(os.path.dirname(link)) is not Access.WRITE

    def rule(self, path: bytes, access: Access, *, soft: bool = False) -> None:
        if soft:
            self.rules.setdefault(path, access)
        else:
            self.rules[path] = max(self.rules.get(path, access), access)
        self.plan.transient.discard(path)
        self.note(path)

    def _mask(self, path: bytes, *, directory: bool) -> None:
        parent = os.path.dirname(path)
        if directory and (parent in self.profile.shared or parent == b"/"):
            return  # never made up in a directory that others use too
        if can_be_opened_up(parent):
            self.masks[path] = Placeholder(path, directory)

    # --- implicitly protected paths -----------------------------------------------------------

    def _protected(self) -> None:
        roots = [path for path, access in self.rules.items() if access is Access.WRITE]
        names = self.profile.protected
        if not names:
            return
        for root in sorted(roots):
            parts = set(root.split(b"/"))
            if not self.places[root].is_directory or parts & set(names):
                continue  # a root in what was opened by name: intended
            for name in names:
                self._protect(os.path.join(root, name))
            if root != b"/":
                self._nested(root)

    def _nested(self, root: bytes) -> None:
        if b".git" not in self.profile.protected:
            return
        shared = root in self.profile.shared
        if any(p in self.plan.repositories and p not in self.profile.shared for p in parents(root)):
            return  # found from there
        found = self.indexes.repositories(root, self.profile).refresh()
        if shared:
            found = self.covered(found)
        self.plan.repositories[root] = found
        for path in found:
            if path == MORE:
                raise Refused(
                    f"{shown(root)} has more than {MOST_DIRECTORIES} directories, too many to look"
                    " for repositories to protect; make a smaller directory writable"
                )
            if os.path.basename(path) == b".git":
                self._protect_found(path, existing=shared)
            else:
                self.keep_closed(path, Access.READ)

    def covered(self, found: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Choose the names of a shared directory that are covered."""
        only = self._only
        return found if only is None else tuple(path for path in found if path in only)

    def _protect_found(self, path: bytes, *, existing: bool) -> None:
        """Protect a repository that was found, with the protected names beside it.

        One that is odd is left out: a command that made it must not keep every later command from
        running, or from taking it away.
        """
        if self._is_odd(path):
            self.note(path)
            return
        above = os.path.dirname(path)
        if not existing and not os.access(above, os.W_OK):
            # No name can be covered in it, and its owner could open it again.
            self.keep_closed(above, Access.READ)
            return
        self._protect(path, existing=existing)
        masked = self.nested < MOST_NESTED_MASKS
        self.nested += 1
        for name in self.profile.protected:
            if name != b".git":
                beside = os.path.join(above, name)
                if not os.path.islink(beside):
                    self._protect(beside, existing=existing or not masked)

    def _is_odd(self, path: bytes) -> bool:
        """Whether no mount can keep it, or git does not take it for a repository."""
        now = look(path, follow=False)
        if now is None or now[2] not in (stat.S_IFDIR, stat.S_IFREG):
            return True
        if now[2] == stat.S_IFDIR:
            return False
        targets = git_directories(path)
        if not targets:
            return os.access(path, os.R_OK)  # it says nothing; a closed one may
        for target in targets:
            try:
                self.open(target, self.not_writable)
            except (Crossed, Refused):
                return True
            except Missing:
                continue
        return self._leads_nowhere(targets[0])

    def _leads_nowhere(self, target: bytes) -> bool:
        """Whether a ``.git`` file names what is no git directory, where a command could make one.

        Protecting that would let a command close any directory of the workspace to the next one.
        """
        if self.plan.access(target) is not Access.WRITE:
            return False
        for name in GIT_DIRECTORY:
            self.note(os.path.join(target, name))
        return not is_git_directory(target)

    def _protect(self, path: bytes, *, existing: bool = False) -> None:
        """``existing``: only what exists; nothing is created, nothing in the way is refused."""
        if path in self.rules or self.plan.access(path) is not Access.WRITE:
            return
        if path in self._named:
            return
        now = look(path, follow=False)
        if now is not None and self.is_mask(path, now):
            self.note_missing(path)
            if not existing:
                self._mask(path, directory=True)
            return
        self.carve(path, Access.READ, protected=True, existing=existing)
        if now is not None and now[2] == stat.S_IFREG and path.endswith(b"/.git"):
            targets = git_directories(path)
            for target in targets[:1]:
                self.note(os.path.join(target, COMMON))
            for target in targets:
                if self.plan.access(target) is Access.WRITE and not self._was_meant(target):
                    self.carve(target, Access.READ, existing=existing)

    def _was_meant(self, path: bytes) -> bool:
        """Whether it is writable because something protected was opened by name."""
        around = next(p for p in (path, *parents(path)) if p in self.rules)
        return around == path or bool(set(around.split(b"/")) & set(self.profile.protected))

    def is_mask(self, path: bytes, now: tuple[int, ...]) -> bool:
        # Only an empty directory can be one of ours, and those are rare.
        if now[2] != stat.S_IFDIR or (path in self.rules):
            return False
        try:
            with os.scandir(path) as entries:
                if next(entries, None) is not None:
                    return False
        except OSError:
            return False
        return self.registry.is_mask(path, (now[0], now[1]))

    def _globs(self) -> None:
        if not self.profile.globs:
            return
        for key, index in self.indexes.globs(self.profile):
            matches = self.plan.matches[key] = index.refresh()
            for path, real in matches:
                if not real:
                    self.note(path + b"/.")  # no longer there for us as long as it is closed
                    self.keep_closed(path, Access.DENY)
                    continue
                try:
                    self.open(real, lambda link, status: False)
                except Unreachable as closed_one:
                    self.keep_closed(os.path.dirname(closed_one.path), Access.DENY)
                    continue
                except Missing as missing:
                    self.note(missing.path)  # where a link leads, or gone meanwhile
                    continue
                except Crossed:
                    continue  # it was exchanged meanwhile
                self.rule(real, Access.DENY)

    def _own_code(self) -> None:
        """Make the files we run from read-only in the sandbox, or refuse to start."""
        roots = [path for path, access in self.rules.items() if access is Access.WRITE]
        if not roots or not self.profile.own_code:
            return
        before = set(self.rules)
        everything = b"/" in roots  # everything is writable: protect as much as possible
        below = tuple(root.rstrip(b"/") + b"/" for root in roots)
        for name, real, kind in mount_aliases.of_code(self.profile.own_code, self.plan.mount_table):
            if kind == own_code.CODE:
                self._refuse_roots_in(real, roots)
            if not (name.startswith(below) or real.startswith(below)):
                continue
            if name != real or self.plan.access(real) is Access.WRITE:
                self._keep_code(name, existing=everything)
        self.plan.own_code = self.rules.keys() - before
        self.plan.avoid_imports()

    def _refuse_roots_in(self, place: bytes, roots: list[bytes]) -> None:
        for root in roots:
            if within(root, place):
                raise Refused(
                    f"{shown(root)} is to be writable, but handrail itself runs from"
                    f" {shown(place)}, which a command could then change; make another directory"
                    " writable, or run a handrail that is installed elsewhere"
                )

    def _keep_code(self, name: bytes, *, existing: bool) -> None:
        """``existing``: only what exists, and can be reached without a link made by a command."""
        try:
            opened = self.open(name, self._not_exchangeable)
        except Missing as missing:
            self.note(missing.path)
            if isinstance(missing, Unreachable):
                self.keep_closed(os.path.dirname(missing.path), Access.READ)
            elif not existing and self.plan.access(os.path.dirname(missing.path)) is Access.WRITE:
                self._mask(missing.path, directory=False)
            return
        except Crossed as crossed:
            if existing:
                return
            raise Refused(
                f"handrail runs from {shown(name)}, which leads over the symbolic link"
                f" {shown(crossed.link)}, and a command could replace that; start handrail by its"
                " real path, or from a virtual environment that is not a link"
            ) from None
        self.note(name, follow=True)
        if self.plan.access(opened.path) is Access.WRITE:
            self.rule(opened.path, Access.READ)

    def _not_exchangeable(self, link: bytes, status: os.stat_result) -> bool:
        return self.not_writable(link, status) or alias_of_the_system(link, status)

    def _private(self) -> None:
        """Hide every private place of handrail; the sandbox cannot create a missing one."""
        for path in self.profile.private:
            PrivateCover(self, path).make()

    def _cover(self, path: bytes) -> None:
        try:
            self.open(path, alias_of_the_system)
        except Unreachable as closed:
            self.keep_closed(os.path.dirname(closed.path), Access.DENY)
            return
        except (Missing, Crossed, Refused):
            return  # out of reach for this process, so for the command
        self.rule(path, Access.DENY)

    def _mounted_twice(self) -> None:
        """Protect and cover the same paths at their other mounts as well."""
        text = self.plan.mount_table
        for alias in mount_aliases.other_names(self.profile.private, text):
            PrivateCover(self, alias).make()
        named = {rule.path: rule.access for rule in self.profile.rules}
        denied = [path for path, access in self.rules.items() if access is Access.DENY]
        for alias in mount_aliases.aliases(denied, text):
            # An alias that the profile names itself is intended.
            if named.get(alias, Access.DENY) is Access.DENY and alias not in self.plan.shown.mounts:
                self._cover(alias)
        for alias in mount_aliases.aliases(self._carved_out(), text):
            if alias not in named and self.plan.access(alias) is Access.WRITE:
                self.carve(alias, Access.READ, protected=True, existing=True)

    def _carved_out(self) -> list[bytes]:
        """Paths of the host that are read-only in something writable."""
        inside = {path for part in self.parts for path in part.opened}
        return [
            path
            for path, access in self.rules.items()
            if access is Access.READ
            and path not in inside
            and self.plan.access(os.path.dirname(path)) is Access.WRITE
        ]

    # --- opening and recording ------------------------------------------------------------

    def open(self, path: bytes, trusted: Callable[[bytes, os.stat_result], bool]) -> Opened:
        return self.places.open(path, trusted)

    def note(self, path: bytes, *, follow: bool = False) -> None:
        if not self._once:
            self.plan.facts[path, follow] = look(path, follow)

    def note_missing(self, path: bytes) -> None:
        self.plan.facts[path, False] = None
