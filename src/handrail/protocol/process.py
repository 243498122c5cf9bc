"""Shapes of ``process/*``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType, field

from handrail.protocol.environment import Shell
from handrail.protocol.network import NetworkProxyParams
from handrail.protocol.struct_base import U16, Unsigned, Wire

#: Within the kernel's own range.
Positive = Annotated[int, Meta(ge=1, le=2**62)]
Rows = Annotated[int, Meta(ge=1, le=65_535)]


class EnvPolicyParams(Wire):
    """How the environment is composed before ``env`` is laid over it."""

    inherit: Literal["all", "core", "none"]
    ignore_default_excludes: bool
    exclude: list[str]
    set: dict[str, str]
    include_only: list[str]


class SizeParams(Wire):
    """Ours: rows and columns of a terminal."""

    rows: Rows
    cols: Rows


class ManagedNetwork(Wire):
    """Which loopback ports a sandboxed process may use."""

    loopback_ports: list[U16] = field(default_factory=list)
    allow_local_binding: bool = False


class ShellSnapshotParams(Wire):
    """The shell whose state is wanted back; an ordinary start here."""

    #: At most 256 bytes, and not empty.
    scope_id: str
    shell: Shell


class LimitsParams(Wire, forbid_unknown_fields=True):
    """Ours: resource limits of a process; refused where the machine cannot enforce them."""

    #: Memory of the whole tree; beyond it the kernel kills one of its processes or, without a
    #: control group, the keeper all of them.
    memory_bytes: Positive | None = None
    #: Processes and threads of the whole tree; beyond it none can be started or, without a control
    #: group, the tree is ended, and ``exit.kind`` is ``evicted``.
    pids: Positive | None = None
    #: CPU time of each process.
    cpu_seconds: Positive | None = None
    #: Total output; beyond it the tree is ended, and ``exit.kind`` is ``evicted``.
    output_bytes: Positive | None = None
    #: Address space of each process.
    address_space_bytes: Positive | None = None
    #: Open files of each process.
    open_files: Positive | None = None
    #: The size of each file it writes.
    file_bytes: Positive | None = None


class StartParams(Wire):
    """Start one process."""

    process_id: str
    argv: list[str]
    cwd: str
    env: dict[str, str]
    tty: bool
    env_policy: EnvPolicyParams | None = None
    pipe_stdin: bool = False
    arg0: str | None = None
    sandbox: dict[str, Any] | None = None
    enforce_managed_network: bool = False
    managed_network: ManagedNetwork | None = None
    network_proxy: NetworkProxyParams | None = None
    shell_snapshot: ShellSnapshotParams | None = None
    #: Ours: a display name, shown by ``process/list``.
    name: str | None = None
    #: Ours: labels, shown by ``process/list`` and stored with its result.
    labels: dict[str, str] | None = None
    #: Ours: the names of variables whose values are masked in what is stored of it.
    secret_env: list[str] | None = None
    #: Ours: output that the client does not take: ``block`` makes the process wait, also while no
    #: client is attached, and drops nothing; ``drop`` never makes it wait, and reports what was
    #: dropped.  Without it the process waits while a client is attached, and beyond the retention
    #: output is dropped while none is.
    on_lag: Literal["block", "drop"] | None = None
    #: Ours: after this long the whole tree is ended, with two seconds of grace, and ``exit.kind``
    #: is ``timedOut``.
    timeout_ms: Unsigned | None = None
    #: Ours: resource limits.  A limit that cannot be enforced here is refused.
    limits: LimitsParams | None = None
    #: Ours: it is not ended with its session.  Any later session of the same client finds it in
    #: ``process/list`` and owns it from the first call that names it.
    detach: bool = False
    #: Ours: the first size of the terminal.
    size: SizeParams | None = None
    #: Ours: sandboxed processes of a session that name the same, and may do the same (files, and
    #: hosts of a managed network), have one network namespace: what one of them listens on at
    #: 127.0.0.1 the others reach there.  Without it each has its own, as with the peer.
    loopback: str | None = None
    #: Ours: record what the sandbox refuses while it happens (see ``docs/sandbox.md``).
    watch_denials: bool = False
    #: Ours: its client wants nothing but its end, so the answer may be held back for a moment, to
    #: be sent together with what the process does.
    gather: bool = False
    #: Ours: ``percent`` says that ``argv``, ``arg0``, ``env`` and ``envPolicy`` are
    #: percent-encoded, names and values, so that they can hold any bytes but NUL.
    words: Literal["percent"] | None = None


class StartResult(Wire):
    """The process runs."""

    process_id: str
    sandbox_type: str
    #: Ours: the sandbox backend; absent without one, and for bubblewrap unless the client named one
    #: of our members in ``initialize``.
    sandbox_backend: str | UnsetType = UNSET


class ProcessParams(Wire):
    """One process by its id."""

    process_id: str


class ReadParams(Wire):
    """Retained output above a sequence number, or wait for some."""

    process_id: str
    after_seq: Unsigned | None = None
    max_bytes: Unsigned | None = None
    wait_ms: Unsigned | None = None


#: What the wire calls the fields of ``Limits``.
LIMITS = {
    "cpu_seconds": "cpuSeconds",
    "memory": "memoryBytes",
    "processes": "pids",
    "file_size": "fileBytes",
    "open_files": "openFiles",
    "output": "outputBytes",
    "address_space": "addressSpaceBytes",
}
#: What the wire calls the end by a limit that handrail enforces; for the others the kernel does.
LIMIT_KINDS = {"memory": "outOfMemory", "output": "evicted", "processes": "evicted"}


class OutputChunk(Wire):
    """Some bytes of one stream, as base64."""

    seq: int
    stream: Literal["stdout", "stderr", "pty"]
    chunk: str


class ExitShape(Wire):
    """Ours: how a process ended."""

    #: ``exited``, ``signaled``, ``terminated``, ``timedOut``, ``outOfMemory``, ``evicted`` or
    #: ``lost``.
    kind: str
    #: What a shell would show; null when it is unknown.
    code: int | None
    signal: str | None = None
    core_dumped: bool = False
    #: The field of ``limits`` that has ended it: ``memoryBytes`` (the kind is ``outOfMemory``),
    #: ``outputBytes`` or ``pids`` (``evicted``), ``cpuSeconds`` or ``fileBytes`` (``signaled``, or
    #: ``exited`` where a shell passes it on).  Absent: none has.
    limit: str | UnsetType = UNSET


class UsageShape(Wire):
    """Ours: what a process has cost; null is not known, for its keeper was killed.

    CPU time is that of the process and of all descendants that had ended before it, or are ended
    with it, sandboxed or not; a descendant that lives on is not counted.  Of one that is ended
    with it and takes longer, it is what was used until then, by the kernel's clock ticks.
    """

    wall_ms: int
    user_ms: int | None
    system_ms: int | None
    #: Of the largest of these processes.
    max_rss_bytes: int | None


class DenialShape(Wire):
    """Ours: one thing that a sandbox refused, or seems to have refused."""

    kind: str
    op: str | None
    path: str | None
    source: str
    certain: bool
    #: Of a network denial: the host, its port, and what is known of the request.
    host: str | UnsetType = UNSET
    port: int | UnsetType = UNSET
    protocol: str | UnsetType = UNSET
    method: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    pid: int | UnsetType = UNSET
    comm: str | UnsetType = UNSET
    #: How often it was refused.
    count: int | UnsetType = UNSET
    #: So many further denials of this kind are not listed.
    omitted: int | UnsetType = UNSET


class Omitted(Wire):
    """Ours: what the retention dropped above ``afterSeq``."""

    bytes: int
    chunks: int


class ReadResult(Wire):
    """Output and state; go on with ``afterSeq = nextSeq - 1``."""

    chunks: list[OutputChunk]
    next_seq: int
    exited: bool
    exit_code: int | None
    closed: bool
    failure: str | None
    sandbox_denied: bool
    #: Ours: how it ended; null while it runs.
    exit: ExitShape | UnsetType | None = UNSET
    #: Ours: resource usage; null while it runs.
    usage: UsageShape | UnsetType | None = UNSET
    #: Ours: what the retention dropped above ``afterSeq``; absent if nothing.
    omitted: Omitted | UnsetType = UNSET
    #: Ours: closed while a descendant still has its output open; absent otherwise.
    held_open: bool | UnsetType = UNSET
    #: Ours: known refusals; absent while it runs and without a sandbox.
    denials: list[DenialShape] | UnsetType = UNSET


class WriteParams(Wire):
    """Bytes for stdin, applied once per ``writeId``."""

    process_id: str
    chunk: str
    write_id: str
    #: Ours: what to do when stdin is full. ``busy``: answer so at once; without it the answer waits
    #: for space.
    on_full: Literal["busy"] | None = None


class WriteResult(Wire):
    """The result of a write."""

    #: ``busy`` is ours and comes only if requested: nothing was taken, the same ``writeId`` may be
    #: sent again.
    status: Literal["accepted", "unknownProcess", "stdinClosed", "starting", "busy"]
    #: Ours: with ``busy``, how many bytes would be taken now.
    free_bytes: int | UnsetType = UNSET


class SignalParams(Wire):
    """Signal the process group; ours: any signal name, and ``tree`` for all descendants."""

    process_id: str
    #: ``interrupt``; ours: any signal by its lower-case name, for a process that runs.
    signal: str
    #: Ours: reach every descendant, also when the leader has exited.
    tree: bool = False


class TerminateParams(Wire):
    """Kill the whole tree; ours: ``graceMs`` first, ``tree`` also after the leader's exit."""

    process_id: str
    #: Ours: HUP for a terminal and TERM now, KILL after this long.
    grace_ms: Unsigned | None = None
    #: Ours: end what is left of the tree when the leader has exited.
    tree: bool = False


class TerminateResult(Wire):
    """Whether the process was running when it was asked to end."""

    running: bool


class ResizeParams(Wire):
    """Ours: a new size for a terminal."""

    process_id: str
    rows: Rows
    cols: Rows


class WaitParams(Wire):
    """Ours: wait for any of several things; each is optional."""

    process_id: str
    #: Regular expressions; the syntax of Python's ``re`` without back references and
    #: look-around, ``^`` and ``$`` at lines, over the bytes of UTF-8.
    patterns: list[str] = field(default_factory=list)
    #: Where the search starts: the position of a byte in all output of the process, both streams in
    #: the order of their sequence numbers.  Absent: output from now on.
    from_byte: Unsigned | None = None
    #: Nothing was written for this long.
    idle_ms: Unsigned | None = None
    #: The exit of the process, after all output before it was searched.
    exit: bool = True
    #: How long to wait in all; absent or too long: the server's maximum.
    timeout_ms: Unsigned | None = None
    #: A wait of the same name on this connection ends now with ``replaced``.  So a client ends a
    #: wait it does not need any more by another one with a ``timeoutMs`` of 0.
    wait_id: str | None = None


class WaitResult(Wire, omit_defaults=True):
    """Ours: which of them happened."""

    reason: Literal["pattern", "idle", "exit", "deadline", "replaced"]
    #: Where to continue: behind the match that ended first, or behind all that was searched.
    position: int
    exited: bool
    next_seq: int
    #: Which pattern matched, from 0.
    pattern: int | None = None
    #: Bytes after ``fromByte`` that were no longer retained.
    omitted_bytes: int = 0
    #: Bytes of all output so far, which may be more than ``position``.
    output_bytes: int = 0


class ProcessInfo(Wire):
    """Ours: one entry of ``process/list``."""

    process_id: str
    name: str | None
    argv: list[str]
    cwd: str
    tty: bool
    pid: int | None
    state: Literal["starting", "running", "exited", "closed"]
    exit: ExitShape | None
    started_at_ms: int
    output_bytes: int
    next_seq: int
    #: Descendants that have outlived their parents.
    orphans: int
    #: Closed while a descendant still has its output open; what it writes is discarded.
    held_open: bool
    #: Its session has ended, and it runs on.
    detached: bool
    labels: dict[str, str] = field(default_factory=dict)
    #: What it has cost so far, or in all; absent unless it was asked for.
    usage: UsageShape | UnsetType | None = UNSET


class ListParams(Wire, forbid_unknown_fields=True):
    """Ours: which facts about processes to look up; ``{}`` and no parameters are the same."""

    #: Also what they cost: running ones are looked up in ``/proc``.
    usage: bool = False


class ListResult(Wire):
    """Ours: the processes of this session."""

    processes: list[ProcessInfo]


class OutputNotification(Wire):
    """Output, as it happens."""

    process_id: str
    seq: int
    stream: Literal["stdout", "stderr", "pty"]
    chunk: str
    #: Ours: what was dropped before this chunk of a process with ``onLag: drop``.
    omitted: Omitted | UnsetType = UNSET


class ExitedNotification(Wire):
    """The process has exited; output of its descendants may follow."""

    process_id: str
    seq: int
    exit_code: int | None
    sandbox_denied: bool
    #: Ours: for clients that named one of our members in ``initialize``.
    exit: ExitShape | UnsetType = UNSET
    #: Ours: as ``exit``.
    usage: UsageShape | UnsetType = UNSET
    #: Ours: as ``exit``; absent without a sandbox.
    denials: list[DenialShape] | UnsetType = UNSET


class ClosedNotification(Wire):
    """Exited, and every stream has ended: the last sequence number."""

    process_id: str
    seq: int
    #: Ours: a descendant still has a stream open two seconds after the exit; for clients that
    #: named one of our members in ``initialize``.
    held_open: bool | UnsetType = UNSET
