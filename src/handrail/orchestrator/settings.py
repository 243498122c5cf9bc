"""The settings that decide about a run, as one frozen snapshot.

A run reads its snapshot once, at its start; a change of settings is a new snapshot for later runs.
``sandbox_intent`` turns it into what an executor enforces.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from handrail.errors import UsageError
from handrail.network.settings import Managed
from handrail.policy.context import Approval, Granular, Lookup, Situation
from handrail.policy.rules import Policy, Sandbox, normal_path
from handrail.sandbox import profile
from handrail.sandbox.profile import PEERS_OFF, Access, Entry, Intent, denied

#: Names under a writable root that stay read-only.
PROTECTED_NAMES = tuple(map(os.fsdecode, profile.PROTECTED_NAMES))
#: What a granular table may name; only the first two of these matter to commands and patches.
_GRANULAR = frozenset(
    ("sandbox_approval", "rules", "skill_approval", "request_permissions", "mcp_elicitations")
)


class Mode(enum.Enum):
    """How much of the machine a command may touch."""

    READ_ONLY = "read-only"
    WORKSPACE_WRITE = "workspace-write"
    OFF = "off"
    EXTERNAL = "external-sandbox"

    @classmethod
    def _missing_(cls, value: object) -> Mode | None:
        return cls.OFF if value == PEERS_OFF else None  # which its users may type


class Table(enum.Enum):
    """Which generation of the decision table is used."""

    CURRENT = "current"
    SEED = "seed"


@dataclass(frozen=True, slots=True)
class SandboxMode:
    """A mode with its particulars.  ``deny_read`` are paths or globs no command may read.

    ``workspace``: whether ``workspace-write`` opens the workspace itself, beside
    ``writable_roots``.  ``readable_roots`` are what a restricted command may read.
    """

    mode: Mode = Mode.WORKSPACE_WRITE
    writable_roots: tuple[str, ...] = ()
    network_access: bool = False
    exclude_tmpdir: bool = False
    exclude_slash_tmp: bool = False
    deny_read: tuple[str, ...] = ()
    workspace: bool = True
    readable_roots: tuple[str, ...] = ("/",)
    #: The hosts that a restricted command may reach, instead of ``network_access``.
    managed: Managed | None = None

    def __post_init__(self) -> None:
        if self.managed is not None and not self.restricted:
            raise UsageError(
                "a managed network needs a sandbox, without which nothing enforces it, and the mode"
                f" is {self.mode.value}; take read-only or workspace-write"
            )

    @property
    def restricted(self) -> bool:
        """Whether files are restricted: commands run in a sandbox."""
        return self.mode in (Mode.READ_ONLY, Mode.WORKSPACE_WRITE)

    @property
    def may_run_free(self) -> bool:
        """Whether a run without a sandbox is possible at all: it could read everything."""
        return not self.deny_read and "/" in self.readable_roots


@dataclass(frozen=True, slots=True)
class Grants:
    """What one call, or one session, may do beyond its mode."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    network: bool = False

    def __bool__(self) -> bool:
        return bool(self.read or self.write or self.network)

    def with_(self, other: Grants) -> Grants:
        """The union of both."""
        return Grants(
            tuple(dict.fromkeys(self.read + other.read)),
            tuple(dict.fromkeys(self.write + other.write)),
            self.network or other.network,
        )

    def covers(self, other: Grants) -> bool:
        """Whether everything in ``other`` is in here already."""
        return (
            set(other.read) <= set(self.read) | set(self.write)
            and set(other.write) <= set(self.write)
            and (self.network or not other.network)
        )


@dataclass(frozen=True, slots=True)
class Settings:
    """One snapshot.  ``cwd`` is the workspace, absolute."""

    cwd: str
    approval: Approval = Approval.ON_REQUEST
    granular: Granular | None = None
    sandbox: SandboxMode = field(default_factory=SandboxMode)
    policy: Policy = field(default_factory=Policy, repr=False)
    #: Where «yes, always» is written; None: it is kept until the end of the session only.
    rules_file: str | None = None
    table: Table = Table.CURRENT
    #: The shell that scripts are run with.
    shell: str = "/bin/bash"
    #: Whether this machine can enforce a sandbox at all.
    sandbox_available: bool = True
    #: Whether a call may ask for particular permissions (``with_additional_permissions``).
    additional_permissions: bool = False
    trust_known_safe: bool = False
    unset_sandbox: Sandbox = Sandbox.KEEP
    #: Given for the whole session, on top of the mode.
    grants: Grants = field(default_factory=Grants)
    #: Seconds the approver has for an answer; None: no limit.
    approval_timeout: float | None = 300.0
    #: A directory of the machine that commands have as their /tmp; None: they have the machine's.
    private_tmp: str | None = None
    #: Whether a run that may be offered again outside of its sandbox records for certain what that
    #: refuses, where the executor can; each change to a file then takes tens of microseconds more.
    watch_denials: bool = False

    def __post_init__(self) -> None:
        if not self.cwd.startswith("/"):
            raise UsageError(f"the workspace has to be an absolute path, not {self.cwd!r}")

    def moved(self, *, policy: Policy | None = None, cwd: str | None = None) -> Settings:
        """A copy with other rules or another workspace."""
        return replace(
            self,
            policy=self.policy if policy is None else policy,
            cwd=self.cwd if cwd is None else cwd,
        )

    def situation(self, cwd: str, *, escalates: bool, lookup: Lookup | None = None) -> Situation:
        """The facts that the policy needs besides the command."""
        tmpdir = os.environ.get("TMPDIR")
        return Situation(
            cwd=cwd,
            approval=self.approval,
            granular=self.granular,
            restricted=self.sandbox.restricted,
            escalates=escalates,
            shell=self.shell,
            writable_roots=writable_roots(self, tmpdir) if self.sandbox.restricted else (),
            trust_known_safe=self.trust_known_safe,
            unset_sandbox=self.unset_sandbox,
            lookup=lookup,
        )


def writable_roots(settings: Settings, tmpdir: str | None = None) -> tuple[str, ...]:
    """The directories that commands may write in, without links resolved."""
    mode = settings.sandbox
    if mode.mode in (Mode.OFF, Mode.EXTERNAL):
        return ("/",)
    roots = list(settings.grants.write)
    if mode.mode is Mode.WORKSPACE_WRITE:
        roots += [settings.cwd] if mode.workspace else []
        roots += mode.writable_roots
        roots += [] if mode.exclude_slash_tmp else ["/tmp"]  # noqa: S108 (the mode says so)
        if tmpdir and not mode.exclude_tmpdir and settings.private_tmp is None:
            roots.append(tmpdir)
    return tuple(dict.fromkeys(normal_path(root) for root in roots))


def rules_paths(settings: Settings) -> tuple[str, ...]:
    """The rules files, read and written; a command that can write one can allow itself anything.

    As they are named and where links lead, for either could be written.
    """
    policy = settings.policy
    named = [settings.rules_file, *policy.lost]
    named += [rule.source.path for rule in policy.rules]
    named += [host.source.path for host in policy.hosts.values()]
    named += [rule.source.path for rule in policy.network]
    plain = [os.path.abspath(path) for path in dict.fromkeys(named) if path]
    return tuple(dict.fromkeys([*plain, *(os.path.realpath(path) for path in plain)]))


def is_writable(
    path: str,
    roots: tuple[str, ...],
    granted: tuple[str, ...] = (),
    rules: tuple[str, ...] = (),
) -> bool:
    """Whether a plain absolute path lies in a root and under no protected name of any root.

    ``rules`` are files that only a grant for themselves opens.
    """
    if path in rules:
        return path in granted
    if any(_relative(path, root) is not None for root in granted):
        return True
    inside = [(root, _relative(path, root)) for root in roots]
    found = [(root, rest) for root, rest in inside if rest is not None]
    return bool(found) and not any(
        rest.split("/", 1)[0] in PROTECTED_NAMES for root, rest in found if root != "/"
    )


def _relative(path: str, root: str) -> str | None:
    if path == root:
        return ""
    prefix = root.rstrip("/") + "/"
    return path[len(prefix) :] if path.startswith(prefix) else None


def sandbox_intent(settings: Settings, grants: Grants | None = None) -> Intent | None:
    """The sandbox of a run; None: the mode asks for none."""
    mode = settings.sandbox
    if not mode.restricted and not mode.deny_read:
        return None
    given = settings.grants.with_(grants or Grants())
    entries = [Entry(Access.WRITE, special="root")]
    if mode.restricted:
        entries = [_path(root, Access.READ) for root in mode.readable_roots]
    if mode.mode is Mode.WORKSPACE_WRITE:
        if mode.workspace:
            entries.append(Entry(Access.WRITE, special="project_roots"))
        if not mode.exclude_slash_tmp:
            entries.append(Entry(Access.WRITE, special="slash_tmp"))
        if not mode.exclude_tmpdir:
            entries.append(Entry(Access.WRITE, special="tmpdir"))
        entries += [_path(root, Access.WRITE) for root in mode.writable_roots]
    if mode.restricted:
        # Elsewhere nothing is written anyhow; the more specific entry is the one that counts.
        roots = (*writable_roots(settings, os.environ.get("TMPDIR")), *given.write)
        own = [path for path in rules_paths(settings) if is_writable(path, roots, given.write)]
        entries += [_path(path, Access.READ) for path in own]
    entries += [_path(path, Access.READ) for path in given.read]
    entries += [_path(path, Access.WRITE) for path in given.write]
    entries += [denied(path, settings.cwd) for path in mode.deny_read]
    return Intent(
        entries=tuple(entries),
        network=mode.managed is None
        and (mode.network_access or given.network or not mode.restricted),
        workspace_roots=(native(settings.cwd),),
        private_tmp=_private_tmp(settings),
        cwd=native(settings.cwd),
    )


def _private_tmp(settings: Settings) -> bytes | None:
    mode = settings.sandbox
    excluded = mode.exclude_slash_tmp and mode.exclude_tmpdir
    if settings.private_tmp is None or mode.mode is not Mode.WORKSPACE_WRITE or excluded:
        return None
    return native(settings.private_tmp)


def native(path: str) -> bytes:
    """A path as the kernel has it, in bytes."""
    return path.encode("utf-8", "surrogateescape")


def _path(path: str, access: Access) -> Entry:
    return Entry(access, special="root") if path == "/" else Entry(access, path=native(path))


def read_approval(value: object) -> tuple[Approval, Granular | None]:
    """``untrusted``, ``on-request`` and so on, or ``{"granular": {...}}``; raises UsageError."""
    if isinstance(value, str):
        try:
            return Approval(value), None
        except ValueError:
            pass
    elif isinstance(value, Mapping) and isinstance(value.get("granular"), Mapping):
        given = value["granular"]
        unknown = [*(name for name in value if name != "granular"), *(set(given) - _GRANULAR)]
        if unknown:
            raise UsageError(
                f"{unknown[0]!r} is nothing a granular approval policy knows; it has"
                f" {', '.join(sorted(_GRANULAR))}"
            )
        for name, flag in given.items():
            if not isinstance(flag, bool):
                raise UsageError(f"{name} of an approval policy is True or False, not {flag!r}")
        flags = {name: given.get(name, False) for name in ("sandbox_approval", "rules")}
        return Approval.ON_REQUEST, Granular(**flags)
    names = ", ".join(kind.value for kind in Approval)
    raise UsageError(f"{value!r} is no approval policy; take one of {names}, or a granular table")


def read_mode(value: str) -> Mode:
    """A sandbox mode by its name; raises UsageError."""
    try:
        return Mode(value)
    except ValueError:
        names = ", ".join(mode.value for mode in Mode)
        raise UsageError(f"{value!r} is no sandbox mode; take one of {names}") from None
