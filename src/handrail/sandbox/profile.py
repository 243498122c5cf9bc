"""Permissions and how they combine.  Pure.

An ``Intent`` is what a client asked for, with symbolic roots; ``resolve`` binds it to this
machine and gives a ``Profile``: absolute paths, one access each, hashable, so that a plan can be
remembered for it.  What the file system looks like is no matter of this module.

(``Frozen`` and ``Choice`` here and around: dataclasses and enumerations take longer to import than
a whole sandbox takes to be made, and ``handrail sandbox`` pays for it each time.)
"""

from __future__ import annotations

import posixpath

from handrail.sandbox.light_dataclass import Choice, Frozen
from handrail.start_errors import SandboxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from handrail.own_code import Place


#: Names under a writable root that stay read-only unless an entry names them.
PROTECTED_NAMES = (b".git", b".agents", b".codex")
MINIMAL_ROOTS = (
    b"/bin",
    b"/sbin",
    b"/usr",
    b"/etc",
    b"/lib",
    b"/lib64",
    b"/nix/store",
    b"/run/current-system/sw",
)
#: The host's directories for temporary files, which a sandbox can have others for.
SYSTEM_TMP = (b"/tmp", b"/var/tmp")
#: Where every sandbox has devices, terminals and shared memory of its own.
DEVICES = b"/dev"
#: Directories of ``/tmp`` for the sockets of all users.
OPEN_NAMES = (b".X11-unix", b".ICE-unix")
#: Symbolic roots of the host's directories for temporary files.
TEMPORARY = ("slash_tmp", "tmpdir")
#: Why a workspace that may be written is not the whole machine, for every surface.
AT_ROOT = (
    "a workspace at / that may be written holds nothing back; name another directory, or use the"
    " sandbox read-only or off"
)
#: The peer's name for no sandbox, which we call ``off``.
PEERS_OFF = "danger-full-access"
PROJECT_ROOTS_PREFIX = "codex-project-roots://"
#: One of these makes a denied path a pattern.
_GLOB_CHARACTERS = frozenset("*?[")


class Access(Choice):
    """What one entry says; of two for the same path the larger number wins."""

    READ = 1
    WRITE = 2
    DENY = 3


class BadIntent(SandboxError):
    """The permissions make no sense; nothing was started.

    ``field`` is the member of the wire form whose URI, ``uri``, is wrong; "" for the whole intent.
    """

    def __init__(self, text: str, field: str = "", uri: str = "") -> None:
        super().__init__(text)
        self.field = field
        self.uri = uri


class Files(Choice):
    """By what files are restricted."""

    RESTRICTED = 1  # the entries
    UNRESTRICTED = 2  # nothing
    EXTERNAL = 3  # the caller, in a way of its own


class Entry(Frozen):
    """One permission as it was asked for: exactly one of path, glob and special is given."""

    access: Access
    path: bytes | None = None
    glob: str | None = None
    special: str | None = None  # root, minimal, project_roots, tmpdir, slash_tmp, unknown
    subpath: bytes | None = None


def is_pattern(path: str) -> bool:
    """Whether a denied path is a pattern; braces without a comma are part of a name."""
    return not _GLOB_CHARACTERS.isdisjoint(path) or "," in path.partition("{")[2]


def denied(path: str, base: str) -> Entry:
    """The entry for a path or a pattern that is hidden; relative ones start at ``base``."""
    if is_pattern(path):
        return Entry(Access.DENY, glob=path)
    full = posixpath.normpath(posixpath.join(base, path))
    return Entry(Access.DENY, path=full.encode("utf-8", "surrogateescape"))


class Intent(Frozen):
    """What a caller asked for.  ``disabled`` asks for no sandbox at all.

    ``intent.py`` reads and writes the form that travels on the wire.
    """

    files: Files = Files.RESTRICTED
    entries: tuple[Entry, ...] = ()
    network: bool = False
    disabled: bool = False
    workspace_roots: tuple[bytes, ...] = ()
    glob_depth: int | None = None
    protected: tuple[bytes, ...] = PROTECTED_NAMES
    #: The directory that is shown as /tmp and /var/tmp, instead of the host's (``private_tmp``).
    private_tmp: bytes | None = None
    #: Where relative patterns start; None: in the directory of the command.
    cwd: bytes | None = None
    #: A network of its own with a proxy as the only way out, whatever ``network`` and ``disabled``
    #: say (``handrail.network``).
    managed: bool = False

    @property
    def is_off(self) -> bool:
        """Whether it asks for no sandbox, in whatever words."""
        if self.managed:
            return False
        return self.disabled or (self.files is not Files.RESTRICTED and self.network)

    @property
    def wants_tmp(self) -> bool:
        """Whether commands are to have a place for temporary files."""
        return any(
            entry.special in TEMPORARY and entry.access is Access.WRITE for entry in self.entries
        )


class Machine(Frozen):
    """What symbolic roots mean here.  ``tmpdir`` is the server's own, never the request's."""

    tmpdir: bytes | None = None
    home: bytes | None = None
    slash_tmp: bool = True
    minimal: tuple[bytes, ...] = MINIMAL_ROOTS
    #: Directories of ours that no sandbox may write to.
    private: tuple[bytes, ...] = ()
    #: Where our own code lies (``own_code.places``).
    own_code: tuple[Place, ...] = ()


class Rule(Frozen):
    """One absolute path and what may be done below it."""

    path: bytes
    access: Access


class Glob(Frozen):
    """A pattern of paths that are denied; ``base`` is what a relative pattern starts from."""

    base: bytes
    pattern: str


class Profile(Frozen):
    """Permissions bound to this machine.  Rules are sorted by depth, each path once."""

    rules: tuple[Rule, ...] = ()
    globs: tuple[Glob, ...] = ()
    network: bool = False
    sandboxed: bool = True  # False: nothing is asked for, so there is no sandbox
    glob_depth: int | None = None
    protected: tuple[bytes, ...] = PROTECTED_NAMES
    #: Shared directories, in which no name is ever made up to protect it.
    shared: tuple[bytes, ...] = ()
    private: tuple[bytes, ...] = ()
    own_code: tuple[Place, ...] = ()
    #: Whether Unix sockets may be made; a supervisor has to answer their connects then.
    sockets: bool = True
    private_tmp: bytes | None = None
    #: Whether missing names are covered on the host; else the process is told to refuse them.
    placeholders: bool = True
    #: The network is its own, and a proxy the only way out.
    managed: bool = False

    def access(self, path: bytes) -> Access:
        """What the rules alone say of a path: the most specific one wins, none denies."""
        for rule in reversed(self.rules):
            if within(path, rule.path):
                return rule.access
        return Access.DENY


def resolve(intent: Intent, cwd: bytes, machine: Machine) -> Profile:
    """Bind an intent to this machine; raises BadIntent.

    ``cwd`` is the directory of the command, for an intent that names none.
    """
    cwd = intent.cwd or cwd
    if intent.is_off:
        return Profile(network=True, sandboxed=False)
    if intent.disabled or intent.files is not Files.RESTRICTED:
        everything = (Rule(b"/", Access.WRITE),)
        private = _normal(machine.private)
        return Profile(
            everything, network=False, protected=(), private=private, managed=intent.managed
        )
    rules: dict[bytes, Access] = {}
    shared: set[bytes] = set()
    roots = _roots(intent)
    for entry in intent.entries:
        if entry.glob is not None:
            continue
        if intent.private_tmp and entry.special in TEMPORARY and entry.access is not Access.DENY:
            continue  # which are not the host's then
        for path in _paths(entry, roots, machine):
            rules[path] = max(rules.get(path, entry.access), entry.access)
        if entry.special in TEMPORARY:
            shared.update(_paths(entry, roots, machine))
    _show_roots(roots, rules, (*SYSTEM_TMP, DEVICES) if intent.private_tmp else (DEVICES,))
    ordered = sorted(rules.items(), key=lambda item: (depth(item[0]), item[0]))
    return Profile(
        rules=tuple(Rule(path, access) for path, access in ordered),
        globs=globs_of(intent, cwd),
        network=intent.network and not intent.managed,
        glob_depth=intent.glob_depth,
        protected=intent.protected,
        shared=tuple(sorted(shared | {b"/tmp", b"/var/tmp", b"/dev/shm"})),
        private=_normal(machine.private),
        own_code=machine.own_code,
        private_tmp=intent.private_tmp and _absolute(intent.private_tmp, "private /tmp"),
        managed=intent.managed,
    )


def _show_roots(
    roots: Sequence[bytes], rules: dict[bytes, Access], places: Sequence[bytes]
) -> None:
    """Name the workspaces that lie where the sandbox has a directory of its own."""
    for root in roots:
        if root not in rules and any(within(root, place) for place in places):
            around = next((path for path in parents(root) if path in rules), None)
            if around is not None and rules[around] is not Access.DENY:
                rules[root] = rules[around]


def _paths(entry: Entry, roots: Sequence[bytes], machine: Machine) -> Iterable[bytes]:
    if entry.path is not None:
        return (_absolute(entry.path, "path"),)
    if entry.special == "root":
        return (b"/",)
    if entry.special == "minimal":
        return machine.minimal
    if entry.special == "project_roots":
        return [_below(root, entry.subpath) for root in roots]
    if entry.special == "slash_tmp":
        return (b"/tmp",) if machine.slash_tmp else ()
    if entry.special == "tmpdir":
        return _tmpdir(roots, machine)
    return ()  # a kind that only a newer client knows grants nothing


def _tmpdir(roots: Sequence[bytes], machine: Machine) -> Iterable[bytes]:
    if not machine.tmpdir or not machine.tmpdir.startswith(b"/"):
        return ()
    path = normal(machine.tmpdir)
    # One that would open more than a place for temporary files grants nothing.
    home = normal(machine.home) if machine.home else None
    if path == b"/" or (home is not None and within(home, path)):
        return ()
    return () if any(root != path and within(root, path) for root in roots) else (path,)


def globs_of(intent: Intent, cwd: bytes) -> tuple[Glob, ...]:
    """The patterns of an intent, for a command in this directory; raises BadIntent."""
    entries = [entry for entry in intent.entries if entry.glob is not None]
    roots = _roots(intent) if entries else []
    cwd = intent.cwd or cwd
    return tuple(glob for entry in entries for glob in _globs(entry, cwd, roots))


def _roots(intent: Intent) -> list[bytes]:
    return [_absolute(root, "workspace root") for root in intent.workspace_roots]


def _globs(entry: Entry, cwd: bytes, roots: Sequence[bytes]) -> list[Glob]:
    pattern = entry.glob or ""
    if entry.access is not Access.DENY:
        raise BadIntent(
            f"the glob pattern `{pattern}` can only deny; give paths for read and write access"
        )
    if not pattern or "\0" in pattern:
        raise BadIntent("a glob pattern must not be empty or hold NUL; leave the entry out")
    if pattern.startswith(PROJECT_ROOTS_PREFIX):
        below = _plain(pattern.removeprefix(PROJECT_ROOTS_PREFIX))
        return [Glob(root, below) for root in roots]
    if pattern.startswith("/"):
        return [Glob(b"/", _plain(pattern))]
    if pattern.startswith("{") and ("{/" in pattern or ",/" in pattern):
        raise BadIntent(
            f"the glob pattern `{pattern}` begins with a choice of absolute paths, which would"
            " match nothing; deny each of them"
        )
    return [Glob(_absolute(cwd, "sandbox cwd"), _plain(pattern))]


def _plain(pattern: str) -> str:
    """Relative, and without names that no path that is walked has."""
    from handrail.glob_pattern import plain  # few profiles have patterns

    found = plain(pattern).lstrip("/")
    if not found:
        raise BadIntent(f"the glob pattern `{pattern}` names nothing; deny the directory by path")
    return found


def _below(root: bytes, subpath: bytes | None) -> bytes:
    if not subpath:
        return root
    if subpath.startswith(b"/") or b".." in subpath.split(b"/"):
        raise BadIntent(
            f"the subpath `{subpath.decode(errors='replace')}` leaves its project root; name a"
            " path inside it"
        )
    return _absolute(posixpath.join(root, subpath), "subpath")


def _absolute(path: bytes, what: str) -> bytes:
    if not path.startswith(b"/") or b"\0" in path:
        shown = path.decode(errors="replace")
        raise BadIntent(f"the {what} `{shown}` is not an absolute path; give one")
    return normal(path)


def _normal(paths: Iterable[bytes]) -> tuple[bytes, ...]:
    return tuple(normal(path) for path in paths)


def normal(path: bytes) -> bytes:
    """Without ``.``, ``..``, double and trailing slashes, as words alone say."""
    return b"/" + posixpath.normpath(path).lstrip(b"/")


def depth(path: bytes) -> int:
    """How many components a normal path has."""
    return 0 if path == b"/" else path.count(b"/")


def within(path: bytes, root: bytes) -> bool:
    """Whether a normal path is another one or lies below it."""
    return path == root or root == b"/" or path.startswith(root + b"/")


def known_names(uid: int) -> tuple[bytes, ...]:
    """Directories of a shared ``/tmp`` that are covered even before they are there."""
    return b"tmux-%d" % uid, b"handrail-%d" % uid, *OPEN_NAMES


def parents(path: bytes) -> list[bytes]:
    """The strict ancestors of a normal path, nearest first."""
    if path == b"/":
        return []
    found = []
    # Not by `dirname`: a plan asks for some 90 lists of them, most of what it decides by paths.
    while (end := path.rfind(b"/")) > 0:
        path = path[:end]
        found.append(path)
    found.append(b"/")
    return found


# --- the older policies ---------------------------------------------------------------------


def read_only(*, network: bool = False) -> Intent:
    """Read everything, write nothing; never raises."""
    return Intent(entries=(Entry(Access.READ, special="root"),), network=network)


def workspace_write(
    workspace_roots: tuple[bytes, ...],
    *,
    writable_roots: tuple[bytes, ...] = (),
    network: bool = False,
    slash_tmp: bool = True,
    tmpdir: bool = True,
) -> Intent:
    """Read everything; write the workspace, temporary directories and the given roots.

    Never raises: paths are checked when the intent is bound to a machine.
    """
    entries = [
        Entry(Access.READ, special="root"),
        Entry(Access.WRITE, special="project_roots"),
        *(Entry(Access.WRITE, path=root) for root in writable_roots),
    ]
    if slash_tmp:
        entries.append(Entry(Access.WRITE, special="slash_tmp"))
    if tmpdir:
        entries.append(Entry(Access.WRITE, special="tmpdir"))
    return Intent(entries=tuple(entries), network=network, workspace_roots=workspace_roots)


def off() -> Intent:
    """No sandbox; never raises."""
    return Intent(disabled=True, network=True)
