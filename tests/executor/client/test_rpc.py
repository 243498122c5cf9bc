"""Calls over one connection: ids, replies, limits, and peers that break the protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec import UNSET

from handrail.errors import ConnectionLost, LocalProtocolError, RpcError
from handrail.executor.client.rpc import MOST_CALLS, CallTimedOut, RpcConnection
from handrail.transport.base import Transport
from handrail.transport.memory import memory_pair
from tests.support.eventually import eventually_so


class Peer:
    """The other end: what arrived, and a way to say anything."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.why: str | None = None
        self.transport: Transport

    def connected(self, transport: Transport) -> None:
        self.transport = transport

    def message(self, data: str | bytes | bytearray) -> None:
        self.got.append(json.loads(data))

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def disconnected(self, why: str) -> None:
        self.why = why

    def say(self, message: Any) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        self.transport.send(text.encode())

    async def heard(self, count: int) -> None:
        await eventually_so(lambda: len(self.got) >= count, "it has heard everything")


class Line:
    """A connection to a peer, with what it was told."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, Any]] = []
        self.closed: list[str] = []
        self.peer = Peer()
        self.rpc = RpcConnection(
            lambda method, params: self.notes.append((method, params)),
            lambda _, why: self.closed.append(why),
        )
        memory_pair(self.rpc, self.peer)

    def call(self, method: str = "m", **how: Any) -> asyncio.Task[Any]:
        return asyncio.ensure_future(self.rpc.call(method, {}, **how))


def run(main: Callable[[Line], Awaitable[None]]) -> None:
    async def inside() -> None:
        line = Line()
        async with asyncio.timeout(20):
            await main(line)
            line.rpc.abort()
            await line.rpc.ended()

    asyncio.run(inside())


def test_ids_from_one_and_replies_in_any_order() -> None:
    async def main(line: Line) -> None:
        calls = [line.call(f"m{n}") for n in range(3)]
        await line.peer.heard(3)
        assert [m["id"] for m in line.peer.got] == [1, 2, 3]
        line.peer.say({"id": 3, "result": "c"})
        line.peer.say({"id": 2, "error": {"code": -32004, "message": "no", "data": {"a": 1}}})
        line.peer.say({"id": 1, "result": "a"})
        assert (await calls[0], await calls[2]) == ("a", "c")
        with pytest.raises(RpcError) as caught:
            await calls[1]
        assert (caught.value.code, caught.value.data) == (-32004, {"a": 1})

    run(main)


def test_a_deadline_and_a_late_reply() -> None:
    async def main(line: Line) -> None:
        with pytest.raises(CallTimedOut, match=r"no answer to slow within 0\.02 s"):
            await line.call("slow", timeout=0.02)
        line.peer.say({"id": 1, "result": "late"})
        line.peer.say({"id": 1, "result": "twice"})
        again = line.call()
        await line.peer.heard(2)
        line.peer.say({"id": 2, "result": "on time"})
        assert await again == "on time"

    run(main)


def test_each_call_has_its_own_deadline() -> None:
    """Whichever order they were made in; one timer serves all of them."""

    async def main(line: Line) -> None:
        late, soon, answered, patient = (
            line.call(name, timeout=seconds)
            for name, seconds in (("late", 0.2), ("soon", 0.02), ("answered", 0.05), ("long", 60))
        )
        await line.peer.heard(4)
        line.peer.say({"id": 3, "result": "in time"})
        assert await answered == "in time"
        with pytest.raises(CallTimedOut, match=r"no answer to soon within 0\.02 s"):
            await soon
        assert not late.done()
        with pytest.raises(CallTimedOut, match=r"no answer to late within 0\.2 s"):
            await late
        line.peer.say({"id": 4, "result": "at last"})
        assert await patient == "at last"
        again = line.call("again", timeout=0.02)
        with pytest.raises(CallTimedOut):
            await again

    run(main)


def test_everybody_is_told_when_the_line_is_gone() -> None:
    async def main(line: Line) -> None:
        calls = [line.call() for _ in range(5)]
        await line.peer.heard(5)
        line.peer.transport.abort()
        for failed in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(failed, ConnectionLost)
        assert len(line.closed) == 1
        with pytest.raises(ConnectionLost):
            await line.call()

    run(main)


def test_calls_under_way_are_bounded_and_one_is_kept_for_cleaning_up() -> None:
    async def main(line: Line) -> None:
        calls = [line.call() for _ in range(MOST_CALLS)]
        await line.peer.heard(MOST_CALLS)
        with pytest.raises(LocalProtocolError, match="1024 calls are under way"):
            await line.call()
        clean = line.call("process/terminate", reserved=True)
        await line.peer.heard(MOST_CALLS + 1)
        with pytest.raises(LocalProtocolError):
            await line.call("process/terminate", reserved=True)
        line.peer.say({"id": MOST_CALLS + 1, "result": {}})
        await clean
        line.peer.transport.abort()
        await asyncio.gather(*calls, return_exceptions=True)

    run(main)


@pytest.mark.parametrize(
    "message",
    [
        "not json",
        '{"id": 99, "result": 1}',
        '{"a": 1, "a": 2}',
        '{"id": -3, "method": "x"}',
        '{"id": "s", "method": "x"}',
        "[]",
        '{"method":"process/output","params"',
        '{"method":"process/closed","params":{"processId":"p","seq":"one"}}',
    ],
)
def test_a_peer_that_breaks_the_protocol_loses_the_connection(message: str) -> None:
    async def main(line: Line) -> None:
        waiting = line.call()
        await line.peer.heard(1)
        line.peer.say(message)
        with pytest.raises(ConnectionLost, match="broke the protocol"):
            await waiting
        assert len(line.closed) == 1

    run(main)


def test_news_of_a_process_come_with_their_shape_whatever_they_travel_as() -> None:
    async def main(line: Line) -> None:
        text = '{"method":"process/exited","params":{"processId":"p","seq":1,"exitCode":0}}'
        closed = '{"method":"process/closed","params":{"processId":"p","seq":2,"heldOpen":true}}'
        output = '{"method":"process/output","params":{"processId":"p","seq":3,'
        output += '"stream":"stdout","chunk":"eA=="}}'
        for said in (text.replace("}}", ',"sandboxDenied":false}}'), closed, output):
            for form in (said, said.encode(), bytearray(said.encode())):
                line.rpc.message(form)
        assert [(method, params.seq) for method, params in line.notes] == [
            *[("process/exited", 1)] * 3,
            *[("process/closed", 2)] * 3,
            *[("process/output", 3)] * 3,
        ]
        assert line.notes[0][1].exit is UNSET
        assert line.notes[3][1].held_open is True

    run(main)


def test_calls_of_the_peer_are_refused_and_must_not_repeat() -> None:
    async def main(line: Line) -> None:
        line.peer.say({"method": "note", "params": {"x": 1}})
        line.peer.say({"id": 1, "method": "network/other"})
        await line.peer.heard(1)
        assert line.notes == [("note", {"x": 1})]
        assert line.peer.got[0]["error"]["code"] == -32601
        line.peer.say({"id": 1, "method": "network/other"})
        await line.rpc.ended()
        assert "broke the protocol" in line.closed[0]

    run(main)
