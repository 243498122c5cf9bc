"""Detach from a workspace and attach to it again: its record, its processes, stored results.

``attach`` resumes the session on the server.  When that session is over, or the server is gone,
stored results take the place of the processes (``handrail.executor.stored``), and the
workspace opens a new session only when a command is started in it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from handrail.errors import (
    ExecutorError,
    ExecutorTransportFailed,
    ProcessUnknown,
    UsageError,
)
from handrail.executor.base import ExecSession, Executor, ExecutorFeatures
from handrail.executor.stored.session import StoredSession
from handrail.executor.stored.source import find_result
from handrail.process.spec import Limits
from handrail.results import store
from handrail.units import parse_duration
from handrail.workspace.arguments import seconds
from handrail.workspace.detached_store import DetachedRecord, LeftProcess
from handrail.workspace.process_follower import ProcessFollower
from handrail.workspace.result import decoded

if TYPE_CHECKING:
    from handrail.executor.stored.source import Result
    from handrail.secret_masks import Secrets
    from handrail.workspace.detached_store import Claim
    from handrail.workspace.location import Location
    from handrail.workspace.process import AsyncProcess
    from handrail.workspace.profile import Profile
    from handrail.workspace.variables import Variables


def keep_seconds(keep: float | str | None) -> float | None:
    """How long to keep what is left: seconds, or a text such as ``2h``; raises UsageError."""
    return parse_duration(keep) if isinstance(keep, str) else seconds(keep, "keep")


def keep_until(keep: float | str | None, claim: Claim | None) -> tuple[float | None, float | None]:
    """How many seconds to keep what is left, and until when; raises UsageError.

    Without ``keep`` the time for which it was left before goes on.
    """
    limit = keep_seconds(keep)
    if limit is not None:
        return limit, time.time() + limit
    if claim is None or claim.record.until is None:
        return None, None
    return max(0.0, claim.record.until - time.time()), claim.record.until


def check_timeouts(processes: Mapping[ProcessFollower, AsyncProcess]) -> None:
    """Raise UsageError for a process with a timeout that only this program keeps."""
    for follower, process in processes.items():
        if follower.timed_here and process.running:
            raise UsageError(
                f"{process!r} has a timeout that its server cannot keep without us; let it end"
                " first, or start it without one"
            )


def make_record(
    tag: str,
    location: Location,
    session: tuple[str, str | None],
    followers: Iterable[ProcessFollower],
    *,
    profile: Profile | None,
    variables: Variables,
    limits: Limits | None,
    labels: Mapping[str, str],
    count: int,
    until: float | None,
) -> DetachedRecord:
    """The record of a workspace that is being left."""
    left = {
        one.session.process_id: LeftProcess(
            argv=list(map(decoded, one.argv)),
            session=one.session_id or session[0],
            name=one.name,
            labels=dict(one.labels),
            started_at=one.started_at,
            outlives=one.session.detached,
            seen=one.seen,
        )
        for one in followers
    }
    return DetachedRecord(
        id=tag,
        at=location.at or "",
        root=location.root,
        session=session[0],
        secret=session[1],
        profile=profile,
        temporary=location.temporary,
        env={
            os.fsdecode(name): None if value is None else os.fsdecode(value)
            for name, value in variables.env.items()
        },
        inherit_env=variables.inherit.value,
        limits=None if limits is None else limits.given(),
        secrets=[*variables.secrets.values, *variables.secrets.missing],
        labels=dict(labels),
        processes=left,
        count=count,
        until=until,
    )


async def followers(
    record: DetachedRecord, location: Location, secrets: Secrets, keep_output: int
) -> list[ProcessFollower]:
    """Followers of everything that was left: live where the session goes on, else stored.

    Raises ExecutorTransportFailed when neither its server nor a stored result answers for any.
    """
    location.session = (record.session, record.secret)
    location.temporary = record.temporary
    try:
        executor: Executor | None = await location.open()
        failure = None
    except ExecutorTransportFailed as error:
        executor, failure = None, error
    if failure is not None:
        # A new session when one is needed; its directory for temporary files went with the old.
        location.session, location.temporary = None, None
        location.known_root = record.root
    found: list[ProcessFollower] = []
    for process_id, left in record.processes.items():
        session = None
        if executor is not None and left.session == record.session:
            try:
                session = await executor.attach(process_id)
                session.detached = left.outlives
            except ProcessUnknown:
                pass  # it has ended, longer ago than its server remembers
        if session is None:
            asked = find_result if executor is None else executor.stored_result
            result = await asked(left.session, process_id)
            if result is None and failure is not None and is_over(failure):
                result = await _ask(location, left.session, process_id)
            if result is None:
                continue
            await _check_waiting(record, result)
            session = StoredSession(process_id, result)
        follower = ProcessFollower(
            session,
            tuple(left.argv),
            ExecutorFeatures() if executor is None else executor.features,
            sandboxed=record.profile is not None,
            returned_to=True,
            secrets=secrets,
            keep_output=keep_output,
            started=_monotonic(left, session),
            name=left.name,
            labels=left.labels,
        )
        follower.session_id, follower.started_at = left.session, left.started_at
        follower.seen = left.seen
        found.append(follower)
    if failure is not None and not found:
        await location.close()  # a session that was opened to ask for results
        raise failure
    return found


async def left_session(executor: Executor, process_id: str) -> ExecSession:
    """A process that has outlived its session, or its stored result; raises ProcessUnknown."""
    try:
        return await executor.attach(process_id)
    except ProcessUnknown:
        result = await executor.stored_result("", process_id)
        if result is None:
            raise
        return StoredSession(process_id, result)


async def forget_results(left: Iterable[ProcessFollower]) -> None:
    """Remove what is stored of these: their user has it.  Never raises."""
    for one in left:
        try:
            if isinstance(one.session, StoredSession):
                await one.session.result.forget()
            elif one.session_id is not None and not one.running:
                result = await find_result(one.session_id, one.session.process_id)
                if result is not None:
                    await result.forget()
        except (ExecutorError, OSError):
            pass  # its server removes it when its time is over


def is_over(failure: ExecutorTransportFailed) -> bool:
    """Whether the server answered, and does not have the session any more."""
    return "unknown session" in str(failure)


async def _ask(location: Location, session: str, process_id: str) -> Result | None:
    """Ask the server, in a new session, for what is on its disk."""
    executor = await location.open()
    return await executor.stored_result(session, process_id)


async def _check_waiting(record: DetachedRecord, result: Result) -> None:
    """Refuse a result that goes on without a server: the keeper has its process.

    Raises ExecutorTransportFailed, which says how to come back to it.
    """
    about = result.about
    if about.exit is not None or about.state_dir is None:
        return
    if await asyncio.to_thread(store.keeper_waits, about):
        raise ExecutorTransportFailed(
            f"the server at {record.at} is gone, and its processes go on without it;"
            f" start it again with `handrail serve --state-dir {about.state_dir}` and the same"
            " --listen"
        )


def _monotonic(left: LeftProcess, session: object) -> float | None:
    """When it was started, by the monotonic clock, so that its duration is told right."""
    if isinstance(session, StoredSession):
        about = session.result.about
        usage = None if about.exit is None else about.exit.usage
        until = about.ended_at or about.started_at
        lasted = until - about.started_at if usage is None else usage[0] / 1000
        return time.monotonic() - max(0.0, lasted)
    if not left.started_at:
        return None
    return time.monotonic() - max(0.0, time.time() - left.started_at)
