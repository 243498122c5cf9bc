"""An agent with real processes on this machine, short to call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from handrail.executor.local import LocalExecutor
from handrail.unified_exec.events import Event
from handrail.unified_exec.gate import Gate
from handrail.unified_exec.manager import UnifiedExec
from handrail.unified_exec.settings import Settings
from handrail.unified_exec.tools import (
    ExecAnswer,
    ExecCommandArgs,
    OutputRange,
    ReadOutputArgs,
    WriteStdinArgs,
)

LIMIT = 50.0
E = TypeVar("E")


class Agent:
    """The tools, what they told, and short forms of the calls."""

    def __init__(self, tools: UnifiedExec, events: list[Event]) -> None:
        self.tools = tools
        self.events = events

    async def exec(self, cmd: str, **more: Any) -> ExecAnswer:
        more.setdefault("login", False)
        return await self.tools.exec_command(ExecCommandArgs(cmd=cmd, **more))

    async def write(self, session_id: int | None, chars: str = "", **more: Any) -> ExecAnswer:
        assert session_id is not None
        args = WriteStdinArgs(session_id=session_id, chars=chars, **more)
        return await self.tools.write_stdin(args)

    async def write_until(self, session_id: int | None, chars: str, mark: str) -> str:
        """Write, then wait until the output holds ``mark``."""
        seen = (await self.write(session_id, chars)).output
        while mark not in seen:
            seen += (await self.write(session_id, keys=(), yield_time_ms=1)).output
        return seen

    def read(self, session_id: int, offset: int = 0, max_bytes: int = 1 << 20) -> OutputRange:
        args = ReadOutputArgs(session_id=session_id, offset=offset, max_bytes=max_bytes)
        return self.tools.read_output(args)

    def told(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]


async def eventually(holds: Callable[[], E]) -> E:
    """Wait until something is so; the scenario's limit is the limit."""
    while not (found := holds()):  # noqa: ASYNC110 (what is waited for tells nobody)
        await asyncio.sleep(0.005)
    return found


def with_agent(
    scenario: Callable[[Agent], Awaitable[None]], gate: Gate | None = None, **settings: Any
) -> None:
    """Run a scenario, and end everything it started."""

    async def main() -> None:
        executor = LocalExecutor()
        events: list[Event] = []
        settings.setdefault("cwd", "/")
        settings.setdefault("shell", "/bin/bash")
        tools = UnifiedExec(
            executor, settings=Settings(**settings), gate=gate, listener=events.append
        )
        try:
            async with asyncio.timeout(LIMIT):
                await scenario(Agent(tools, events))
        finally:
            await tools.close()
            await executor.close()

    asyncio.run(main())
