"""A line on which nothing is heard any more, though nobody has closed it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from handrail import AsyncWorkspace, ExecutorError, WaitReason
from handrail.executor.remote import RemoteExecutor
from handrail.workspace.process import AsyncProcess
from tests.executor.chaos import ChaosProxy, chaos
from tests.executor.places import serving

#: Much less than the transport itself waits until it takes a line for dead.
SECONDS = 1.0


@asynccontextmanager
async def stalling(base: Path) -> AsyncIterator[tuple[AsyncWorkspace, ChaosProxy]]:
    async with serving(base) as url, chaos(url, 1) as proxy:
        ws = AsyncWorkspace(base, at=proxy.url, sandbox="off", request_timeout=SECONDS)
        try:
            await ws.run("true")
            yield ws, proxy
        finally:
            await ws.close()


CALLS: dict[str, Callable[[AsyncWorkspace, AsyncProcess], Any]] = {
    "run": lambda ws, p: ws.run("true"),
    "send": lambda ws, p: p.send("x", timeout=0.1),
    "terminate": lambda ws, p: p.terminate(),
    "signal": lambda ws, p: p.signal("term"),
    "read": lambda ws, p: ws.files.read("file"),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_ends_and_so_does_leaving(name: str, tmp_path: Path) -> None:
    async with stalling(tmp_path) as (ws, proxy):
        process = await ws.start("cat")
        proxy.open.clear()
        with pytest.raises(ExecutorError, match=r"no answer to \S+ within 1"):
            await CALLS[name](ws, process)
        executor = await ws.executor()
        assert isinstance(executor, RemoteExecutor)
        assert executor.out_of_reach
        await ws.close()  # asks nobody any more


async def test_leaving_finds_out_for_itself(tmp_path: Path) -> None:
    async with stalling(tmp_path) as (ws, proxy):
        await ws.start("cat")
        proxy.open.clear()
        await ws.close()


async def test_the_timeout_of_a_command_ends_the_call(tmp_path: Path) -> None:
    async with stalling(tmp_path) as (ws, proxy):

        def told(output: object) -> None:
            proxy.open.clear()

        with pytest.raises(ExecutorError, match="no answer to process/terminate within 1"):
            # Long enough to be told of the output first, also where everything is slow.
            await ws.run("echo up; sleep 600", timeout=2, on_output=told)


async def test_it_goes_on_when_something_is_heard_again(tmp_path: Path) -> None:
    async with stalling(tmp_path) as (ws, proxy):
        process = await ws.start("cat")
        proxy.open.clear()
        with pytest.raises(ExecutorError):
            await ws.files.read("file")
        proxy.open.set()
        await process.send("back\n")
        assert (await process.wait_for("back", timeout=20)).reason is WaitReason.PATTERN
        assert (await ws.run("echo too")).stdout == "too\n"
