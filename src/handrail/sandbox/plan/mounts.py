"""From rules to the mounts that enforce them.

Rules that add nothing to the rule around them are dropped; the others become mounts in the order of
their depth.  A path with less access below a writable one is a *carve-out*: the directories between
are pinned by mounting them onto themselves, for a mount point cannot be renamed.  bwrap mounts
carve-outs, or ``premount_program.py`` before it, if there are many or a running sandbox could
replace them meanwhile (``beforehand``).  ``path_rules.py`` decides which paths are carved out.
"""

from __future__ import annotations

import os

from handrail.sandbox.bwrap import premount
from handrail.sandbox.bwrap.arguments import (
    FIRST_FD,
    FIRST_PROCESS,
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
    Step,
    mount_arguments,
)
from handrail.sandbox.plan.placeholder_lease import Placeholder
from handrail.sandbox.plan.plan import Plan, look
from handrail.sandbox.plan.safe_open import Crossed, Exchanged, Missing, Opened, Places, Refused
from handrail.sandbox.profile import DEVICES, Access, depth, parents, within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


#: Limit of fds a plan may pass; the kernel takes 253 in one message, and bwrap and the command need
#: some of their own.
MOST_DESCRIPTORS = 240
#: From this number on carve-outs are mounted beforehand: with fewer, bwrap is faster.
MANY = 48
#: The kernel allows 100,000 mounts in a namespace, and bwrap copies each of these twice.
MOST_BEFOREHAND = 25_000


class Mounts:
    """Builds the mounts of one plan."""

    def __init__(
        self,
        plan: Plan,
        places: Places,
        masks: Mapping[bytes, Placeholder],
        fresh_proc: bool,
        careful: bool,
        own: Mapping[bytes, Opened] | None,
    ) -> None:
        """``own``: what is mounted where the host has something else (``private_tmp``)."""
        self._own = own or {}
        self._tops = plan.shown.mounts
        self._plan = plan
        self._rules = plan.rules
        self._places = places
        self._masks = masks
        self._fresh_proc = fresh_proc
        self._pinned: set[bytes] = set()
        self._needed = _needed(plan.rules, self._tops)
        #: Directories with something readable, or writable, below them against their own rule.
        self._readable_below: set[bytes] = set()
        self._writable_below: set[bytes] = set()
        for path in self._needed:
            if self._rules[path] is not Access.DENY:
                self._readable_below.update(parents(path))
            if self._rules[path] is Access.WRITE:
                self._writable_below.update(parents(path))
        #: What is mounted beforehand, if anything is.
        self._beforehand: list[tuple[bytes, Opened]] | None = None
        #: Whether what is being mounted may vanish at any time.
        self._transient = False
        plan.found = self._has_found()
        many = len(self._needed) + len(masks) > MANY or self._between() > MANY
        if (many or (careful and plan.found)) and premount.possible():
            self._beforehand = []

    def _between(self) -> int:
        """How many directories lie between rules and what is mounted in them: each is pinned."""
        found: set[bytes] = set()
        for path in (*self._needed, *self._masks):
            for place in parents(path):
                if place in self._rules or place in found:
                    break
                found.add(place)
        return len(found)

    def _has_found(self) -> bool:
        """Whether something below a writable path was found rather than named.

        A command that is running there may replace it by a link while bwrap sets the sandbox up,
        and bwrap (before 0.12) follows it and creates what is missing at its target.
        """
        named = {rule.path for rule in self._plan.profile.rules}
        named |= self._plan.own_code | self._own.keys()
        for path in self._needed:
            around = self._around(path)
            if around is None or self._rules[around] is not Access.WRITE or path in named:
                continue
            protected = os.path.basename(path) in self._plan.profile.protected
            if not (protected and os.path.dirname(path) in named):
                return True
        return False

    def make(self) -> None:
        """Fill the plan; raises Refused."""
        steps = self._plan.steps
        base = self._rules.get(b"/", Access.DENY)
        if base is Access.DENY:
            steps.append(Empty(b"/", 0o755))
            self._recreate_links()
        else:
            steps.append(Bind(b"/", 0, base is Access.WRITE))
            if base is Access.WRITE and os.path.isdir(b"/sys"):
                steps.append(Bind(b"/sys", 0, writable=False))
        places: dict[bytes, Callable[[], None]] = {}
        for path in self._needed:
            mount = self._mount_transient if path in self._plan.transient else self._mount
            places[path] = lambda path=path, mount=mount: mount(path)  # type: ignore[misc]
        for path in self._masks:
            places[path] = lambda path=path: self._pin(path)  # type: ignore[misc]
        # bwrap reads the whole mount table for each bind, so those that make it long come last.
        late = [path for path in places if _comes_last(path)]
        for path in sorted(places.keys() - set(late), key=_order):
            places[path]()
        self._devices_and_processes()
        for path in sorted(late, key=_order):
            places[path]()
        if base is Access.DENY:
            steps.append(Seal(b"/"))
        for path in sorted(self._masks, key=_order):
            self._mount_mask(self._masks[path])
        self._plan.masks = tuple(self._masks[path] for path in sorted(self._masks))
        self._request()
        self._plan.arguments = mount_arguments(steps)
        if len(self._plan.arguments) > MOST_ARGUMENTS:
            raise Refused(
                f"the profile needs {len(self._plan.arguments)} mount arguments and bubblewrap"
                f" takes {MOST_ARGUMENTS}; deny directories instead of many files"
            )

    def _devices_and_processes(self) -> None:
        self._plan.steps.append(Devices())
        if self._fresh_proc:
            self._plan.steps += [Processes(), Empty(FIRST_PROCESS, 0o555)]
            for path in PROC_READABLE:
                if os.path.exists(path):
                    self._plan.steps.append(Bind(path, 0, writable=False))
            for path in PROC_HIDDEN:
                if os.path.isdir(path):
                    self._plan.steps.append(Empty(path, 0o555))
        else:
            self._plan.steps.append(Empty(b"/proc", 0o555))

    def _around(self, path: bytes) -> bytes | None:
        return next((p for p in parents(path) if p in self._rules), None)

    def _mount_transient(self, path: bytes) -> None:
        self._transient = True
        try:
            self._mount(path)
        except Exchanged:
            pass  # gone, and with it what was to be kept
        finally:
            self._transient = False

    def _mount(self, path: bytes) -> None:
        access = self._rules[path]
        around = self._around(path)
        outer = Access.DENY if around is None else self._rules[around]
        opened = self._opened(path)
        if outer is Access.WRITE:
            self._pin(path)
        inner = path in self._readable_below
        if access is Access.DENY and inner and opened.is_directory:
            self._close_directory(path)
        elif access is Access.DENY:
            self._hide(opened)
        elif (
            access is Access.READ
            and outer is Access.WRITE
            and path not in self._writable_below
            and path not in self._tops  # mounted on what exists only in the sandbox
            and path not in self._own
        ):
            self._carve(premount.READ, opened, lambda: self._bind(opened, writable=False))
        else:
            # Never beforehand: what bwrap copies from a read-only path stays read-only.
            self._plan.steps.append(self._bind(opened, writable=access is Access.WRITE))

    def _opened(self, path: bytes) -> Opened:
        own = self._own.get(path)
        return self._places[path] if own is None else own

    def _hide(self, opened: Opened) -> None:
        if opened.is_directory:
            self._carve(premount.EMPTY_DIRECTORY, opened, lambda: Empty(opened.path, 0o000))
        else:
            self._carve(
                premount.EMPTY_FILE, opened, lambda: EmptyFile(opened.path, self._null(), 0o000)
            )

    def _carve(self, what: bytes, opened: Opened, step: Callable[[], Step]) -> None:
        """Mount it beforehand, or let bwrap do so."""
        if self._beforehand is not None and not _comes_last(opened.path):
            how = what + premount.IF_THERE if self._transient else what
            self._beforehand.append((how, opened))
        else:
            self._plan.steps.append(step())

    def _request(self) -> None:
        if not self._beforehand:
            return
        if len(self._beforehand) + len(self._masks) > MOST_BEFOREHAND:
            raise Refused(_too_many(MOST_BEFOREHAND))
        places = ((what, *opened.identity, opened.path) for what, opened in self._beforehand)
        self._plan.beforehand = premount.request(places)
        self._plan.roots_beforehand = self._roots()

    def _roots(self) -> tuple[premount.Place, ...]:
        """What the mounter mounts in bwrap's namespace, with all the rest in it; none: it cannot.

        That are the writable mounts of bwrap, where bwrap mounts nothing further in them, and empty
        ones in what is not writable.
        """
        steps = {step.path for step in self._plan.steps}
        found: dict[bytes, premount.Place] = {}
        masks = [(premount.PIN, 0, 0, path) for path in self._masks if not _comes_last(path)]
        for place in (*premount.places(self._plan.beforehand), *masks):
            what, _, _, path = place
            root = next(around for around in (path, *parents(path)) if around in steps)
            if root in found:
                continue
            if self._can_be_replaced(root, steps):
                found[root] = (premount.PIN, *self._places[root].identity, root)
            elif what in (premount.EMPTY_DIRECTORY, premount.EMPTY_FILE):
                found[path] = place
            else:
                return ()
        return tuple(found.values()) if len(found) <= MOST_DESCRIPTORS else ()

    def _can_be_replaced(self, root: bytes, steps: set[bytes]) -> bool:
        """Whether bwrap's mount of a writable path has no other mount of bwrap in it."""
        if root == b"/" or root in self._own or self._rules.get(root) is not Access.WRITE:
            return False
        return not any(within(step, root) and step != root for step in steps)

    def _close_directory(self, path: bytes) -> None:
        """Close a directory with something open below it: only the names on the way remain."""
        reopened = [
            p
            for p, access in self._rules.items()
            if p != path
            and within(p, path)
            and access is not Access.DENY
            and all(
                self._rules.get(q, Access.DENY) is Access.DENY
                for q in parents(p)[: depth(p) - depth(path)]
            )
        ]
        self._plan.steps.append(Empty(path, 0o111))
        made = {path}
        for inner in sorted(reopened):
            for between in reversed(parents(inner)):
                if between not in made and within(between, path):
                    self._plan.steps.append(Directory(between, 0o111))
                    made.add(between)
            if self._opened(inner).is_directory:
                self._plan.steps.append(Directory(inner, 0o111))
            else:
                self._plan.steps.append(MountPoint(inner, self._null()))
            made.add(inner)
        self._plan.steps.append(Seal(path))

    def _mount_mask(self, mask: Placeholder) -> None:
        if self._beforehand is not None and not _comes_last(mask.path):
            self._plan.masks_beforehand = True  # each, when it was made
        elif mask.directory:
            self._plan.steps.append(Empty(mask.path, 0o555))
        else:
            self._plan.steps.append(EmptyFile(mask.path, self._null(), 0o444))

    def _pin(self, path: bytes) -> None:
        """Mount the directories above a carve-out onto themselves, down from the writable root."""
        chain = []
        for place in parents(path):
            access = self._rules.get(place)
            if access is not None and access is not Access.WRITE:
                break
            chain.append(place)
            if place in self._tops:
                break
        # The outermost writable rule is a mount already.
        while chain and self._rules.get(chain[-1]) is not Access.WRITE:
            chain.pop()
        for place in reversed(chain[:-1]):
            if place not in self._pinned:
                self._pinned.add(place)
                self._pin_one(place)

    def _pin_one(self, place: bytes) -> None:
        try:
            opened = self._places.open(place, lambda link, status: False)
        except (Missing, Crossed):
            raise Exchanged(place) from None
        self._carve(premount.PIN, opened, lambda: self._bind(opened, writable=True))
        self._plan.facts[place, False] = look(place, follow=False)

    def _bind(self, opened: Opened, *, writable: bool) -> Bind:
        # Never by name: it may lead elsewhere by the time bwrap follows it.
        self._check_room()
        return Bind(opened.path, self._pass(self._places.take(opened)), writable)

    def _null(self) -> int:
        self._check_room()
        return self._pass(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _check_room(self) -> None:
        if len(self._plan.passed) >= MOST_DESCRIPTORS:
            raise Refused(_too_many(MOST_DESCRIPTORS))

    def _pass(self, fd: int) -> int:
        number = FIRST_FD + len(self._plan.passed)
        self._plan.passed.append((number, fd))
        return number

    def _recreate_links(self) -> None:
        """An empty root needs the links that lead to readable paths, such as /bin."""
        for path, target in sorted(self._places.links.items()):
            if not any(within(path, known) and path != known for known in self._places.links):
                self._plan.steps.append(Link(path, target))


def _needed(rules: Mapping[bytes, Access], tops: set[bytes]) -> list[bytes]:
    """Rules that differ from the rule around them, or show something else.

    The root is the base.  Below /dev a rule shows the host's: what is around it is the sandbox's.
    """
    needed: dict[bytes, Access] = {b"/": rules.get(b"/", Access.DENY)}
    for path in sorted(rules, key=depth):
        around = next(p for p in parents(path) if p in needed) if path != b"/" else b"/"
        covered = path != DEVICES and within(path, DEVICES) and not within(around, DEVICES)
        if path != b"/" and (rules[path] is not needed[around] or path in tops or covered):
            needed[path] = rules[path]
    del needed[b"/"]
    return list(needed)


def _comes_last(path: bytes) -> bool:
    return within(path, DEVICES) or within(path, b"/proc")


def _order(path: bytes) -> tuple[int, bytes]:
    return depth(path), path


def _too_many(most: int) -> str:
    return (
        f"there are too many places to protect for one sandbox (more than {most} repositories,"
        " denied files and directories around them); make a smaller directory writable, or deny"
        " directories instead of files"
    )
