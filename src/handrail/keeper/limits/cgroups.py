"""Control groups, one for each child, so that a kill reaches all of its descendants.

The child steps into its group before it becomes the program (``group_spawn.py``), so that nothing
of the program is ever outside.  ``cgroup.kill`` then ends all processes in it in one write, daemons
that changed session, parent and environment included.

What the machine offers is found by doing it once (``__init__``).  Version 2 is needed for
killing; limits are also taken from the older ``memory`` and ``pids`` hierarchies, where the
system has them there.  A child whose limits need a group gets one; all get one only if that is
asked for, since a start in a group takes a fifth more time at best (docs/decisions/0007).

Children of one workspace of the server have a group around theirs (``of-NAME``), whose limits hold
for all of them together.  It is made with the first of them and goes with the last.
"""

from __future__ import annotations

import os

from handrail.keeper import fork
from handrail.keeper.limits import tree_watcher

#: The option of a mount whose groups can be entered at once, and where the kernel tells whether it
#: knows it.
FAST = "favordynmods"
FEATURES = "/sys/kernel/cgroup/features"
#: Among the limits of a child: the number of the workspace that it is in, and what all children of
#: that may use together, in bytes and in thousandths of a processor.
GROUP, GROUP_MEMORY, GROUP_CPUS = b"of", b"of-memory", b"of-cpus"
_AROUND = "of-"
#: Marks a wait status: the kernel ended a process of this child for want of memory.
OUT_OF_MEMORY = 0x10000

#: In our environment: ``cgroup`` for every child, ``walk`` for none; else where limits need one.
CHOICE = "HANDRAIL_TREES"


def name_of(keeper: int) -> str:
    """The name of a keeper's directory: a pid means a process in one pid namespace only."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0  # no /proc: as one namespace with all others that have none
    return f"handrail-{keeper}.{namespace:x}"


class Hierarchy:
    """One mounted hierarchy of groups, and the directory in which the keeper makes its own."""

    __slots__ = ("base", "unified")

    def __init__(self, own: str, *, unified: bool) -> None:
        self.unified = unified
        self.base = f"{own}/{name_of(os.getpid())}"

    def path(self, mark: int, around: str = "") -> str:
        """The group of a child, in the one ``around`` it, if there is one."""
        return f"{self.base}/{around}{mark:x}"

    def make(self, mark: int, around: str = "") -> str:
        """Make a group; returns the file by which a process enters it."""
        path = self.path(mark, around)
        try:
            os.mkdir(path)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.mkdir(path)
        return f"{path}/cgroup.procs"

    def remove(self, mark: int, around: str = "") -> bool:
        """Remove the group; False while a process is in it."""
        gone = _remove(self.path(mark, around))
        if around and gone:
            _remove_empty(f"{self.base}/{around}")
        return gone


class Cgroups:
    """The groups of all children of one keeper."""

    def __init__(self) -> None:
        self.kills: Hierarchy | None = None
        self.limits: dict[bytes, Hierarchy] = {}  # b"memory", b"pids"
        #: Of the limits that all children of a workspace share; all or none.
        self.shared: dict[bytes, Hierarchy] = {}  # b"memory", b"cpus"
        self._made: dict[int, list[Hierarchy]] = {}
        #: The groups around those of children, by mark.
        self._around: dict[int, str] = {}
        self._leaving: set[int] = set()
        self.everyone = False  # gets a group
        choice = os.environ.get(CHOICE)
        if choice == "walk":
            return
        places = _places()
        unified = _usable(places.get("", ""), unified=True)
        if unified is not None:
            self.kills = unified
            self.everyone = choice == "cgroup"
            _delegate(unified)
        for name in ("memory", "pids"):
            controllers = _read(f"{unified.base}/cgroup.controllers") if unified else b""
            if unified is not None and name.encode() in controllers.split():
                self.limits[name.encode()] = unified
            else:
                older = _usable(places.get(name, ""), unified=False)
                if older is not None:
                    self.limits[name.encode()] = older
        if choice == "cgroup" or _is_fast():
            self._share(places, unified, forced=choice == "cgroup")
        for place in self._places():
            _sweep(os.path.dirname(place.base))
            self._find(place)

    def _share(self, places: dict[str, str], unified: Hierarchy | None, *, forced: bool) -> None:
        """Find whether workspaces can have limits.

        In version 2 that is one step into a group.  The older hierarchies are another one each,
        1 ms, so they are used only if groups are asked for.
        """
        memory = self.limits.get(b"memory")
        if memory is None or self.kills is None:
            return
        controllers = _read(f"{unified.base}/cgroup.controllers").split() if unified else ()
        cpus: Hierarchy | None = None
        if b"cpu" in controllers and memory is unified:
            cpus = unified
        elif forced:
            cpus = _usable(places.get("cpu", ""), unified=False)
        if cpus is not None:
            self.shared = {b"memory": memory, b"cpus": cpus}

    def _find(self, place: Hierarchy, around: str = "") -> None:
        """Find the groups that exist already, made by this keeper before an upgrade."""
        try:
            names = [e.name for e in os.scandir(f"{place.base}/{around}") if e.is_dir()]
        except OSError:
            return
        for name in names:
            if name.startswith(_AROUND) and not around:
                self._find(place, f"{name}/")
                continue
            mark = int(name, 16)
            self._made.setdefault(mark, []).append(place)
            if around:
                self._around[mark] = around

    @property
    def rung(self) -> bytes:
        """The way in which trees are ended here."""
        return b"cgroup" if self.everyone else b"walk"

    def prepare(self, mark: int, limits: dict[bytes, int]) -> list[str]:
        """Make the groups of a new child; returns the files by which it enters them."""
        needed = limits.keys() & self.limits.keys() if limits else ()
        shared = _shared(limits) if limits and self.shared else {}
        if not needed and not shared and not self.everyone:
            return []
        places = [self.kills] if self.kills is not None else []
        for place in (*map(self.limits.__getitem__, needed), *map(self.shared.get, shared)):
            if place is not None and place not in places:
                places.append(place)
        around = ""
        if shared:
            around = self._around[mark] = f"{_AROUND}{limits[GROUP]:x}/"
        doors = []
        for place in places:
            self._made.setdefault(mark, []).append(place)
            try:
                doors.append(place.make(mark, around))
            except OSError:
                if needed or shared:
                    raise
                return []  # out of groups: this child is ended by the walk
        for name, value in shared.items():
            place = self.shared[name]
            _set_limit(f"{place.base}/{around}", name, place.unified, value)
        for name in needed:
            place = self.limits[name]
            _set_limit(place.path(mark, around), name, place.unified, limits[name])
        return doors

    def not_held(self, limits: dict[bytes, int]) -> dict[bytes, int]:
        """The limits of a whole tree for which this machine has no control group."""
        if not limits:
            return {}
        return {name: limits[name] for name in _TREE if name in limits.keys() - self.limits.keys()}

    def kill(self, mark: int) -> int:
        """Kill all processes of a group; returns how many there were."""
        if self.kills is None or self.kills not in self._made.get(mark, ()):
            return 0
        path = self.kills.path(mark, self._around.get(mark, ""))
        count = len(_read(f"{path}/cgroup.procs").split())
        try:
            _write(f"{path}/cgroup.kill", b"1")
        except OSError:
            return 0
        return count

    def exceeded(self, mark: int) -> int:
        """The marks of what the kernel has done to this group for a limit.

        It has killed a process because memory ran out, or refused one beyond their number; of a
        command that has ended well all the same the second is no more than news.
        """
        made = self._made.get(mark, ())
        memory, pids = self.limits.get(b"memory"), self.limits.get(b"pids")
        if memory is not None and memory in made:
            file = "memory.events" if memory.unified else "memory.oom_control"
            if self._counted(memory, mark, file, b"oom_kill"):
                return OUT_OF_MEMORY
        if pids is not None and pids in made and self._counted(pids, mark, "pids.events", b"max"):
            return tree_watcher.TOO_MANY
        return 0

    def _counted(self, place: Hierarchy, mark: int, file: str, event: bytes) -> bool:
        """Whether a file of the group counts an event of this name."""
        for line in _read(f"{place.path(mark, self._around.get(mark, ''))}/{file}").splitlines():
            name, _, count = line.partition(b" ")
            if name == event:
                return int(count) > 0
        return False

    def forget(self, mark: int) -> None:
        """Remove this group as soon as no process is in it."""
        if mark in self._made:
            self._leaving.add(mark)
            self.tidy()

    def tidy(self) -> None:
        """Remove the groups that have become empty."""
        for mark in list(self._leaving):
            around = self._around.get(mark, "")
            left = [place for place in self._made[mark] if not place.remove(mark, around)]
            self._made[mark] = left
            if not left:
                del self._made[mark]
                self._around.pop(mark, None)
                self._leaving.discard(mark)

    def close(self) -> None:
        for place in self._places():
            _remove(place.base)

    def _places(self) -> set[Hierarchy]:
        places = {*self.limits.values(), *self.shared.values()}
        return places | {self.kills} if self.kills is not None else places


#: Where a limit is written, by hierarchy (True: version 2), and whether it may be missing.
_FILES: dict[bytes, dict[bool, tuple[tuple[str, bool], ...]]] = {
    b"memory": {
        True: (("memory.max", False), ("memory.swap.max", True)),
        False: (("memory.limit_in_bytes", False), ("memory.memsw.limit_in_bytes", True)),
    },
    b"pids": {True: (("pids.max", False),), False: (("pids.max", False),)},
    b"cpus": {True: (("cpu.max", False),), False: (("cpu.cfs_quota_us", False),)},
}
#: Of a whole tree, by these names.
_TREE = (b"memory", b"pids")


def _shared(limits: dict[bytes, int]) -> dict[bytes, int]:
    """The limits of the workspace that a child is in."""
    if GROUP not in limits:
        return {}
    names = {GROUP_MEMORY: b"memory", GROUP_CPUS: b"cpus"}
    return {name: limits[given] for given, name in names.items() if limits.get(given)}


def _set_limit(path: str, name: bytes, unified: bool, value: int) -> None:
    """Write one limit of a group; raises OSError."""
    for file, optional in _FILES[name][unified]:
        data = b"%d" % value
        if file == "memory.swap.max":
            data = b"0"
        elif name == b"cpus":  # thousandths of a processor, of which the period is 0.1 s
            data = b"%d" % max(1000, value * 100)
            data = data + b" 100000" if unified else data
        try:
            _write(f"{path}/{file}", data)
        except OSError:
            if not optional:
                raise
    if unified and name == b"memory":
        try:  # else it is not told which of the children the kernel killed
            _write(f"{path}/cgroup.subtree_control", b"+memory")
        except OSError:
            pass  # a child's own group, or the controller is not there


def _places() -> dict[str, str]:
    """The keeper's own group in each mounted hierarchy: "" for version 2, else by controller."""
    mounted: dict[str, tuple[str, str]] = {}
    for line in _read("/proc/self/mountinfo").decode("utf-8", "surrogateescape").splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        root, point = fields.split(" ")[3:5]
        if kind == "cgroup2":
            mounted[""] = (root, point)
        elif kind == "cgroup":
            for name in options.split(","):
                mounted.setdefault(name, (root, point))
    found = {}
    for line in _read("/proc/self/cgroup").decode("utf-8", "surrogateescape").splitlines():
        _, controllers, own = line.split(":", 2)
        for name in controllers.split(","):
            root, point = mounted.get(name, ("", ""))
            if point and (own + "/").startswith(root.rstrip("/") + "/"):
                found[name] = (point + "/" + own[len(root) :].strip("/")).rstrip("/")
    return found


def _usable(own: str, *, unified: bool) -> Hierarchy | None:
    """Try to make a group, let a process enter it, and remove it."""
    if not own:
        return None
    place = Hierarchy(own, unified=unified)
    good = False
    try:
        good = fork.try_door(place.make(0))
        good = good and (not unified or os.path.exists(f"{place.path(0)}/cgroup.kill"))
    except OSError:
        pass  # not writable here: no groups
    # Made again with the first group; what one leaves that is killed is for _sweep().
    good = place.remove(0) and good
    _remove_empty(place.base)
    return place if good else None


def _is_fast() -> bool:
    """Whether a process enters a group of version 2 in microseconds, at any time.

    Since Linux 6.0 it first waits until every processor has come by, 6 to 17 ms, unless another
    has entered one just before or version 2 is mounted with an option.  A kernel that does not
    know the option never waits.
    """
    features = _read(FEATURES).split()
    if features and FAST.encode() not in features:
        return True
    for line in _read("/proc/self/mountinfo").decode("utf-8", "surrogateescape").splitlines():
        kind, _, options = line.partition(" - ")[2].split(" ", 2)
        if kind == "cgroup2" and FAST in options.split(","):
            return True
    return False


def _delegate(place: Hierarchy) -> None:
    """Enable limits below the keeper's group; only the root group, or one without members, may."""
    own = os.path.dirname(place.base)
    if not {b"memory", b"pids", b"cpu"} & set(_read(f"{own}/cgroup.controllers").split()):
        return
    os.makedirs(place.base, exist_ok=True)
    for path in (own, place.base):
        for name in (b"+memory", b"+pids", b"+cpu"):
            try:
                _write(f"{path}/cgroup.subtree_control", name)
            except OSError:
                pass  # without that controller: its limits are then not offered


def _sweep(own: str) -> None:
    """Remove groups that killed keepers left, where no process is in them any more.

    Not those of another pid namespace, where a keeper may live whose child has not yet stepped into
    its group.
    """
    try:
        names = os.listdir(own)
    except OSError:
        return
    for name in names:
        pid = name.removeprefix("handrail-").partition(".")[0]
        ours = pid.isdigit() and name == name_of(int(pid))
        if ours and not os.path.exists(f"/proc/{pid}"):
            _remove(f"{own}/{name}")


def _remove(path: str) -> bool:
    """Remove a group and those below it; False while a process is in one."""
    try:
        os.rmdir(path)
        return True
    except FileNotFoundError:
        return True
    except OSError:
        pass  # groups below it, or a process
    try:
        below = [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
        for one in below:
            _remove(one)
        if below:
            os.rmdir(path)
            return True
    except OSError:
        pass  # a process is in one of them
    return False


def _remove_empty(path: str) -> None:
    try:
        os.rmdir(path)
    except OSError:
        pass  # groups of the keeper we were before


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
