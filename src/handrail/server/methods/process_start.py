"""process/start: what is asked for becomes a complete spec, or a refusal that names the field."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, structs

from handrail.errors import ProcessExists, RpcError, SandboxError, SpawnFailed
from handrail.process import env_policy, find_program
from handrail.process.child import Child
from handrail.process.spec import DEFAULT_COLS, DEFAULT_ROWS, NO_LIMITS, Limits, OnLag, ProcessSpec
from handrail.process.table import StartCancelled
from handrail.protocol import path_uri, percent_words
from handrail.protocol.envelope import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST
from handrail.protocol.process import LimitsParams, StartParams, StartResult
from handrail.sandbox.denial import LINUX_SECCOMP
from handrail.sandbox.sandboxed_command import BUBBLEWRAP, NO_SANDBOX
from handrail.server.methods import process_lookup

if TYPE_CHECKING:
    from handrail.sandbox.profile import Profile
    from handrail.sandbox.sandbox import Preparation
    from handrail.sandbox.sandboxed_command import SandboxedCommand
    from handrail.server.connection import Connection

#: Timers do not count further than this.
LONGEST_TIMEOUT = 10 * 365 * 86_400.0


def process_start(conn: Connection, params: StartParams) -> Any:
    key = process_lookup.key(params.process_id)
    spec = _spec(conn, params if params.words is None else _decoded(params))
    session = conn.session
    assert session is not None  # noqa: S101 (checked with the handshake)
    conn.server.admit(session)
    if not spec.argv[0] and session.table.get(key) is None:
        raise RpcError(INTERNAL_ERROR, "missing program for pipe spawn")
    made: SandboxedCommand | None = None
    if params.watch_denials and params.sandbox is None:
        raise RpcError(
            INVALID_PARAMS, "`watchDenials` needs a `sandbox`; leave it out, or give one"
        )
    if params.sandbox is not None:
        from handrail.server.methods.process_sandbox import (  # only when one is asked for
            check_private_tmp,
            prepare,
            profile_of,
            sandboxed,
        )

        if session.table.get(key) is None:
            check_private_tmp(session, params.sandbox)
            profile = profile_of(conn.server.sandbox, params.sandbox, spec.cwd)
            if conn.notifier.extended:  # the wire knows an exit code for it, our clients a reason
                _check_program(profile, spec)
            preparation = prepare(conn.server.sandbox, profile)
            watch = params.watch_denials
            if preparation is not None:
                return _started_later(conn, key, spec, profile, preparation, watch=watch)
            made = sandboxed(conn.server.sandbox, profile, spec, watch=watch)
            spec = made.spec(spec)
    try:
        # Now, not when a task runs: a request behind this one must find the id taken.
        starting = session.table.start(key, spec, session.sink)
    except ProcessExists as error:
        raise RpcError(INVALID_REQUEST, str(error)) from None
    except SpawnFailed as error:
        raise _spawn_error(error) from None
    return _started(conn, key, starting, made)


def _started_later(
    conn: Connection,
    key: str,
    spec: ProcessSpec,
    profile: Profile,
    preparation: Preparation,
    *,
    watch: bool,
) -> Any:
    """Start a process whose sandbox takes long to plan: in a thread, while other calls run."""
    from handrail.server.methods.process_sandbox import planned, sandboxed

    server, session = conn.server, conn.session
    assert session is not None  # noqa: S101 (checked with the handshake)
    made: SandboxedCommand | None = None

    async def make() -> ProcessSpec:
        nonlocal made
        await planned(server.pool, preparation)
        made = sandboxed(server.sandbox, profile, spec, watch=watch)
        return made.spec(spec)

    async def answer() -> StartResult:
        await _settled(starting)
        return _result(conn, key, made)

    starting = session.table.start_later(key, make(), session.sink)
    return answer()


async def _started(
    conn: Connection, key: str, starting: asyncio.Task[Child], made: SandboxedCommand | None
) -> StartResult:
    await _settled(starting)
    return _result(conn, key, made)


async def _settled(starting: asyncio.Task[Child]) -> None:
    try:
        # Shielded: a client that is lost meanwhile finds the process when it resumes.
        await asyncio.shield(starting)
    except StartCancelled as error:
        raise RpcError(INVALID_REQUEST, str(error)) from None
    except SandboxError as error:
        from handrail.server.methods.process_sandbox import refused

        raise refused(error) from None
    except SpawnFailed as error:
        raise _spawn_error(error) from None


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

    if private_tmp.concerns(profile, spec.argv[0], spec.env, spec.cwd):
        return  # it may be there in the sandbox alone
    try:
        find_program.check(spec.argv[0], spec.env, spec.cwd)
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
    if params.network_proxy is not None or params.enforce_managed_network:
        raise RpcError(INVALID_PARAMS, "a managed network proxy is not offered by this server")
    if not params.argv:
        raise RpcError(INVALID_PARAMS, "argv must not be empty")
    argv = tuple(_native("argv", word) for word in params.argv)
    if params.name is not None and len(params.name) > process_lookup.LONGEST_ID:
        raise RpcError(
            INVALID_PARAMS, f"`name` is longer than {process_lookup.LONGEST_ID} characters"
        )
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
        else min(process_lookup.u64s("timeoutMs", params.timeout_ms) / 1000, LONGEST_TIMEOUT),
        limits=_limits(conn, params.limits),
        detach=params.detach,
    )


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


def _limits(conn: Connection, given: LimitsParams | None) -> Limits:
    if given is None:
        return NO_LIMITS
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
