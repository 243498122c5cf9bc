"""The caller's clock: a command that is not ended by its executor."""

from __future__ import annotations

from handrail.executor.base import SpawnRequest
from handrail.executor.caller_timeout import exit_or_end
from handrail.process.exit_status import ExitKind
from handrail.testing import Exit, FakeExecutor, Pause

REQUEST = SpawnRequest("p", ("make",), "/", {})


async def test_an_exit_in_time_is_returned(fake_executor: FakeExecutor) -> None:
    fake_executor.on("make", Exit(3))
    session = await fake_executor.spawn(REQUEST)
    over: list[str] = []
    for timeout in (None, 30.0):
        found = await exit_or_end(session, timeout, over=lambda: over.append("over"))
        assert found is not None
        assert found.code == 3
    assert over == []


async def test_it_is_ended_when_the_time_is_over(fake_executor: FakeExecutor) -> None:
    fake_executor.on("make", Pause(), Exit(3))
    session = await fake_executor.spawn(REQUEST)
    running: list[bool] = []
    found = await exit_or_end(
        session, 0.01, over=lambda: running.append(session.try_exit_status() is None)
    )
    assert (found, running) == (None, [True])
    assert (await session.wait()).kind is ExitKind.TERMINATED
