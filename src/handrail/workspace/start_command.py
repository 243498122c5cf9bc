"""Starts one command of a workspace: checks its options and makes the request for its executor."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from handrail.errors import UsageError
from handrail.executor.base import ExecutorFeatures, SpawnRequest
from handrail.process.spec import NO_LIMITS, Limits
from handrail.workspace import profile as profiles
from handrail.workspace.arguments import (
    AnyPath,
    Command,
    Env,
    byte_count,
    seconds,
    to_argv,
    to_bytes,
    to_path,
    to_size,
)
from handrail.workspace.location import Location
from handrail.workspace.offered import check_offered
from handrail.workspace.process_follower import Listener, ProcessFollower
from handrail.workspace.profile import Profile, Sandbox
from handrail.workspace.variables import Variables


class CommandDefaults(NamedTuple):
    """What a workspace gives to a command that names nothing else."""

    profile: Profile | None
    variables: Variables
    limits: Limits | None
    keep_output: int


async def start_command(
    ground: Location,
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
    timeout: float | None = None,
    on_output: Listener | None = None,
    name: str | None = None,
    limits: Limits | None = None,
    keep_output: int | None = None,
    detach: bool = False,
    watch_denials: bool = False,
) -> tuple[ProcessFollower, Callable[[], None]]:
    """Start a command; also returns what begins its input, its listener and its timeout.

    Raises UsageError, ExecutorSpawnFailed and ExecutorTransportFailed.
    """
    argv = to_argv(command)
    profile = defaults.profile if sandbox is None else profiles.find_profile(sandbox)
    limit = seconds(timeout, "timeout")
    kept = defaults.keep_output if keep_output is None else byte_count(keep_output, "keep_output")
    size = to_size(size)
    feed = None if input is None else to_bytes(input)
    if watch_denials and profile is None:
        raise UsageError("watch_denials is for a command in a sandbox, and this one has none")
    executor = await ground.open()
    features = executor.features
    if feed is not None and not tty:
        feed = _ending_input(feed, features)
    limits = defaults.limits if limits is None else limits
    check_offered(features, limits, detach, watch_denials)
    temporary = await ground.make_temporary(profile)
    if temporary is not None and ground.has_private_tmp:
        temporary = "/tmp"  # noqa: S108 (the one of the sandbox)
    hidden = {"TMPDIR": temporary} if temporary is not None else None
    variables = defaults.variables.environment(hidden, env)
    secrets = defaults.variables.secrets
    request = SpawnRequest(
        process_id=process_id,
        argv=argv,
        cwd=ground.root if cwd is None else _below(ground.root, to_path(cwd)),
        env=variables.overlay,
        env_policy=variables.policy,
        tty=tty,
        size=size,
        sandbox=ground.intent(profile),
        pipe_stdin=feed is not None if input is not None else stdin,
        name=name,
        timeout=limit,
        limits=limits or NO_LIMITS,
        detach=detach,
        watch_denials=watch_denials,
    )
    started = time.monotonic()
    follower = ProcessFollower(
        await executor.spawn(request),
        secrets.masked_words(argv),
        features,
        keep_output=kept,
        sandboxed=profile is not None,
        started=started,
        secrets=secrets,
    )
    return follower, partial(follower.watch, timeout=limit, listener=on_output, stdin=feed)


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
