"""Shapes of ``workspace/*`` and ``template/*``: the workspaces that a server holds for a fleet.

All of it is ours; the capability ``workspaces`` says whether a server was given a directory for it.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType, field

from handrail.protocol.struct_base import Unsigned, Wire

#: A workspace's id: a file name, and no hidden one.
WorkspaceId = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")]
#: The owner or the tenant of a workspace.
Name = Annotated[str, Meta(min_length=1, max_length=200)]
#: The SHA-256 of a template's archive.
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Labels = dict[str, str]
DEFAULT_TENANT = "default"
#: Resources are counted as 64-bit numbers.
Amount = Annotated[int, Meta(ge=0, le=2**62)]


class HoldParams(Wire):
    """Hold all workspaces of an owner for as long as this connection lives."""

    owner: Name


class HoldResult(Wire):
    """The life of this server's processes; another value says that all workspaces are new."""

    incarnation: str


class CreateParams(Wire):
    """Make a workspace, or find the one of that id and owner."""

    workspace_id: WorkspaceId
    owner: Name
    #: With a signed token it is the token's subject, and no other may be named.
    tenant: Name = DEFAULT_TENANT
    #: The digest of a template that was added; null: an empty directory.
    template: Digest | None = None
    labels: Labels = field(default_factory=dict)
    cpu_millis: Amount = 0
    memory_bytes: Amount = 0
    #: How long it lives without a connection that holds its owner.
    lease_ms: Amount = 600_000
    #: Whether this connection's session enters it at once.
    enter: bool = False
    #: Whether the session goes on after the release, to enter the next workspace.
    shared: bool = False
    #: A workspace of the same owner that is released first, whatever becomes of this one.
    releases: WorkspaceId | None = None


class WorkspaceResult(Wire, omit_defaults=True):
    """Where a workspace is, as URIs, and whether it came from a warm pool."""

    root: str
    temporary: str
    warm: bool
    #: Whether control groups hold its processes to what it asked for; else that is counted alone.
    enforced: bool
    #: The session that is in it.
    session_id: str | UnsetType = UNSET


class WorkspaceParams(Wire):
    """A workspace by its id, and its owner as the client knows it."""

    workspace_id: WorkspaceId
    owner: Name


class AdoptResult(Wire):
    """A workspace of another owner, now this one's; the session in it can be resumed."""

    root: str
    temporary: str
    warm: bool
    enforced: bool
    tenant: str
    template: str | None
    labels: Labels
    cpu_millis: int
    memory_bytes: int
    lease_ms: int
    #: For ``initialize``; null when no session is in it: then enter it with a new one.
    session_id: str | None
    resume_secret: str | None


class ListParams(Wire):
    """Which workspaces to list: all, those of an owner, those with all of these labels."""

    owner: str | None = None
    labels: Labels = field(default_factory=dict)


class WorkspaceEntry(Wire):
    """One workspace of a list."""

    workspace_id: str
    owner: str
    tenant: str
    labels: Labels
    template: str | None
    root: str
    warm: bool
    enforced: bool
    cpu_millis: int
    memory_bytes: int
    lease_ms: int
    #: Whether a connection holds its owner.
    held: bool
    session_id: str | None
    #: Processes that run, and all that are known.
    running: int
    processes: int


class ShareEntry(Wire):
    """What a server may give to workspaces, and what of it is free."""

    cpu_millis: int
    memory_bytes: int
    workspaces: int
    free_cpu_millis: int
    free_memory_bytes: int
    free_workspaces: int


class ListResult(Wire):
    """What the server has for workspaces, and those that it holds."""

    workspaces: list[WorkspaceEntry]
    share: ShareEntry
    #: Bytes that are free on the disk of workspaces, and how many have to stay so.
    free_disk: int
    min_free: int
    #: Ready workspaces of each warm pool, by the digest of its template.
    pools: dict[str, int]
    templates: list[str]
    incarnation: str
    server_pid: int
    keeper_pid: int


class PoolParams(Wire):
    """Keep so many workspaces of a template ready; 0 ends the pool."""

    template: Digest
    size: Annotated[int, Meta(ge=0, le=100_000)]
    #: A program and its arguments, run once in each before it is ready.
    prepare: list[str] | None = None


class PoolResult(Wire):
    """How many are ready."""

    ready: Unsigned


class TemplateAddParams(Wire):
    """An archive on this machine, and the SHA-256 that it must have."""

    digest: Digest
    path: str
