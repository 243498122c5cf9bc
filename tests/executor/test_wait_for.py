"""Waiting for a process of another machine: one message each way, and the same answer as here."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from handrail.errors import ExecutorTransportFailed, UsageError
from handrail.executor.base import SpawnRequest, WaitOutcome, WaitReason
from handrail.executor.client.dial import MemoryDialer
from handrail.executor.client.rpc import RpcConnection
from handrail.executor.remote import RemoteExecutor
from handrail.executor.remote_session import RemoteSession
from handrail.executor.wait_for import pattern_source
from handrail.testing.memory_server import memory_server
from tests.executor.client.test_session import REQUEST, Script, Stage, run
from tests.support.eventually import eventually_so

WAITS = {"capabilities": {"handrail": {"processWait": True, "waitId": True}}}


def initialize(*_: Any) -> Any:
    return {"sessionId": "s", "environmentInfo": WAITS}


class Line:
    """A server in memory, and every message that passes."""

    def __init__(self, executor: RemoteExecutor, connections: list[Any]) -> None:
        self.executor = executor
        self.connections = connections
        self.sent: Counter[str] = Counter()
        self.answers = 0

    async def sh(self, script: str) -> RemoteSession:
        env = {"PATH": "/usr/bin:/bin"}
        return await self.executor.spawn(SpawnRequest("p", ("/bin/sh", "-c", script), "/", env))


@asynccontextmanager
async def line(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Line]:
    connections: list[Any] = []
    async with asyncio.timeout(50), memory_server() as accept:

        def connection() -> Any:
            connections.append(accept())
            return connections[-1]

        executor = await RemoteExecutor.connect(MemoryDialer(connection))
        found = Line(executor, connections)
        told, message = RpcConnection.call, RpcConnection.message

        async def call(self: RpcConnection, method: str, *args: Any, **how: Any) -> Any:
            found.sent[method] += 1
            return await told(self, method, *args, **how)

        def heard(self: RpcConnection, data: Any) -> None:
            found.answers += "id" in json.loads(data)
            message(self, data)

        with monkeypatch.context() as patch:
            patch.setattr(RpcConnection, "call", call)
            patch.setattr(RpcConnection, "message", heard)
            try:
                yield found
            finally:
                await executor.close()


def test_a_wait_costs_one_message_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with line(monkeypatch) as here:
            script = "i=0; while [ $i -lt 200 ]; do echo $i; i=$((i+1)); done; read x; echo $x end"
            session = await here.sh(script)
            here.sent.clear()
            here.answers = 0
            waiting = asyncio.ensure_future(session.wait_for("never", r"(\w+) end", timeout=40))
            await eventually_so(lambda: here.connections[0].waits)
            assert here.sent == {"process/wait": 1}
            await session.write(b"the\n")
            found = await waiting
            assert (found.reason, found.pattern) == (WaitReason.PATTERN, 1)
            assert found.match == b"the end"
            assert here.sent == {"process/wait": 1, "process/write": 1}
            assert here.answers == 2
            # What is here already costs nothing at all.
            assert await session.wait_for("the", timeout=40) != found
            assert (await session.wait_for("never")).reason is WaitReason.EXIT
            assert here.sent["process/wait"] <= 2

    asyncio.run(main())


def test_a_wait_that_is_cut_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with line(monkeypatch) as here:
            session = await here.sh("printf half; read x; printf way; cat")
            waiting = asyncio.ensure_future(session.wait_for("halfway", timeout=40))
            for cut in range(3):
                await eventually_so(lambda n=cut: len(here.connections) > n)  # type: ignore[misc]
                await eventually_so(lambda: here.connections[-1].waits)
                rpc = here.executor.client.connection
                assert rpc is not None
                rpc.abort()
            await eventually_so(lambda: len(here.connections) > 3)
            await session.write(b"\n")
            found = await waiting
            assert (found.match, found.position) == (b"halfway", 7)

    asyncio.run(main())


def test_a_wait_nobody_wants_any_more_is_ended_over_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with line(monkeypatch) as here:
            session = await here.sh("cat")
            for _ in range(20):
                waiting = asyncio.ensure_future(session.wait_for("never"))
                await eventually_so(lambda: here.connections[0].waits)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                await eventually_so(lambda: not here.connections[0].waits)
            assert not here.connections[0].calls._tasks

    asyncio.run(main())


def answers(*results: Any) -> Stage:
    """A server that answers its waits like this, and None not at all."""
    left = list(results)

    def wait(server: Script, params: Any) -> Any:
        result = left.pop(0) if left else None
        return result(server) if callable(result) else result

    return Stage(initialize=initialize, process_wait=wait)


def result(reason: str, position: int, **more: Any) -> dict[str, Any]:
    return {"reason": reason, "position": position, "exited": False, "nextSeq": 1, **more}


def waited(stage: Stage, *patterns: str, **how: Any) -> WaitOutcome:
    found: list[WaitOutcome] = []

    async def main(executor: RemoteExecutor) -> None:
        session = await executor.spawn(REQUEST)
        found.append(await session.wait_for(*patterns, **how))

    run(stage, main)
    return found[0]


def test_an_answer_that_overtakes_the_output() -> None:
    def early(server: Script) -> Any:
        asyncio.get_running_loop().call_later(0.02, server.out, 1)
        return result("pattern", 1, pattern=0, outputBytes=2)

    found = waited(answers(early), "1")
    assert found == WaitOutcome(WaitReason.PATTERN, 1, 0, b"1")


def test_what_lies_behind_the_moment_of_the_match_does_not_count() -> None:
    def later(server: Script) -> Any:
        server.out(1)
        server.out(2)
        return result("pattern", 2, pattern=1, outputBytes=2)

    # As it was when the server looked: `1;` and nothing else.
    found = waited(answers(later), "2", "1;$")
    assert found == WaitOutcome(WaitReason.PATTERN, 2, 1, b"1;")


def test_a_match_that_is_not_to_be_had_any_more() -> None:
    def gone(server: Script) -> Any:
        server.out(1)
        return result("pattern", 2, pattern=1, outputBytes=2)

    found = waited(answers(gone), "a", "b")
    assert found == WaitOutcome(WaitReason.PATTERN, 2, 1, b"")


def test_a_server_that_waits_less_long_than_we_do() -> None:
    def found(server: Script) -> Any:
        server.out(1)
        return result("pattern", 2, pattern=0)

    stage = answers(result("deadline", 0), result("deadline", 0), found)
    assert waited(stage, "1;", timeout=15).match == b"1;"
    asked = [params for method, params in stage.heard if method == "process/wait"]
    assert len(asked) == 3
    assert {params["waitId"] for params in asked} == {asked[0]["waitId"]}
    assert asked[0]["timeoutMs"] >= asked[2]["timeoutMs"]


def test_a_server_that_says_nothing_does_not_outlast_the_deadline() -> None:
    stage = answers(None)
    assert waited(stage, "a", timeout=0.05).reason is WaitReason.DEADLINE
    assert [method for method, _ in stage.heard].count("process/wait") == 1


def test_a_pattern_the_server_refuses_is_looked_for_here() -> None:
    def refuse(server: Script) -> Any:
        asyncio.get_running_loop().call_later(0.02, server.out, 1)
        return ValueError("cannot be waited for here")

    assert waited(answers(refuse), "(?<=1);").position == 2


def test_a_server_without_waits_has_its_output_followed() -> None:
    def start(server: Script, params: Any) -> Any:
        asyncio.get_running_loop().call_later(0.02, server.out, 1)
        return {"processId": "p"}

    stage = Stage(process_start=start)
    assert waited(stage, "1;", timeout=15) == WaitOutcome(WaitReason.PATTERN, 2, 0, b"1;")
    assert "process/wait" not in [method for method, _ in stage.heard]


def test_no_connection_and_a_deadline() -> None:
    stage = answers(None)

    async def main(executor: RemoteExecutor) -> None:
        session = await executor.spawn(REQUEST)
        waiting = asyncio.ensure_future(session.wait_for("a", timeout=0.2))
        await eventually_so(lambda: [m for m, _ in stage.heard if m == "process/wait"])
        stage.answers["initialize"] = lambda *_: None
        stage.connections[-1].transport.abort()
        assert (await waiting).reason is WaitReason.DEADLINE

    run(stage, main)


def test_a_line_that_is_gone_for_good() -> None:
    stage = answers(None)

    async def main(executor: RemoteExecutor) -> None:
        session = await executor.spawn(REQUEST)
        waiting = asyncio.ensure_future(session.wait_for("a"))
        await eventually_so(lambda: [m for m, _ in stage.heard if m == "process/wait"])
        await executor.client.close()
        with pytest.raises(ExecutorTransportFailed, match="this client is closed"):
            await waiting

    run(stage, main)


@pytest.mark.parametrize(
    ("pattern", "text", "match"),
    [
        ("ä+", "xäää", "äää"),
        ("[x]ü?", "xü", "xü"),
        (r"\ß", "ß", "ß"),
        ("naïve", "naïve", "naïve"),
        (r"[\]a]+é{2}", "a]éé", "a]éé"),
    ],
)
def test_characters_of_several_bytes_stay_together(pattern: str, text: str, match: str) -> None:
    found = re.search(pattern_source(pattern), text.encode())
    assert found is not None
    assert found.group().decode() == match


@pytest.mark.parametrize("pattern", ["[äö]", "[^ä]", "[]ä]", r"[\]ä]", "a[b-ü]"])
def test_a_class_stands_for_bytes(pattern: str) -> None:
    with pytest.raises(UsageError, match="alternatives"):
        pattern_source(pattern)
