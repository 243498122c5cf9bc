"""From a profile to the mounts that enforce it on this file system.

Every rule's path is opened once (``paths``).  Rules that add nothing to the rule around them are
dropped; the others become mounts in the order of their depth.  Whatever is less than writable
inside something writable is a *carve-out*: the directories between are pinned by mounting them
onto themselves, for a mount point cannot be renamed, and a name that is missing is covered
(``masks``) so that nobody can make it.
"""

from __future__ import annotations

import os
import stat

from handrail.sandbox import sockets
from handrail.sandbox.bubblewrap import (
    FIRST_FD,
    MOST_ARGUMENTS,
    PROC_HIDDEN,
    PROC_READABLE,
    Bind,
    Devices,
    Directory,
    Empty,
    EmptyFile,
    Link,
    MountPoint,
    Processes,
    Seal,
    mount_arguments,
)
from handrail.sandbox.masks import Mask, Registry
from handrail.sandbox.paths import (
    Crossed,
    Missing,
    Opened,
    Refused,
    Unreachable,
    alias_of_the_system,
    open_path,
)
from handrail.sandbox.plan import Indexes, Plan, look
from handrail.sandbox.profile import Access, Profile, depth, parents, within
from handrail.sandbox.repositories import MORE, MOST_DIRECTORIES, git_directories

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


#: How many descriptors a plan may hand over; the kernel takes 253 in one message, and bwrap
#: and the command need some of their own.
MOST_DESCRIPTORS = 240

#: Beyond this many the directories of the host's sockets are covered, not each socket.
MOST_SOCKETS = 100


class Layout:
    """One plan in the making."""

    def __init__(
        self, profile: Profile, registry: Registry, indexes: Indexes, fresh_proc: bool
    ) -> None:
        self.profile = profile
        self.registry = registry
        self.indexes = indexes
        self.fresh_proc = fresh_proc
        self.plan = Plan(profile, registry, indexes)
        self.rules = self.plan.rules
        self.opened: dict[bytes, Opened] = {}
        self.masks: dict[bytes, Mask] = {}
        self.links: dict[bytes, bytes] = {}
        self.pinned: set[bytes] = set()
        self.closed: set[bytes] = set()

    def build(self) -> Plan:
        try:
            self._writable_rules()
            self._other_rules()
            self._protected()
            self._globs()
            self._private()
            self._mounts()
        except BaseException:
            self._close_all_but(set())
            self.plan.close()
            raise
        self._close_all_but({fd for _, fd in self.plan.passed})
        return self.plan

    def _close_all_but(self, kept: set[int]) -> None:
        ours = {opened.fd for opened in self.opened.values()}
        for fd in ours - kept:
            os.close(fd)
        self.plan.passed = [
            (number, fd) for number, fd in self.plan.passed if fd not in ours - kept
        ]

    # --- rules ----------------------------------------------------------------------------

    def _writable_rules(self) -> None:
        for rule in self.profile.rules:
            if rule.access is not Access.WRITE:
                continue
            try:
                opened = self._open(rule.path, alias_of_the_system)
            except Missing as missing:
                # Ignored: the command starts, and there is nothing to write to.
                self._note(missing.path)
                if isinstance(missing, Unreachable):
                    self._keep_closed(os.path.dirname(missing.path), Access.READ)
                continue
            except Crossed as crossed:
                raise Refused(
                    f"{_shown(rule.path)} is to be writable but leads over the symbolic link"
                    f" {_shown(crossed.link)}, which a command could have made; give its real path"
                ) from None
            self._rule(opened.path, Access.WRITE)
            self._note(rule.path, follow=True)

    def _other_rules(self) -> None:
        for rule in self.profile.rules:
            if rule.access is not Access.WRITE:
                self._carve(rule.path, rule.access)

    def _carve(self, path: bytes, access: Access, *, protected: bool = False) -> None:
        """A path that is to be less than writable, whether it is there or not."""
        try:
            opened = self._open(path, self._not_writable)
        except Missing as missing:
            self._note(missing.path)
            if isinstance(missing, Unreachable):
                self._keep_closed(os.path.dirname(missing.path), access)
                return
            if self.plan.access(os.path.dirname(missing.path)) is Access.WRITE:
                self._mask(missing.path, directory=protected and missing.path == path)
            return
        except Crossed as crossed:
            raise Refused(
                f"{_shown(path)} leads over the symbolic link {_shown(crossed.link)}, which a"
                " command could replace; give its real path, or make the link's directory"
                " read-only"
            ) from None
        self._note(path, follow=True)
        self._rule(opened.path, access, soft=protected)

    def _keep_closed(self, path: bytes, access: Access) -> None:
        """A directory nobody can look into now: see to it that the command cannot open it.

        Whoever owns a directory can change its mode, so one in a writable place becomes a mount
        of its own.  Elsewhere, or if it is somebody else's, it is out of reach for the command.
        """
        if path in self.closed:
            self._rule(path, access)
            return
        try:
            owner = os.stat(path, follow_symlinks=False).st_uid
        except OSError:
            return  # gone, or in another one that is closed and was found as well
        if owner != os.geteuid() or self.plan.access(path) is not Access.WRITE:
            return
        if path in self.rules:
            raise Refused(
                f"{_shown(path)} is to be writable but its owner may not look into it, so what is"
                " protected there cannot be found; give it its mode back (chmod u+rwx)"
            )
        try:
            self._open(path, lambda link, status: False)
        except (Missing, Crossed):
            raise Refused(_exchanged(path)) from None
        self.closed.add(path)
        self._rule(path, access)

    def _not_writable(self, link: bytes, status: os.stat_result) -> bool:
        return self.plan.access(os.path.dirname(link)) is not Access.WRITE

    def _rule(self, path: bytes, access: Access, *, soft: bool = False) -> None:
        if soft:
            self.rules.setdefault(path, access)
        else:
            self.rules[path] = max(self.rules.get(path, access), access)
        self._note(path)

    def _mask(self, path: bytes, *, directory: bool) -> None:
        parent = os.path.dirname(path)
        if directory and (parent in self.profile.shared or parent == b"/"):
            return  # never made up in a directory that others use too
        if not os.access(parent, os.W_OK) and os.stat(parent).st_uid != os.geteuid():
            return  # nobody with our rights can make it
        self.masks[path] = Mask(path, directory)

    # --- what is protected without being named ------------------------------------------------

    def _protected(self) -> None:
        roots = [path for path, access in self.rules.items() if access is Access.WRITE]
        names = self.profile.protected
        if not names:
            return
        for root in sorted(roots):
            parts = set(root.split(b"/"))
            if not self.opened[root].is_directory or parts & set(names):
                continue  # a root inside what was opened by name: it was meant
            for name in names:
                self._protect(os.path.join(root, name))
            if root != b"/" and root not in self.profile.shared:
                self._nested(root)

    def _nested(self, root: bytes) -> None:
        if b".git" not in self.profile.protected:
            return
        outer = [p for p in parents(root) if p in self.plan.repositories]
        if outer:
            return  # found from there
        found = self.indexes(root).refresh()
        self.plan.repositories[root] = found
        for path in found:
            if path == MORE:
                raise Refused(
                    f"{_shown(root)} has more than {MOST_DIRECTORIES} directories, too many to look"
                    " for repositories to protect; make a smaller directory writable"
                )
            if os.path.basename(path) == b".git":
                self._protect(path)
            else:
                self._keep_closed(path, Access.READ)

    def _protect(self, path: bytes) -> None:
        if path in self.rules or self.plan.access(path) is not Access.WRITE:
            return
        now = look(path, follow=False)
        if now is not None and self._is_mask(path, now):
            self._note_missing(path)
            self._mask(path, directory=True)
            return
        self._carve(path, Access.READ, protected=True)
        if now is not None and now[2] == stat.S_IFREG and path.endswith(b"/.git"):
            for target in git_directories(path):
                if target not in self.rules and self.plan.access(target) is Access.WRITE:
                    self._carve(target, Access.READ)

    def _is_mask(self, path: bytes, now: tuple[int, ...]) -> bool:
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
        from handrail.sandbox import globs  # only when there are any

        for glob in self.profile.globs:
            found, closed = globs.expand(glob, self.profile.glob_depth, self.plan.changed)
            for path in closed:
                self._note(path + b"/.")  # no longer there for us as long as it is closed
                self._keep_closed(path, Access.DENY)
            for path in found:
                real = os.path.realpath(path)
                try:
                    self._open(real, lambda link, status: False)
                except Unreachable as closed_one:
                    self._keep_closed(os.path.dirname(closed_one.path), Access.DENY)
                    continue
                except (Missing, Crossed):
                    continue  # gone meanwhile
                self._rule(real, Access.DENY)

    def _private(self) -> None:
        """Our own state, and the sockets of the host, are nobody's business in there."""
        for path in self.profile.private:
            real = os.path.realpath(path)
            if self.plan.access(real) is not Access.DENY:
                self._cover(real)
        if self.profile.network:
            return  # no such sockets can be made at all
        for path in sockets.session_directories():
            if self.plan.access(path) is not Access.DENY and path not in self.rules:
                self._cover(path)
        if not self.profile.sockets:
            return
        self.plan.sockets = sockets.host_sockets()
        within_reach = [p for p in self.plan.sockets if self.plan.access(p) is not Access.DENY]
        if len(within_reach) > MOST_SOCKETS:
            within_reach = sorted({self._place_of(path) for path in within_reach})
        for path in within_reach:
            cover = sockets.cover_for(path)
            if any(within(place, cover) for place in (*self.rules, *self.masks)):
                cover = path  # something in there was asked for
            if cover not in self.rules:
                self._cover(cover)
                if cover == path and self.plan.access(os.path.dirname(path)) is Access.WRITE:
                    self.plan.fragile.append(path)

    def _place_of(self, path: bytes) -> bytes:
        """A socket's directory, but the socket itself if anything in there was asked for."""
        directory = os.path.dirname(path)
        asked = any(within(place, directory) for place in (*self.rules, *self.masks))
        return path if asked else directory

    def _cover(self, path: bytes) -> None:
        try:
            self._open(path, alias_of_the_system)
        except Unreachable as closed:
            self._keep_closed(os.path.dirname(closed.path), Access.DENY)
            return
        except (Missing, Crossed, Refused):
            return  # out of reach for us, so for the command
        self._rule(path, Access.DENY)

    # --- mounts ---------------------------------------------------------------------------

    def _mounts(self) -> None:
        steps = self.plan.steps
        base = self.rules.get(b"/", Access.DENY)
        if base is Access.DENY:
            steps.append(Empty(b"/", 0o755))
            self._recreate_links()
        else:
            steps.append(Bind(b"/", 0, base is Access.WRITE))
            if base is Access.WRITE and os.path.isdir(b"/sys"):
                steps.append(Bind(b"/sys", 0, writable=False))
        places: dict[bytes, Callable[[], None]] = {}
        for path in self._needed():
            places[path] = lambda path=path: self._mount(path)  # type: ignore[misc]
        for path, mask in self.masks.items():
            places[path] = lambda mask=mask: self._mount_mask(mask)  # type: ignore[misc]
        # bwrap reads the whole table of mounts for each bind, so those that make it long come last.
        late = [path for path in places if within(path, b"/dev") or within(path, b"/proc")]
        for path in sorted(places.keys() - set(late), key=_order):
            places[path]()
        self._devices_and_processes()
        for path in sorted(late, key=_order):
            places[path]()
        if base is Access.DENY:
            steps.append(Seal(b"/"))
        self.plan.masks = tuple(self.masks[path] for path in sorted(self.masks))
        self.plan.arguments = mount_arguments(steps)
        if len(self.plan.arguments) > MOST_ARGUMENTS:
            raise Refused(
                f"the profile needs {len(self.plan.arguments)} mount arguments and bubblewrap"
                f" takes {MOST_ARGUMENTS}; deny directories instead of many files"
            )

    def _devices_and_processes(self) -> None:
        self.plan.steps.append(Devices())
        if self.fresh_proc:
            self.plan.steps.append(Processes())
            for path in PROC_READABLE:
                if os.path.exists(path):
                    self.plan.steps.append(Bind(path, 0, writable=False))
            for path in PROC_HIDDEN:
                if os.path.isdir(path):
                    self.plan.steps.append(Empty(path, 0o555))
        else:
            self.plan.steps.append(Empty(b"/proc", 0o555))

    def _needed(self) -> list[bytes]:
        """Rules that say something else than the rule around them; the root is the base."""
        needed: dict[bytes, Access] = {b"/": self.rules.get(b"/", Access.DENY)}
        for path in sorted(self.rules, key=depth):
            around = next(p for p in parents(path) if p in needed) if path != b"/" else b"/"
            if path != b"/" and self.rules[path] is not needed[around]:
                needed[path] = self.rules[path]
        del needed[b"/"]
        return list(needed)

    def _around(self, path: bytes) -> bytes | None:
        return next((p for p in parents(path) if p in self.rules), None)

    def _mount(self, path: bytes) -> None:
        access = self.rules[path]
        around = self._around(path)
        outer = Access.DENY if around is None else self.rules[around]
        opened = self.opened[path]
        if outer is Access.WRITE:
            self._pin(path)
        if access is not Access.DENY:
            self._bind(opened, writable=access is Access.WRITE)
        elif opened.is_directory:
            self._close_directory(path)
        else:
            self.plan.steps.append(EmptyFile(path, self._null(), 0o000))

    def _close_directory(self, path: bytes) -> None:
        reopened = [
            p
            for p, access in self.rules.items()
            if p != path
            and within(p, path)
            and access is not Access.DENY
            and all(
                self.rules.get(q, Access.DENY) is Access.DENY
                for q in parents(p)[: depth(p) - depth(path)]
            )
        ]
        if not reopened:
            self.plan.steps.append(Empty(path, 0o000))
            return
        self.plan.steps.append(Empty(path, 0o111))
        made = {path}
        for inner in sorted(reopened):
            for between in reversed(parents(inner)):
                if between not in made and within(between, path):
                    self.plan.steps.append(Directory(between, 0o111))
                    made.add(between)
            if self.opened[inner].is_directory:
                self.plan.steps.append(Directory(inner, 0o111))
            else:
                self.plan.steps.append(MountPoint(inner, self._null()))
            made.add(inner)
        self.plan.steps.append(Seal(path))

    def _mount_mask(self, mask: Mask) -> None:
        self._pin(mask.path)
        if mask.directory:
            self.plan.steps.append(Empty(mask.path, 0o555))
        else:
            self.plan.steps.append(EmptyFile(mask.path, self._null(), 0o444))

    def _pin(self, path: bytes) -> None:
        """Mount the directories above a carve-out onto themselves, down from the writable root."""
        chain = []
        for place in parents(path):
            access = self.rules.get(place)
            if access is not None and access is not Access.WRITE:
                break
            chain.append(place)
        # The outermost writable rule is a mount already.
        while chain and self.rules.get(chain[-1]) is not Access.WRITE:
            chain.pop()
        for place in reversed(chain[:-1]):
            if place not in self.pinned:
                self.pinned.add(place)
                try:
                    opened = self._open(place, lambda link, status: False)
                except (Missing, Crossed):
                    raise Refused(_exchanged(place)) from None
                self._bind(opened, writable=True)
                self._note(place)

    def _bind(self, opened: Opened, *, writable: bool) -> None:
        # Never by name: it may lead elsewhere by the time bwrap follows it.
        self.plan.steps.append(Bind(opened.path, self._pass(opened.fd), writable))

    def _null(self) -> int:
        self._check_room()
        return self._pass(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _check_room(self) -> None:
        if len(self.plan.passed) >= MOST_DESCRIPTORS:
            raise Refused(
                f"there are too many places to protect for one sandbox (more than"
                f" {MOST_DESCRIPTORS} repositories, denied files and directories around them);"
                " make a smaller directory writable, or deny directories instead of files"
            )

    def _pass(self, fd: int) -> int:
        self._check_room()
        number = FIRST_FD + len(self.plan.passed)
        self.plan.passed.append((number, fd))
        return number

    def _recreate_links(self) -> None:
        """An empty root needs the links that lead to what is readable, such as /bin."""
        for path, target in sorted(self.links.items()):
            if not any(within(path, known) and path != known for known in self.links):
                self.plan.steps.append(Link(path, target))

    # --- looking --------------------------------------------------------------------------

    def _open(self, path: bytes, trusted: Callable[[bytes, os.stat_result], bool]) -> Opened:
        known = self.opened.get(path)
        if known is not None:
            return known
        opened = open_path(path, trusted)
        self.links.update(opened.links)
        known = self.opened.get(opened.path)
        if known is not None:
            os.close(opened.fd)
            return known
        self.opened[opened.path] = opened
        return opened

    def _note(self, path: bytes, *, follow: bool = False) -> None:
        self.plan.facts[path, follow] = look(path, follow)

    def _note_missing(self, path: bytes) -> None:
        self.plan.facts[path, False] = None


def _order(path: bytes) -> tuple[int, bytes]:
    return depth(path), path


def _exchanged(path: bytes) -> str:
    return f"{_shown(path)} was exchanged while the sandbox was made; start the command again"


def _shown(path: bytes) -> str:
    return os.fsdecode(path)
