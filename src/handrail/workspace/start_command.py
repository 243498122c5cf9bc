"""Starts one command of a workspace: checks its options and makes the request for its executor."""

from __future__ import annotations

import errno
import posixpath
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from handrail.errors import ExecutorSpawnFailed, SandboxUnavailable, UsageError
from handrail.executor.base import ExecSession, Executor, ExecutorFeatures, SpawnRequest
from handrail.network.settings import Network
from handrail.process.spec import NO_LIMITS, Limits
from handrail.secret_masks import Secrets
from handrail.workspace import profile as profiles
from handrail.workspace.arguments import (
    AnyPath,
    Command,
    Env,
    byte_count,
    check_callable,
    check_labels,
    check_limits,
    seconds,
    to_argv,
    to_bytes,
    to_path,
    to_size,
)
from handrail.workspace.executor_features import check_offered
from handrail.workspace.location import Location
from handrail.workspace.process_follower import Listener, ProcessFollower
from handrail.workspace.profile import Profile, Sandbox
from handrail.workspace.variables import Variables

if TYPE_CHECKING:
    from handrail.orchestrator.approvers import AnyApprover
    from handrail.workspace.command_network import WorkspaceNetwork


class AskedHosts:
    """What a workspace asks its approver about hosts; made with the first question."""

    def __init__(self, approver: AnyApprover | None, timeout: float | None) -> None:
        self._approver = approver
        self._timeout = timeout
        self._made: WorkspaceNetwork | None = None

    def __call__(self) -> WorkspaceNetwork:
        if self._made is None:
            from handrail.orchestrator.approvers import as_approver
            from handrail.workspace.command_network import WorkspaceNetwork

            self._made = WorkspaceNetwork(as_approver(self._approver), self._timeout)
        return self._made


class CommandDefaults(NamedTuple):
    """What a workspace gives to a command that names nothing else."""

    profile: Profile | None
    variables: Variables
    limits: Limits | None
    keep_output: int
    labels: Mapping[str, str]
    #: Instead of the profile's.
    network: Network | None
    hosts: AskedHosts
    #: Whether its caller wants nothing but its end.
    gather: bool = False


async def start_command(
    location: Location,
    defaults: CommandDefaults,
    process_id: str,
    command: Command,
    /,
    *,
    stdin: bool = True,
    input: str | bytes | None = None,  # noqa: A002 (subprocess calls it so)
    tty: bool = False,
    size: tuple[int, int] = (24, 80),
    cwd: AnyPath | None = None,
    env: Env | None = None,
    sandbox: Sandbox | None = None,
    network: Network | None = None,
    timeout: float | None = None,
    on_output: Listener | None = None,
    name: str | None = None,
    labels: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    keep_output: int | None = None,
    detach: bool = False,
    watch_denials: bool = False,
) -> tuple[ProcessFollower, Callable[[], None]]:
    """Start a command; also returns what begins its input, its listener and its timeout.

    Raises UsageError, ExecutorSpawnFailed and ExecutorTransportFailed.
    """
    argv = to_argv(command)
    profile = _profile(defaults, sandbox, network)
    limit = seconds(timeout, "timeout")
    kept = defaults.keep_output if keep_output is None else byte_count(keep_output, "keep_output")
    size = to_size(size)
    labelled = {**defaults.labels, **check_labels(labels)}
    check_limits(limits)
    check_callable(on_output, "on_output")
    if name is not None and not isinstance(name, str):
        raise UsageError(f"name is text, not {name!r}")
    feed = None if input is None else to_bytes(input)
    if watch_denials and profile is None:
        raise UsageError("watch_denials is for a command in a sandbox, and this one has none")
    executor = await location.open()
    features = executor.features
    if feed is not None and not tty:
        feed = _ending_input(feed, features)
    limits = defaults.limits if limits is None else limits
    managed = None if profile is None else profile.managed
    check_offered(features, limits, detach, watch_denials, managed=managed is not None)
    await location.check_writable(profile)
    temporary = await location.make_temporary(profile)
    if temporary is not None and location.has_private_tmp:
        temporary = "/tmp"  # noqa: S108 (the one of the sandbox)
    hidden = {"TMPDIR": temporary} if temporary is not None else None
    variables = defaults.variables.environment(hidden, env)
    secrets = defaults.variables.secrets
    where = location.root if cwd is None else _below(location.root, to_path(cwd))
    call = None
    if managed is not None:
        call = defaults.hosts().call(managed, process_id, argv, where, secrets)
    request = SpawnRequest(
        process_id=process_id,
        argv=argv,
        cwd=where,
        env=variables.overlay,
        env_policy=variables.policy,
        tty=tty,
        size=size,
        sandbox=location.intent(profile),
        pipe_stdin=feed is not None if input is not None else stdin,
        name=name,
        labels=labelled,
        secret_env=tuple(secrets.values),
        timeout=limit,
        limits=limits or NO_LIMITS,
        detach=detach,
        watch_denials=watch_denials,
        network=None if call is None else call.request(),
        loopback=location.loopback,
        gather=defaults.gather,
    )
    started = time.monotonic()
    session = await _spawn(executor, request, secrets)
    if call is not None:
        call.started(session)
    follower = ProcessFollower(
        session,
        secrets.masked_words(argv),
        features,
        keep_output=kept,
        sandboxed=profile is not None,
        request=request,
        started=started,
        secrets=secrets,
        name=name,
        labels=labelled,
        network=call,
    )
    return follower, partial(follower.watch, timeout=limit, listener=on_output, stdin=feed)


async def _spawn(executor: Executor, request: SpawnRequest, secrets: Secrets) -> ExecSession:
    """Start the process; what is raised has the secrets masked, and so has its context."""
    try:
        return await executor.spawn(request)
    except ExecutorSpawnFailed as error:
        shown = secrets.masked_text(error.detail) + _too_little(request, error)
        if shown == error.detail:
            raise
        failure = type(error)(shown, errno=error.errno, unsure=error.unsure)
    raise failure


def _too_little(request: SpawnRequest, error: ExecutorSpawnFailed) -> str:
    """What a failed set-up of a sandbox says of limits: they hold for the set-up too."""
    held = request.limits.given().items()
    of_setup = isinstance(error, SandboxUnavailable) or error.errno == errno.EINVAL
    if request.sandbox is None or not held or not of_setup:
        return ""
    named = ", ".join(f"{name}={value}" for name, value in held)
    return f"; the limits ({named}) hold for the set-up of the sandbox too: allow more"


def _profile(
    defaults: CommandDefaults, sandbox: Sandbox | None, network: Network | None
) -> Profile | None:
    """The profile of a command; raises UsageError."""
    if sandbox is None:
        return profiles.with_network(defaults.profile, network)
    profile = profiles.find_profile(sandbox)
    if network is None and profile is not None and not isinstance(sandbox, Profile):
        network = defaults.network  # a name says nothing of the network
    return profiles.with_network(profile, network)


def _ending_input(stdin: bytes, features: ExecutorFeatures) -> bytes | None:
    """Input that has an end; raises UsageError where it cannot be given one."""
    if features.close_stdin:
        return stdin
    if not stdin:
        return None  # no stdin is as empty
    raise UsageError(
        "this server cannot end the input of a command, which would wait for more for ever;"
        " give it a terminal (tty=True) or a file to read, or use a handrail server"
    )


def _below(root: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(root, path))
