"""``process/wait``: which of several things happened, in one message."""

from __future__ import annotations

import asyncio
import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from handrail.errors import RpcError
from handrail.executor.base import SpawnRequest
from handrail.executor.client.session import ExecServerClient
from handrail.executor.remote import RemoteExecutor
from handrail.executor.remote_session import RemoteSession
from handrail.testing import memory_executor


@pytest.fixture
def executor() -> AbstractAsyncContextManager[RemoteExecutor]:
    return memory_executor()


async def sh(executor: RemoteExecutor, script: str) -> RemoteSession:
    env = {"PATH": "/usr/bin:/bin"}
    return await executor.spawn(SpawnRequest("p", ("/bin/sh", "-c", script), "/", env))


async def wait(client: ExecServerClient, **params: Any) -> dict[str, Any]:
    result = await client.call("process/wait", {"processId": "p", **params})
    assert isinstance(result, dict)
    return result


async def test_a_pattern_idleness_the_deadline_and_the_exit(executor: RemoteExecutor) -> None:
    client = executor.client
    assert "processWait" in client.extensions
    session = await sh(executor, "read a; echo got $a; read b; exit 3")
    over = await wait(client, patterns=["got"], timeoutMs=20)
    assert (over["reason"], over["position"], over["exited"]) == ("deadline", 0, False)
    await session.write(b"it\n")
    found = await wait(client, patterns=["never", r"g(o+)t \w+"], fromByte=0, timeoutMs=20_000)
    # The match that ends first: one letter is enough for \w+.
    assert (found["reason"], found["pattern"], found["position"]) == ("pattern", 1, 5)
    rest = await wait(client, patterns=["\n"], fromByte=found["position"])
    assert rest["position"] == 7
    quiet = await wait(client, patterns=["got"], fromByte=7, idleMs=20)
    assert quiet["reason"] == "idle"
    await session.write(b"\n")
    gone = await wait(client, patterns=["got"], fromByte=7)
    assert (gone["reason"], gone["exited"]) == ("exit", True)
    # What is there already is found at once, after the end too.
    assert (await wait(client, patterns=["got"], fromByte=0))["reason"] == "pattern"


async def test_without_the_exit_it_waits_for_the_streams(
    executor: RemoteExecutor, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    session = await sh(executor, f"(read x <{gate}; echo late) & echo early")
    waiting = asyncio.ensure_future(
        wait(executor.client, patterns=["late"], fromByte=0, exit=False)
    )
    await session.wait()
    await asyncio.to_thread(gate.write_text, "\n")
    assert (await waiting)["reason"] == "pattern"


async def test_output_beyond_the_retention_is_told(executor: RemoteExecutor) -> None:
    session = await sh(executor, "head -c 3000000 /dev/zero; echo; echo end; cat")
    found = await wait(executor.client, patterns=["^end$"], fromByte=0, timeoutMs=20_000)
    assert found["reason"] == "pattern"
    assert found["position"] == 3_000_001 + 3
    late = await wait(executor.client, patterns=["^end$"], fromByte=0)
    assert late["omittedBytes"] > 0
    await session.terminate()


async def test_others_are_served_while_a_hard_pattern_is_looked_for(
    executor: RemoteExecutor,
) -> None:
    client = executor.client
    session = await sh(executor, "head -c 900000 /dev/zero | tr '\\0' a; cat")
    looking = asyncio.ensure_future(wait(client, patterns=[r"(a+)+$b"] * 8, fromByte=0))
    assert await client.status() == "ready"
    assert not looking.done()
    await session.terminate()
    assert (await looking)["reason"] == "exit"


async def test_a_wait_of_the_same_name_takes_the_place_of_the_first(
    executor: RemoteExecutor,
) -> None:
    client = executor.client
    session = await sh(executor, "printf abc; cat")
    await wait(client, patterns=["c"], fromByte=0)
    first = asyncio.ensure_future(wait(client, patterns=["x"], fromByte=0, waitId="w"))
    other = asyncio.ensure_future(wait(client, patterns=["x"], fromByte=0, waitId="v"))
    await client.status()  # both have arrived
    last = await wait(client, timeoutMs=0, waitId="w")
    assert last["reason"] == "deadline"
    replaced = await first
    assert (replaced["reason"], replaced["outputBytes"]) == ("replaced", 3)
    assert not other.done()
    # Two at once: the first is replaced before it has taken its first step.
    both = [wait(client, waitId="u"), wait(client, waitId="u", timeoutMs=0)]
    assert [r["reason"] for r in await asyncio.gather(*both)] == ["replaced", "deadline"]
    await session.terminate()
    assert (await other)["reason"] == "exit"


async def test_a_server_that_counts_strictly_does_not_offer_waits() -> None:
    async with memory_executor(concurrent_requests=1, strict_lanes=True) as executor:
        assert "processWait" not in executor.client.extensions
        session = await sh(executor, "read a; echo got $a")
        # A wait that held the only permit would keep the write out.
        waiting = asyncio.ensure_future(session.wait_for("got it", timeout=20))
        await asyncio.sleep(0)
        await session.write(b"it\n")
        assert (await waiting).match == b"got it"


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"patterns": ["("]}, "does not compile"),
        ({"patterns": [r"(a)\1"]}, "is not supported"),
        ({"patterns": ["a"] * 33}, "more than 32"),
        ({"patterns": "a"}, "patterns"),
        ({"idleMs": -1}, "idleMs"),
        ({"waitId": "w" * 100_000}, "longer than"),
    ],
)
async def test_what_is_refused(executor: RemoteExecutor, params: dict[str, Any], text: str) -> None:
    session = await sh(executor, "cat")
    with pytest.raises(RpcError, match=text) as caught:
        await wait(executor.client, **params)
    assert caught.value.code == -32602
    await session.terminate()
    with pytest.raises(RpcError, match="unknown process id q"):
        await executor.client.call("process/wait", {"processId": "q"})
