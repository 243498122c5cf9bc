"""Method -> call, one short function each.

The only place where both the wire's shapes and the process layer are visible.  A handler
answers at once with a shape, or is a coroutine when it has to wait.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType

from handrail.errors import ProcessExists, RpcError, SandboxError, SpawnFailed, StdinClosed
from handrail.process import env_policy
from handrail.process.child import STREAM_NAMES, Child
from handrail.process.spec import (
    DEFAULT_COLS,
    DEFAULT_ROWS,
    NO_LIMITS,
    OnLag,
    ProcessLimits,
    ProcessSpec,
    signal_number,
)
from handrail.process.table import StartCancelled, Starting
from handrail.protocol import codec, path_uri
from handrail.protocol.envelope import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST
from handrail.protocol.environment import (
    Empty,
    EnvironmentInfo,
    EnvironmentStatus,
    InitializeParams,
    InitializeResult,
    Nothing,
)
from handrail.protocol.methods import Lane
from handrail.protocol.process import (
    LimitsParams,
    ListResult,
    Omitted,
    ProcessInfo,
    ProcessParams,
    ReadParams,
    ResizeParams,
    SignalParams,
    StartParams,
    StartResult,
    TerminateParams,
    TerminateResult,
    WriteParams,
    WriteResult,
)
from handrail.protocol.wire import U64_MAX
from handrail.server.capability_handlers import CAPABILITY_HANDLERS
from handrail.server.configuration_handlers import CONFIGURATION_HANDLERS
from handrail.server.confined_handlers import FILE_HANDLERS
from handrail.server.http_handlers import HTTP_HANDLERS
from handrail.server.notifier import denial_shapes, denied, exit_shape, usage_shape
from handrail.server.results import Parts
from handrail.server.waiting import process_wait

if TYPE_CHECKING:
    from handrail.server.connection import Connection
    from handrail.server.sandboxing import Contained

log = logging.getLogger(__name__)

#: Ids are the client's, but not without bound.
LONGEST_ID = 4096
#: Longer ones are remembered by their hash.
LONGEST_WRITE_ID = 128
#: A longer wait than this is answered early; the client asks again.
LONGEST_WAIT = 3600.0
#: Named to our own clients alone: recorded exchanges compare this answer member by member.
USUAL_BACKEND = "bubblewrap"

#: Timers do not count further than this.
LONGEST_TIMEOUT = 10 * 365 * 86_400.0

_NOTHING = Nothing()
_ACCEPTED = WriteResult(status="accepted")


# --- session and environment -----------------------------------------------------------------


def initialize(conn: Connection, params: InitializeParams) -> InitializeResult:
    if conn.session is not None or conn.initialized:
        raise RpcError(INVALID_REQUEST, "initialize may only be sent once per connection")
    sessions = conn.server.sessions
    info = conn.server.environment_info()
    ttl_ms = _u64("detachTtlMs", params.detach_ttl_ms)
    secret = params.resume_secret
    wants_secret = not isinstance(secret, UnsetType)
    conn.notifier.extended = wants_secret or ttl_ms is not None
    if params.resume_session_id is None:
        session = sessions.create(conn, conn.owner)
    else:
        given = secret if isinstance(secret, str) else None
        session = sessions.resume(params.resume_session_id, conn, conn.owner, given)
    conn.attached(session)
    if ttl_ms is not None:
        sessions.set_ttl(session, ttl_ms / 1000)
    result = InitializeResult(session_id=session.id, environment_info=info)
    if wants_secret:
        result.resume_secret = session.new_secret()
    return result


def environment_info(conn: Connection, params: Empty) -> EnvironmentInfo:
    return conn.server.environment_info()


def environment_status(conn: Connection, params: Empty) -> EnvironmentStatus:
    return EnvironmentStatus(status="ready")


async def session_close(conn: Connection, params: Empty) -> Nothing:
    session = conn.session
    if session is not None:
        # Not undone when the client goes away at once, as it may.
        await asyncio.shield(conn.server.sessions.close(session))
    return _NOTHING


# --- process/start --------------------------------------------------------------------------


def process_start(conn: Connection, params: StartParams) -> Any:
    key = _key(params.process_id)
    spec = _spec(conn, params)
    session = conn.session
    assert session is not None  # noqa: S101 (checked with the handshake)
    conn.server.admit(session)
    if not spec.argv[0] and session.table.get(key) is None:
        raise RpcError(INTERNAL_ERROR, "missing program for pipe spawn")
    held: Contained | None = None
    if params.watch_denials and params.sandbox is None:
        raise RpcError(
            INVALID_PARAMS, "`watchDenials` needs a `sandbox`; leave it out, or give one"
        )
    if params.sandbox is not None:
        from handrail.server.sandboxing import contain  # only when one is asked for

        if session.table.get(key) is None:
            watch = params.watch_denials
            held = contain(conn.server.sandbox, params.sandbox, spec, watch=watch)
            spec = held.spec
    try:
        # Now, not when a task runs: a request behind this one must find the id taken.
        starting = session.table.start(key, spec, session.sink)
    except ProcessExists as error:
        raise RpcError(INVALID_REQUEST, str(error)) from None
    except SpawnFailed as error:
        raise _spawn_error(error) from None
    finally:
        if held is not None:
            held.sent()
    backend = None if held is None else held.backend
    if backend == USUAL_BACKEND and not conn.notifier.extended:
        backend = None
    return _started(key, starting, "none" if held is None else held.type, backend)


async def _started(
    key: str, starting: asyncio.Task[Child], held: str, backend: str | None
) -> StartResult:
    try:
        # Shielded: a client that is lost meanwhile finds the process when it resumes.
        await asyncio.shield(starting)
    except StartCancelled as error:
        raise RpcError(INVALID_REQUEST, str(error)) from None
    except SandboxError as error:
        raise RpcError(INVALID_PARAMS, str(error)) from None
    except SpawnFailed as error:
        raise _spawn_error(error) from None
    return StartResult(
        process_id=key, sandbox_type=held, sandbox_backend=UNSET if backend is None else backend
    )


def _spawn_error(error: SpawnFailed) -> RpcError:
    return RpcError(INTERNAL_ERROR, str(error), {"errno": error.errno, "path": error.path})


def _spec(conn: Connection, params: StartParams) -> ProcessSpec:
    try:
        cwd = path_uri.to_path(params.cwd)
    except path_uri.NotNative as error:
        raise RpcError(
            INVALID_PARAMS,
            f"cwd URI `{error.uri}` is not valid on this exec-server host: {error}",
        ) from None
    except path_uri.BadUri as error:
        raise RpcError(INVALID_PARAMS, str(error)) from None
    if params.network_proxy is not None or (params.enforce_managed_network and params.sandbox):
        raise RpcError(INVALID_PARAMS, "a managed network proxy is not offered by this server")
    if not params.argv:
        raise RpcError(INVALID_PARAMS, "argv must not be empty")
    argv = tuple(_native("argv", word) for word in params.argv)
    if params.name is not None and len(params.name) > LONGEST_ID:
        raise RpcError(INVALID_PARAMS, f"`name` is longer than {LONGEST_ID} characters")
    size = params.size
    return ProcessSpec(
        argv=argv,
        cwd=cwd,
        env=_environment(conn, params),
        tty=params.tty,
        pipe_stdin=params.pipe_stdin,
        arg0=None if params.arg0 is None else _native("arg0", params.arg0),
        name=params.name,
        rows=DEFAULT_ROWS if size is None else size.rows,
        cols=DEFAULT_COLS if size is None else size.cols,
        on_lag=None if params.on_lag is None else OnLag(params.on_lag),
        timeout=None
        if params.timeout_ms is None
        else min(_u64s("timeoutMs", params.timeout_ms) / 1000, LONGEST_TIMEOUT),
        limits=_limits(conn, params.limits),
        detach=params.detach,
    )


def _limits(conn: Connection, given: LimitsParams | None) -> ProcessLimits:
    if given is None:
        return NO_LIMITS
    limits = ProcessLimits(
        memory_bytes=given.memory_bytes,
        pids=given.pids,
        cpu_seconds=given.cpu_seconds,
        address_space_bytes=given.address_space_bytes,
        open_files=given.open_files,
        file_bytes=given.file_bytes,
        output_bytes=given.output_bytes,
    )
    missing = limits.for_keeper().keys() - conn.server.launcher.abilities.limits
    if missing:
        field = "memoryBytes" if "memory" in missing else "pids"
        raise RpcError(
            INVALID_PARAMS,
            f"`limits.{field}` cannot be enforced here, for that needs a control group the server"
            " may write to; run it where one is delegated to it, or leave this limit out",
        )
    return limits


def _environment(conn: Connection, params: StartParams) -> dict[bytes, bytes]:
    given = params.env_policy
    policy = None
    if given is not None:
        policy = env_policy.EnvPolicy(
            inherit=env_policy.Inherit(given.inherit),
            ignore_default_excludes=given.ignore_default_excludes,
            exclude=tuple(given.exclude),
            set=given.set,
            include_only=tuple(given.include_only),
        )
        _check_names("envPolicy.set", given.set)
    _check_names("env", params.env)
    env = env_policy.build(policy, params.env, conn.server.own_environment)
    return {_native("env", k): _native("env", v) for k, v in env.items()}


def _check_names(field: str, names: dict[str, str]) -> None:
    bad = env_policy.bad_name(names)
    if bad is not None:
        raise RpcError(
            INVALID_PARAMS,
            f"`{field}` holds the name {bad[:80]!r}: a name must not be empty or hold = or NUL",
        )


def _native(field: str, text: str) -> bytes:
    if "\0" in text:
        raise RpcError(INVALID_PARAMS, f"`{field}` holds a NUL character")
    return text.encode("utf-8", "surrogateescape")


def _key(process_id: str) -> str:
    if len(process_id) > LONGEST_ID or len(process_id.encode()) > LONGEST_ID:
        raise RpcError(INVALID_PARAMS, f"`processId` is longer than {LONGEST_ID} bytes")
    return process_id


# --- process/read --------------------------------------------------------------------------------


def process_read(conn: Connection, params: ReadParams) -> Any:
    child = _child(conn, params.process_id)
    after = _u64("afterSeq", params.after_seq) or 0
    most = _u64("maxBytes", params.max_bytes)
    wait = min((_u64("waitMs", params.wait_ms) or 0) / 1000, LONGEST_WAIT)
    if child.waits:
        child.acknowledge(1, after)
    result = _read_now(conn, child, after, most, last_chance=wait == 0)
    return result if result is not None else _read_later(conn, child, after, most, wait)


async def _read_later(
    conn: Connection, child: Child, after: int, most: int | None, wait: float
) -> Parts:
    loop = conn.server.loop
    deadline = loop.time() + wait
    conn.calls.park(Lane.ORDINARY)
    try:
        while True:
            await conn.writable()  # answers to one who does not read pile up nowhere
            left = deadline - loop.time()
            result = _read_now(conn, child, after, most, last_chance=left <= 0)
            if result is not None:
                return result
            await child.changed(left)
            if conn.session is None:
                raise RpcError(INVALID_REQUEST, "session has been resumed by another connection")
            if conn.session.ended:
                raise RpcError(INVALID_REQUEST, "the session was closed")
    finally:
        conn.calls.unpark(Lane.ORDINARY)


def _read_now(
    conn: Connection, child: Child, after: int, most: int | None, *, last_chance: bool
) -> Parts | None:
    page = child.log.read(after, most)
    exited = child.exit is not None
    if not (page.chunks or child.closed or (exited and after < page.next_seq - 1) or last_chance):
        return None
    parts = [b'{"chunks":[']
    comma = b""
    for chunk in page.chunks:
        parts.append(
            b'%b{"seq":%d,"stream":"%b","chunk":"'
            % (comma, chunk.seq, STREAM_NAMES[chunk.stream].encode())
        )
        parts.append(codec.encode_base64(child.read_chunk(chunk)))
        comma = b'"},'
    if page.chunks:
        parts.append(b'"}')
    tail: dict[str, object] = {
        "nextSeq": page.next_seq,
        "exited": exited,
        "exitCode": child.exit.code if child.exit is not None else None,
        "closed": child.closed,
        "failure": None,
        "sandboxDenied": denied(child),
        "exit": exit_shape(child),
        "usage": usage_shape(child),
    }
    lost_bytes, lost_chunks = child.log.omitted(after)
    if child.held_open:
        tail["heldOpen"] = True
    if lost_chunks:
        tail["omitted"] = Omitted(bytes=lost_bytes, chunks=lost_chunks)
    if child.verdict is not None:
        tail["denials"] = denial_shapes(child)
    parts.append(b"]," + codec.encode(tail)[1:])
    if not child.waits:
        return Parts(parts)

    receipts = conn.notifier.receipts
    return Parts(parts, lambda: receipts.answered(child, after + 1, page.next_seq - 1))


def _u64s(field: str, value: int) -> int:
    _u64(field, value)
    return value


def _u64(field: str, value: int | None) -> int | None:
    if value is not None and value > U64_MAX:
        raise RpcError(INVALID_PARAMS, f"invalid params: `{field}` does not fit 64 bits")
    return value


# --- input ------------------------------------------------------------------------------------


def process_write(conn: Connection, params: WriteParams) -> Any:
    data = codec.decode_base64(params.chunk, "chunk")
    write_id = params.write_id
    if not write_id:
        raise RpcError(INVALID_PARAMS, "writeId must not be empty")
    if len(write_id) > LONGEST_WRITE_ID:
        # Thousands are remembered for each process, so not the long ones themselves.
        write_id = "sha256 " + hashlib.sha256(write_id.encode()).hexdigest()
    child = _entry(conn, params.process_id)
    if child is None:
        return WriteResult(status="unknownProcess")
    if isinstance(child, Starting):
        return WriteResult(status="starting")
    if not (child.spec.tty or child.spec.pipe_stdin):
        return WriteResult(status="stdinClosed")
    if child.ledger.known(write_id):
        _note_conflict(child, write_id, data)
        return _ACCEPTED
    if child.terminated:
        raise RpcError(INTERNAL_ERROR, "failed to write to process stdin")
    if not child.running:
        # As the peer: accepted, and nobody is there to read it.
        child.ledger.accept(write_id, data)
        return _ACCEPTED

    def accept() -> bool:
        if child.ledger.known(write_id):
            _note_conflict(child, write_id, data)
            return False
        child.ledger.accept(write_id, data)
        return True

    try:
        turn = child.write(data, accept)
    except StdinClosed:
        return WriteResult(status="stdinClosed")
    except OSError as error:
        raise _no_room(error) from None
    return _ACCEPTED if turn is None else _write_later(conn, turn)


async def _write_later(conn: Connection, turn: Any) -> WriteResult:
    conn.calls.park(Lane.ORDINARY)
    try:
        await turn
    except StdinClosed:
        raise RpcError(INTERNAL_ERROR, "failed to write to process stdin") from None
    except OSError as error:
        raise _no_room(error) from None
    finally:
        conn.calls.unpark(Lane.ORDINARY)
    return _ACCEPTED


def _no_room(error: OSError) -> RpcError:
    return RpcError(
        INTERNAL_ERROR,
        f"no room to keep input of this process ({error.strerror}); nothing was accepted, send"
        " the same write again later",
    )


def _note_conflict(child: Child, write_id: str, data: bytes) -> None:
    if child.ledger.conflicts(write_id, data):
        log.warning(
            "write id %r of process %r came again with other bytes; they were not written",
            write_id[:80],
            child.key[:80],
        )


def process_close_stdin(conn: Connection, params: ProcessParams) -> Nothing:
    _child(conn, params.process_id).close_stdin()
    return _NOTHING


def process_resize(conn: Connection, params: ResizeParams) -> Nothing:
    child = _child(conn, params.process_id)
    if not child.spec.tty:
        raise RpcError(
            INVALID_REQUEST,
            f"process {params.process_id} has no terminal; start it with tty to resize it",
        )
    child.resize(params.rows, params.cols)
    return _NOTHING


# --- ends -------------------------------------------------------------------------------------


async def process_signal(conn: Connection, params: SignalParams) -> Nothing:
    number = signal_number(params.signal)
    child = _entry(conn, params.process_id)
    reachable = isinstance(child, Child) and (child.running or params.tree)
    # The wire knows `interrupt` alone and refuses other names; ours are understood where they
    # have an effect, so that a client of the wire is answered as it expects for the rest.
    if number is not None and params.signal != "interrupt" and not reachable:
        raise RpcError(
            INVALID_PARAMS,
            f"process {params.process_id[:80]} is not running here, so it takes no"
            f" `{params.signal[:40]}`; ask process/list for those that are",
        )
    if number is None:
        raise RpcError(
            INVALID_PARAMS,
            f"no signal `{params.signal[:40]}` for this process; use `interrupt`, or for one that"
            " runs a name such as `term`",
        )
    if isinstance(child, Child):
        await child.signal(number, tree=params.tree)
    return _NOTHING


def process_terminate(conn: Connection, params: TerminateParams) -> Any:
    if _entry(conn, params.process_id) is None and conn.calls.cancel_queued_start(
        params.process_id
    ):
        return TerminateResult(running=True)
    return _terminate(conn, params)


async def _terminate(conn: Connection, params: TerminateParams) -> TerminateResult:
    grace = min((_u64("graceMs", params.grace_ms) or 0) / 1000, LONGEST_WAIT)
    session = conn.session
    child = _entry(conn, params.process_id)
    if isinstance(child, Starting):
        assert session is not None  # noqa: S101 (checked with the handshake)
        session.table.cancel_start(child)
        return TerminateResult(running=True)
    if child is None:
        if params.tree and session is not None:
            for forgotten in session.table.left_behind(params.process_id):
                await forgotten.kill()
        return TerminateResult(running=False)
    if not child.running:
        if params.tree:
            await child.kill()
        return TerminateResult(running=False)
    if grace:
        conn.server.spawn_task(child.end(grace))
    else:
        await child.kill()
    return TerminateResult(running=True)


async def process_list(conn: Connection, params: Empty) -> ListResult:
    session = conn.session
    assert session is not None  # noqa: S101 (checked with the handshake)
    orphans = await conn.server.launcher.orphans()
    rows = [_info(child, orphans.get(child.number, 0)) for child in session.table]
    for child in session.table.left_behind():
        if child.number in orphans:
            rows.append(_info(child, orphans[child.number]))
    for child in conn.server.sessions.detached(session.owner):
        rows.append(_info(child, orphans.get(child.number, 0), detached=True))
    return ListResult(processes=rows)


def _info(child: Child, orphans: int, *, detached: bool = False) -> ProcessInfo:
    state = "running" if child.running else "closed" if child.closed else "exited"
    return ProcessInfo(
        process_id=child.key,
        name=child.spec.name,
        argv=[word.decode("utf-8", "replace") for word in child.spec.argv],
        cwd=path_uri.to_uri(child.spec.cwd),
        tty=child.spec.tty,
        pid=child.pid if child.running else None,
        state=state,  # type: ignore[arg-type]
        exit=exit_shape(child),
        started_at_ms=int(child.started_at * 1000),
        output_bytes=child.log.bytes_total,
        next_seq=child.log.next_seq,
        orphans=orphans,
        held_open=child.held_open,
        detached=detached,
    )


def _entry(conn: Connection, key: str) -> Child | Starting | None:
    session = conn.session
    if session is None:
        return None
    return session.table.get(key) or conn.server.sessions.reattach(session, key)


def _child(conn: Connection, key: str) -> Child:
    child = _entry(conn, key)
    if isinstance(child, Starting):
        raise RpcError(INVALID_REQUEST, f"process id {key} is starting")
    if child is None:
        raise RpcError(INVALID_REQUEST, f"unknown process id {key}")
    return child


HANDLERS: dict[str, Callable[[Connection, Any], Any]] = {
    "initialize": initialize,
    "environment/info": environment_info,
    "environment/status": environment_status,
    "session/close": session_close,
    "process/start": process_start,
    "process/read": process_read,
    "process/write": process_write,
    "process/closeStdin": process_close_stdin,
    "process/resize": process_resize,
    "process/signal": process_signal,
    "process/terminate": process_terminate,
    "process/list": process_list,
    "process/wait": lambda conn, params: process_wait(
        conn, params, _child(conn, params.process_id)
    ),
    **FILE_HANDLERS,
    **HTTP_HANDLERS,
    **CAPABILITY_HANDLERS,
    **CONFIGURATION_HANDLERS,
}
