"""An agent with real processes on this machine, short to call."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
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
from tests.support.coroutines import run

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

    async def exec_until(self, cmd: str, mark: str, **more: Any) -> tuple[int, str]:
        """Start something that stays, and wait until it has printed ``mark``."""
        answer = await self.exec(cmd, yield_time_ms=250, **more)
        assert answer.process_id is not None
        seen = answer.output
        while mark not in seen:
            more_output = await self.write(answer.process_id, resize=None, keys=())
            seen += more_output.output
        return answer.process_id, seen

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


class Latch:
    """What a command can wait for: ``read x <{latch}`` goes on after ``open``."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "latch"
        os.mkfifo(self._path)

    def __str__(self) -> str:
        return str(self._path)

    async def open(self, agent: Agent) -> None:
        assert (await agent.exec(f"echo >{self}")).exit_code == 0


@asynccontextmanager
async def agent_with(gate: Gate | None = None, **settings: Any) -> AsyncIterator[Agent]:
    """An agent; everything it started is ended."""
    executor = LocalExecutor()
    events: list[Event] = []
    settings = {"cwd": "/", "shell": "/bin/bash", **settings}
    tools = UnifiedExec(executor, settings=Settings(**settings), gate=gate, listener=events.append)
    try:
        yield Agent(tools, events)
    finally:
        await tools.close()
        await executor.close()


def with_agent(
    scenario: Callable[[Agent], Awaitable[None]], gate: Gate | None = None, **settings: Any
) -> None:
    """Run a scenario with an agent of these settings."""

    async def main() -> None:
        async with agent_with(gate, **settings) as agent:
            await scenario(agent)

    run(main())
