"""A client and servers that do not behave: scripted, in memory."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from handrail.errors import (
    ExecutorSpawnFailed,
    ExecutorTransportFailed,
    RemoteProtocolError,
    UsageError,
    WriteFailed,
)
from handrail.executor.base import SpawnRequest
from handrail.executor.client.dial import MemoryDialer
from handrail.executor.client.session import ExecServerClient
from handrail.executor.remote import RemoteExecutor
from handrail.sandbox.profile import Access, Entry, Intent
from handrail.transport.base import Transport
from tests.executor.places import collect
from tests.support.eventually import eventually_so

REQUEST = SpawnRequest("p", ("program",), "/", {})
Answer = Callable[["Script", Any], Any]


def b64(number: int) -> str:
    return base64.b64encode(b"%d;" % number).decode()


class Script:
    """A server whose answers a test decides; one object per connection."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.transport: Transport

    def connected(self, transport: Transport) -> None:
        self.transport = transport
        self.stage.connections.append(self)

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def disconnected(self, why: str) -> None: ...

    def send(self, message: Any) -> None:
        self.transport.send(json.dumps(message, separators=(",", ":")).encode())

    def message(self, data: str | bytes) -> None:
        message = json.loads(data)
        method = message.get("method")
        self.stage.heard.append((method, message.get("params")))
        if "id" not in message:
            return
        answer = self.stage.answers.get(method, lambda *_: {})
        result = answer(self, message.get("params"))
        if result is None:
            return
        if isinstance(result, Exception):
            error = {"code": -32600, "message": str(result)}
            self.send({"id": message["id"], "error": error})
        else:
            self.send({"id": message["id"], "result": result})

    def out(self, seq: int) -> None:
        params = {"processId": "p", "seq": seq, "stream": "stdout", "chunk": b64(seq)}
        self.send({"method": "process/output", "params": params})

    def exited(self, seq: int, code: int = 0) -> None:
        params = {"processId": "p", "seq": seq, "exitCode": code, "sandboxDenied": False}
        self.send({"method": "process/exited", "params": params})

    def closed(self, seq: int) -> None:
        self.send({"method": "process/closed", "params": {"processId": "p", "seq": seq}})


class Stage:
    """What all connections of one server share."""

    def __init__(self, **answers: Answer) -> None:
        self.answers: dict[str, Answer] = {"initialize": lambda *_: {"sessionId": "s"}}
        self.answers |= {name.replace("_", "/"): answer for name, answer in answers.items()}
        self.connections: list[Script] = []
        self.heard: list[tuple[str, Any]] = []

    async def connect(self, **how: Any) -> RemoteExecutor:
        return await RemoteExecutor.connect(MemoryDialer(lambda: Script(self)), **how)


def read_result(seqs: list[int], next_seq: int, *, over: bool = False) -> dict[str, Any]:
    return {
        "chunks": [{"seq": n, "stream": "stdout", "chunk": b64(n)} for n in seqs],
        "nextSeq": next_seq,
        "exited": over,
        "exitCode": 0 if over else None,
        "closed": over,
        "failure": None,
        "sandboxDenied": False,
    }


def run(stage: Stage, main: Callable[[RemoteExecutor], Awaitable[None]], **how: Any) -> None:
    async def inside() -> None:
        async with asyncio.timeout(20):
            executor = await stage.connect(**how)
            try:
                await main(executor)
            finally:
                await executor.client.close()

    asyncio.run(inside())


def test_events_before_the_answer_out_of_order_twice_and_lost() -> None:
    def start(server: Script, _: Any) -> Any:
        server.out(2)
        server.out(1)
        for act in (server.out, server.out):
            act(4)
        server.closed(6)
        server.exited(5)
        return {"processId": "p"}

    def read(_: Script, params: Any) -> Any:
        return read_result([n for n in (1, 2, 3, 4) if n > params["afterSeq"]], 7, over=True)

    async def main(executor: RemoteExecutor) -> None:
        session = await executor.spawn(REQUEST)
        assert await collect(session) == (b"1;2;3;4;", b"")
        assert (await session.wait()).code == 0

    run(Stage(process_start=start, process_read=read), main)


def test_a_gap_that_cannot_be_filled_fails_that_process_alone() -> None:
    def start(server: Script, params: Any) -> Any:
        if params["processId"] == "p":
            server.out(1)
            server.out(5)
        return {}

    stage = Stage(process_start=start, process_read=lambda *_: read_result([5], 6))

    async def main(executor: RemoteExecutor) -> None:
        session = await executor.spawn(REQUEST)
        other = await executor.spawn(SpawnRequest("q", ("x",), "/", {}))
        with pytest.raises(ExecutorTransportFailed, match=r"no longer retained .* sequence 5"):
            await session.wait()
        assert other.try_exit_status() is None
        await eventually_so(
            lambda: ("process/terminate", {"processId": "p"}) in stage.heard, "it is ended"
        )

    run(stage, main)


def test_a_notification_that_does_not_read_leads_to_a_new_connection() -> None:
    def start(server: Script, _: Any) -> Any:
        if len(stage.connections) == 1:
            params = {"processId": "p", "seq": "one"}
            server.send({"method": "process/output", "params": params})
        return {}

    stage = Stage(process_start=start, process_read=lambda *_: read_result([1, 2], 5, over=True))

    async def main(executor: RemoteExecutor) -> None:
        session = await executor.spawn(REQUEST)
        assert (await collect(session))[0] == b"1;2;"
        assert executor.client.resumed == 1
        resumed = [params for method, params in stage.heard if method == "initialize"][1]
        assert resumed["resumeSessionId"] == "s"

    run(stage, main)


def test_a_server_that_never_keeps_to_the_protocol_is_given_up() -> None:
    def start(server: Script, _: Any) -> Any:
        server.send({"method": "process/output", "params": {"processId": "p", "seq": "one"}})
        return {}

    stage = Stage(process_start=start)

    async def main(executor: RemoteExecutor) -> None:
        with pytest.raises(ExecutorSpawnFailed, match="broke the protocol"):
            await executor.spawn(REQUEST)
        assert len(stage.connections) == 5

    run(stage, main)


def test_another_session_than_the_one_asked_for_ends_recovery() -> None:
    stage = Stage(process_start=lambda *_: {})

    async def main(executor: RemoteExecutor) -> None:
        session = await executor.spawn(REQUEST)
        stage.answers["initialize"] = lambda *_: {"sessionId": "another"}
        stage.connections[0].transport.abort()
        with pytest.raises(ExecutorTransportFailed, match="another session was resumed"):
            await session.wait()
        with pytest.raises(WriteFailed, match="another session was resumed"):
            await session.write(b"x")
        with pytest.raises(ExecutorSpawnFailed, match="another session was resumed"):
            await executor.spawn(SpawnRequest("q", ("x",), "/", {}))

    run(stage, main)


def test_an_outdated_secret_is_not_insisted_on() -> None:
    stage = Stage(
        process_start=lambda *_: {},
        process_read=lambda *_: read_result([], 1),
        process_write=lambda *_: {"status": "accepted"},
    )

    def initialize(_: Script, params: Any) -> Any:
        if params.get("resumeSecret") == "first":
            return RuntimeError("unknown session id s")
        return {"sessionId": "s", "resumeSecret": "second"}

    async def main(executor: RemoteExecutor) -> None:
        executor.client.resume_secret = "first"
        session = await executor.spawn(REQUEST)
        stage.answers["initialize"] = initialize
        stage.connections[0].transport.abort()
        await session.write(b"x")
        assert executor.client.resume_secret == "second"

    run(stage, main)


def test_writes_and_starts_that_were_cut_are_sent_again_with_their_ids() -> None:
    seen: list[tuple[str, str]] = []

    def once(server: Script, params: Any) -> Any:
        key = params.get("writeId") or params["processId"]
        seen.append((key, params.get("chunk", "")))
        if len(seen) % 2:
            server.transport.abort()
            return None
        return {"status": "accepted"}

    async def main(executor: RemoteExecutor) -> None:
        session = await executor.spawn(REQUEST)
        await session.write(b"abc")
        assert seen[0] == seen[1] == ("p", "")
        assert seen[2] == seen[3]
        assert seen[2][1] == base64.b64encode(b"abc").decode()

    read = lambda *_: read_result([], 1)  # noqa: E731 (an answer, like the others)
    run(Stage(process_start=once, process_write=once, process_read=read), main)


def test_a_start_of_an_id_that_was_used_is_not_taken_for_ours() -> None:
    starts = 0

    def start(server: Script, _: Any) -> Any:
        nonlocal starts
        starts += 1
        if starts == 2:
            server.transport.abort()
            return None
        if starts == 3:
            return RuntimeError("process p already exists")
        server.exited(1)
        server.closed(2)
        return {}

    async def main(executor: RemoteExecutor) -> None:
        await (await executor.spawn(REQUEST)).wait_closed()
        with pytest.raises(ExecutorSpawnFailed, match="already exists"):
            await executor.spawn(REQUEST)

    run(Stage(process_start=start), main)


def test_a_server_that_names_no_session() -> None:
    async def main() -> None:
        stage = Stage(initialize=lambda *_: {"nothing": 1})
        with pytest.raises(RemoteProtocolError, match="names no session"):
            await ExecServerClient.connect(MemoryDialer(lambda: Script(stage)))

    asyncio.run(main())


def test_a_server_that_refuses_extensions_is_asked_for_none() -> None:
    stage = Stage(
        initialize=lambda *_: {
            "sessionId": "s",
            "environmentInfo": {"capabilities": {"fsWatchMissing": True, "handrail": {"a": False}}},
        },
        process_start=lambda *_: {},
    )

    async def main(executor: RemoteExecutor) -> None:
        assert executor.client.extensions == frozenset()
        await executor.spawn(SpawnRequest("p", ("x",), "/", {}, tty=True, name="n", size=(9, 9)))
        params = next(params for method, params in stage.heard if method == "process/start")
        assert set(params) == {"processId", "argv", "cwd", "env", "tty", "pipeStdin"}

    run(stage, main)


@pytest.mark.parametrize(
    "request_",
    [
        SpawnRequest("p", ("program", b"\xff"), "/", {}),
        SpawnRequest("p", ("program", "\udcff"), "/", {}),
        SpawnRequest("p", ("program",), "/", {"A": "\udcff"}),
        SpawnRequest("p", ("program",), "/", {"\udcff": "a"}),
        SpawnRequest("p", ("program",), "/", {}, arg0="\udcff"),
        SpawnRequest(
            "p", ("program",), "/", {}, sandbox=Intent(entries=(Entry(Access.DENY, glob="\udcff"),))
        ),
    ],
)
def test_words_that_are_no_text_are_refused_before_anything_is_sent(request_: SpawnRequest) -> None:
    stage = Stage()

    async def main(executor: RemoteExecutor) -> None:
        with pytest.raises(UsageError, match="not UTF-8"):
            await executor.spawn(request_)
        assert executor.client.routes() == []
        await executor.spawn(REQUEST)

    run(stage, main)
    assert [method for method, _ in stage.heard] == ["initialize", "initialized", "process/start"]
