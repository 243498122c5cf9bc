"""process/start: what is asked for becomes a complete spec, or a refusal that names the field.

An id that is taken is refused by ``process/table.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, structs

from handrail.errors import ProcessExists, RpcError, SandboxError, SpawnFailed
from handrail.process import env_policy
from handrail.process.child import Child
from handrail.process.spec import (
    DEFAULT_COLS,
    DEFAULT_ROWS,
    NO_LIMITS,
    Group,
    Limits,
    OnLag,
    ProcessSpec,
)
from handrail.process.starting import StartCancelled
from handrail.protocol import path_uri, percent_words
from handrail.protocol.envelope import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST
from handrail.protocol.process import EnvPolicyParams, LimitsParams, StartParams, StartResult
from handrail.sandbox.denial import LINUX_SECCOMP
from handrail.sandbox.sandboxed_command import BUBBLEWRAP, NO_SANDBOX
from handrail.server.methods import process_lookup
from handrail.server.raw_results import Later

if TYPE_CHECKING:
    from handrail.network.managed.process import ManagedProcess
    from handrail.sandbox import loopback
    from handrail.sandbox.choose_sandbox import Preparation
    from handrail.sandbox.profile import Profile
    from handrail.sandbox.sandboxed_command import SandboxedCommand
    from handrail.server.connection import Connection

#: Timers do not count further than this.
LONGEST_TIMEOUT = 10 * 365 * 86_400.0
#: Bytes of the scope of a shell snapshot (exec-server 0.169.0).
LONGEST_SCOPE = 256


def process_start(conn: Connection, params: StartParams) -> Any:
    key = process_lookup.key(params.process_id)
    managed = None
    if params.network_proxy is not None or params.enforce_managed_network:
        from handrail.server.methods.process_network import managed_start

        managed = managed_start(conn, params)
    spec = _spec(conn, params if params.words is None else _decoded(params))
    session = conn.session
    assert session is not None  # noqa: S101 (checked with the handshake)
    conn.server.admit(session)
    if not spec.argv[0] and session.table.get(key) is None:
        raise RpcError(INTERNAL_ERROR, "missing program for pipe spawn")
    made: SandboxedCommand | None = None
    network: ManagedProcess | None = None
    if params.watch_denials and params.sandbox is None:
        raise RpcError(
            INVALID_PARAMS, "`watchDenials` needs a `sandbox`; leave it out, or give one"
        )
    if params.loopback is not None:
        _check_loopback(params.loopback, params.sandbox)
    if managed is not None and session.table.get(key) is None:
        from handrail.sandbox.denial import with_network
        from handrail.server.methods.process_network import with_variables

        spec, network = with_variables(conn, managed, spec)
        if params.sandbox is None:
            spec = with_network(spec, network)
    if params.sandbox is not None:
        try:
            spec, made, later = _in_sandbox(conn, key, params, spec, network)
        except BaseException:
            if network is not None:
                network.ended()
            raise
        if later is not None:
            return later
    try:
        # Now, not when a task runs: a request behind this one must find the id taken.
        if params.sandbox is None and network is None:
            plain = session.table.start_plain(key, spec, session.sink)
            return Later(plain, lambda done: _read(conn, params, done, None))
        starting = session.table.start(key, spec, session.sink)
    except ProcessExists as error:
        raise RpcError(INVALID_REQUEST, str(error)) from None
    except SpawnFailed as error:
        raise _spawn_error(error) from None
    return _started(conn, params, starting, None if made is None else lambda: made)


def _in_sandbox(
    conn: Connection,
    key: str,
    params: StartParams,
    spec: ProcessSpec,
    network: ManagedProcess | None,
) -> tuple[ProcessSpec, SandboxedCommand | None, Any]:
    """The spec to start in a sandbox; or the answer of a start whose sandbox takes long to plan."""
    from handrail.server.methods.process_sandbox import (  # only when one is asked for
        check_private_tmp,
        prepare,
        profile_of,
        sandboxed,
    )

    session, server = conn.session, conn.server
    assert session is not None and params.sandbox is not None  # noqa: S101, PT018 (checked before)
    managed = params.enforce_managed_network
    profile = profile_of(server.sandbox, params.sandbox, spec.cwd, managed=managed)
    if session.table.get(key) is not None:
        return spec, None, None  # refused by the table
    check_private_tmp(session, params.sandbox)
    if conn.notifier.extended:  # the wire knows an exit code for it, our clients a reason
        _check_program(profile, spec)
    preparations: list[Preparation | loopback.Preparation | None]
    preparations = [prepare(server.sandbox, profile)]
    watch = params.watch_denials
    join = None
    if params.loopback is not None:
        hosts, led_to = ("", None) if network is None else (network.hosts, network.led_to)
        join = session.loopbacks.joiner(params.loopback, hosts, led_to)
        network_needed = session.loopbacks.preparation(params.loopback, profile, hosts)
        spare = None if server.workspaces is None else server.workspaces.networks
        if network_needed is not None and (spare is None or not spare.serve(network_needed)):
            preparations.append(network_needed)

    def make() -> tuple[ProcessSpec, SandboxedCommand]:
        made = sandboxed(server.sandbox, profile, spec, server.launcher, watch=watch, join=join)
        ready = made.spec(spec)
        if network is not None:
            from handrail.sandbox.denial import with_network

            ready = with_network(ready, network)
        return ready, made

    needed = [one for one in preparations if one is not None]
    if needed:
        return spec, None, _started_later(conn, params, needed, make, network)
    return *make(), None


def _check_loopback(name: str, sandbox: dict[str, Any] | None) -> None:
    if sandbox is None:
        raise RpcError(
            INVALID_PARAMS,
            "`loopback` needs a `sandbox`, without which a process has that of the"
            " machine; leave it out, or give one",
        )
    if not 1 <= len(name) <= process_lookup.LONGEST_ID:
        raise RpcError(
            INVALID_PARAMS, f"`loopback` has 1 to {process_lookup.LONGEST_ID} characters"
        )


def _started_later(
    conn: Connection,
    params: StartParams,
    preparations: list[Preparation | loopback.Preparation],
    make: Callable[[], tuple[ProcessSpec, SandboxedCommand]],
    network: ManagedProcess | None,
) -> Any:
    """Start a process whose sandbox takes long to plan: in a thread, while other calls run."""
    from handrail.server.methods.process_sandbox import planned

    server, session = conn.server, conn.session
    assert session is not None  # noqa: S101 (checked with the handshake)
    made: SandboxedCommand | None = None

    async def prepared() -> ProcessSpec:
        nonlocal made
        try:
            for preparation in preparations:
                await planned(server.pool, preparation)
            spec, made = make()
        except BaseException:
            if network is not None:
                network.ended()
            raise
        return spec

    starting = session.table.start_later(params.process_id, prepared(), session.sink)
    return _started(conn, params, starting, lambda: made)


async def _started(
    conn: Connection,
    params: StartParams,
    starting: asyncio.Task[Child],
    made: Callable[[], SandboxedCommand | None] | None,
) -> StartResult:
    """The answer to a start, once that has come to its end; ``made``: its sandbox by then."""
    # Not the task itself: a client that is lost meanwhile finds the process when it resumes.
    over: asyncio.Future[None] = conn.server.loop.create_future()
    starting.add_done_callback(lambda _: None if over.done() else over.set_result(None))
    await over
    return _read(conn, params, starting, made)


def _read(
    conn: Connection,
    params: StartParams,
    starting: asyncio.Future[Child],
    made: Callable[[], SandboxedCommand | None] | None,
) -> StartResult:
    """The answer to a start that has come to its end; raises RpcError."""
    try:
        child = starting.result()
        session = conn.session
        if session is not None and session.stores_new:
            conn.server.sessions.store(session, [child.key])
    except StartCancelled as error:
        raise RpcError(INVALID_REQUEST, str(error)) from None
    except SandboxError as error:
        from handrail.server.methods.process_sandbox import refused

        raise refused(error) from None
    except SpawnFailed as error:
        raise _spawn_error(error) from None
    # With no other process here the client is alone, and is quicker when it hears of the start: its
    # processor does not fall asleep.
    alone = session is not None and session.table.running == 1
    if params.gather and alone and conn.server.launcher.busy:
        conn.calls.gather(at_once=conn.server.launcher.knows_exit(child.number))
    return _result(conn, params.process_id, None if made is None else made())


def _result(conn: Connection, key: str, made: SandboxedCommand | None) -> StartResult:
    if made is None or made.mechanism == NO_SANDBOX:
        return StartResult(process_id=key, sandbox_type="none")
    # Named to our own clients alone: recorded exchanges compare this answer member by member.
    told = made.mechanism != BUBBLEWRAP or conn.notifier.extended
    return StartResult(
        process_id=key,
        sandbox_type=LINUX_SECCOMP,
        sandbox_backend=made.mechanism if told else UNSET,
    )


def _check_program(profile: Profile, spec: ProcessSpec) -> None:
    from handrail.sandbox import private_tmp

    try:
        private_tmp.check_program(profile, spec.argv[0], spec.env, spec.cwd)
    except SpawnFailed as error:
        raise _spawn_error(error) from None


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
    if not params.argv:
        raise RpcError(INVALID_PARAMS, "argv must not be empty")
    snapshot = params.shell_snapshot
    if snapshot is not None and not 1 <= len(snapshot.scope_id.encode()) <= LONGEST_SCOPE:
        raise RpcError(
            INVALID_PARAMS,
            f"shell snapshot scope must be non-empty and at most {LONGEST_SCOPE} bytes",
        )
    argv = tuple([_native("argv", word) for word in params.argv])
    if params.name is not None and len(params.name) > process_lookup.LONGEST_ID:
        raise RpcError(
            INVALID_PARAMS, f"`name` is longer than {process_lookup.LONGEST_ID} characters"
        )
    size = params.size
    env = _environment(conn, params)
    return ProcessSpec(
        argv=argv,
        cwd=cwd,
        env=env,
        tty=params.tty,
        pipe_stdin=params.pipe_stdin,
        arg0=None if params.arg0 is None else _native("arg0", params.arg0),
        name=params.name,
        labels=_labels(params.labels) if params.labels else (),
        secrets=_secrets(params.secret_env, env) if params.secret_env else (),
        rows=DEFAULT_ROWS if size is None else size.rows,
        cols=DEFAULT_COLS if size is None else size.cols,
        on_lag=None if params.on_lag is None else OnLag(params.on_lag),
        timeout=None
        if params.timeout_ms is None
        else min(params.timeout_ms / 1000, LONGEST_TIMEOUT),
        limits=NO_LIMITS if params.limits is None else _limits(conn, params.limits),
        group=None if conn.server.workspaces is None else _group(conn),
        detach=params.detach,
    )


def _labels(given: dict[str, str]) -> tuple[tuple[str, str], ...]:
    size = sum(len(name) + len(value) for name, value in given.items())
    if "" in given or size > process_lookup.LONGEST_ID:
        raise RpcError(
            INVALID_PARAMS,
            "`labels` have a name each, and names and values of at most"
            f" {process_lookup.LONGEST_ID} characters in all",
        )
    return tuple(given.items())


def _secrets(names: list[str], env: dict[bytes, bytes]) -> tuple[tuple[str, bytes], ...]:
    found = ((name, env.get(_native("secretEnv", name))) for name in names)
    return tuple((name, value) for name, value in found if value is not None)


def _decoded(params: StartParams) -> StartParams:
    """The params with percent-encoded arguments decoded."""
    read = percent_words.decode
    policy = params.env_policy
    if policy is not None:
        policy = structs.replace(
            policy,
            exclude=list(map(read, policy.exclude)),
            set={read(name): read(value) for name, value in policy.set.items()},
            include_only=list(map(read, policy.include_only)),
        )
    return structs.replace(
        params,
        argv=list(map(read, params.argv)),
        arg0=None if params.arg0 is None else read(params.arg0),
        env={read(name): read(value) for name, value in params.env.items()},
        env_policy=policy,
    )


def _group(conn: Connection) -> Group | None:
    """The control group of its workspace, if it is in one that has one."""
    workspaces, session = conn.server.workspaces, conn.session
    return None if workspaces is None or session is None else workspaces.group(session)


def _limits(conn: Connection, given: LimitsParams) -> Limits:
    limits = Limits(
        memory=given.memory_bytes,
        processes=given.pids,
        cpu_seconds=given.cpu_seconds,
        address_space=given.address_space_bytes,
        open_files=given.open_files,
        file_size=given.file_bytes,
        output=given.output_bytes,
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
    policy = None if params.env_policy is None else _policy(conn, params.env_policy)
    _check_names("env", params.env)
    environments, overlay = conn.server.environments, params.env
    workspaces, session = conn.server.workspaces, conn.session
    if workspaces is not None and session is not None and workspaces.has(session):
        environments, given_there = workspaces.environments, workspaces.variables(session)
        if policy is not None and not policy.set and not params.env:
            return environments.of_place(policy, given_there)  # as of most commands there
        named = {} if policy is None else policy.set
        overlay = {**{k: v for k, v in given_there.items() if k not in named}, **params.env}
    try:
        return environments.build(policy, overlay)
    except env_policy.NulInValue:
        raise RpcError(INVALID_PARAMS, "`env` holds a NUL character") from None


def _policy(conn: Connection, given: EnvPolicyParams) -> env_policy.EnvPolicy:
    """The policy of a start; the one before it if they are the same, as nearly all are."""
    known = conn.server.last_policy
    if known is not None and known[0] == given:
        return known[1]
    policy = env_policy.EnvPolicy(
        inherit=env_policy.Inherit(given.inherit),
        ignore_default_excludes=given.ignore_default_excludes,
        exclude=tuple(given.exclude),
        set=given.set,
        include_only=tuple(given.include_only),
    )
    _check_names("envPolicy.set", given.set)
    if not given.set:  # what a client sets may be secret, and is not kept
        conn.server.last_policy = given, policy
    return policy


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
