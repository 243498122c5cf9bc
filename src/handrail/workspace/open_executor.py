"""From ``at=`` to an executor: the shared one of this machine, or a remote one."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from handrail.errors import (
    ProtocolError,
    TransportError,
    UsageError,
)
from handrail.executor.base import Executor

if TYPE_CHECKING:
    from handrail.executor.local import LocalExecutor

#: Releases an executor that was handed out.
Release = Callable[[], Coroutine[Any, Any, None]]


class _Shared:
    """The local executor of one event loop, and its number of users."""

    __slots__ = ("executor", "users")

    def __init__(self, executor: LocalExecutor) -> None:
        self.executor = executor
        self.users = 0


_local: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()


async def reach_local(prefix: str) -> tuple[Executor, Release]:
    """The local executor of this loop.  It ends, and its keeper with it, after its last user.

    ``prefix`` is that of the user's process ids: its processes end with the user.
    """
    from handrail.executor.local import LocalExecutor

    loop = asyncio.get_running_loop()
    shared = _local.get(loop)
    if shared is None:
        shared = _local[loop] = _Shared(LocalExecutor())
    shared.users += 1

    async def release() -> None:
        shared.users -= 1
        if shared.users > 0:
            await shared.executor.end_left(prefix)
        else:
            if _local.get(loop) is shared:
                del _local[loop]
            await shared.executor.close()

    return shared.executor, release


async def reach_remote(
    at: str,
    *,
    token: str | None,
    request_timeout: float | None,
    detach_ttl: float | None,
    session: str | None,
    secret: str | None,
) -> tuple[Executor, Release]:
    """A session of the server at ``at``, new or resumed.

    Raises UsageError for an invalid address, ExecutorTransportFailed when no server answers there
    or it refuses the session, AuthenticationFailed when it refuses the token.
    """
    from handrail.executor.client.dial import transport_failed
    from handrail.executor.remote import RemoteExecutor

    where: str | list[str] = at
    if at.startswith("stdio:"):
        where = shlex.split(at.removeprefix("stdio:"))
        if not where:
            raise UsageError("stdio: names the program to talk to, as in stdio:handrail serve")
    try:
        executor = await RemoteExecutor.connect(
            where,
            request_timeout=request_timeout,
            token=token,
            detach_ttl=detach_ttl,
            session_id=session,
            resume_secret=secret,
        )
    except (TransportError, ProtocolError) as error:
        raise transport_failed(f"cannot work at {at}", error) from error
    return executor, executor.close
