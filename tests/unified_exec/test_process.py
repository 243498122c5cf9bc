"""What is told of a process, and when: begin, output, interactions, one end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from handrail.errors import ExecutorTransportFailed, WriteFailed
from handrail.executor.base import Denied, OutputEvent, OutputKind
from handrail.process.exit_status import ExitInfo, ExitKind
from handrail.unified_exec.events import MAX_DELTA_BYTES, Begin, Delta, End, Event, Interaction
from handrail.unified_exec.gate import Ended, ExecCall, PatchRequest, Started
from handrail.unified_exec.tools import ToolFailed
from tests.support.eventually import eventually_so
from tests.unified_exec.agent import Agent, Latch, with_agent


async def test_a_quick_command_has_a_begin_and_an_end(agent: Agent) -> None:
    answer = await agent.exec("echo out; echo err >&2; exit 4")
    first, *deltas, last = agent.events
    assert first == Begin(
        answer.call_id,
        first.process_id,
        ("/bin/bash", "-c", "echo out; echo err >&2; exit 4"),
        "/",
        "echo out; echo err >&2; exit 4",
        tty=False,
    )
    assert isinstance(first, Begin)
    assert first.commands is None
    assert isinstance(last, End)
    assert (last.exit_code, last.status, last.error) == (4, "failed", "")
    assert sorted(last.output.split()) == [b"err", b"out"]
    assert b"".join(one.data for one in deltas if isinstance(one, Delta)) == last.output
    assert last.duration > 0


def test_the_plain_commands_of_a_script_are_told() -> None:
    begin = Begin("c", 1, ("sh", "-c", "a b | c"), "/", "a b | c", tty=False)
    assert begin.commands == (("a", "b"), ("c",))


async def test_output_is_told_in_small_pieces_between_characters(agent: Agent) -> None:
    await agent.exec("for i in $(seq 3000); do printf 'é漢🙂%s' $i; done")
    deltas = agent.told(Delta)
    assert all(len(one.data) <= MAX_DELTA_BYTES for one in deltas)
    assert all("\ufffd" not in one.data.decode() for one in deltas)
    (end,) = agent.told(End)
    assert b"".join(one.data for one in deltas) == end.output


def test_writes_and_vain_polls_are_told_between_begin_and_end() -> None:
    async def scenario(agent: Agent) -> None:
        cat = await agent.exec("exec cat", tty=True, yield_time_ms=250)
        await agent.write(cat.process_id, "word\n")
        await agent.write(cat.process_id, yield_time_ms=1)
        await agent.write(cat.process_id, keys=("ctrl-d",), yield_time_ms=30_000)
        told = [one.stdin for one in agent.told(Interaction)]
        assert told == ["word\n", "", "\x04"]
        assert {one.call_id for one in agent.told(Interaction)} == {cat.call_id}
        assert isinstance(agent.events[0], Begin)
        assert isinstance(agent.events[-1], End)

    with_agent(scenario, max_poll_ms=5_000)


async def test_the_end_is_told_once_although_something_holds_the_output(
    agent: Agent, tmp_path: Path
) -> None:
    latch = Latch(tmp_path)
    await agent.exec(f"(read x <{latch}; echo late) & echo now")
    await eventually_so(lambda: agent.told(End))
    await latch.open(agent)
    first = agent.told(End)[0]
    assert first.output == b"now\n"
    assert len([one for one in agent.told(End) if one.call_id == first.call_id]) == 1


class Script:
    """A session that does what a test says."""

    process_id = "scripted"

    def __init__(self, *, failure: str = "", write_fails: bool = False) -> None:
        self.ended = asyncio.Event()
        self.failure = failure
        self.write_fails = write_fails
        self.terminated = False

    def keep_output(self, limit: int) -> None:
        pass

    async def subscribe_output(self):  # type: ignore[no-untyped-def]
        yield OutputEvent(OutputKind.STDOUT, b"head", 1)
        yield OutputEvent(OutputKind.STDERR, b"tail", 2, omitted=1000)
        await self.ended.wait()
        if self.failure:
            raise ExecutorTransportFailed(self.failure)

    async def wait(self) -> ExitInfo:
        await self.ended.wait()
        if self.failure:
            raise ExecutorTransportFailed(self.failure)
        return ExitInfo(ExitKind.LOST, None)

    async def write(self, data: bytes) -> None:
        self.ended.set()
        if self.write_fails:
            raise WriteFailed("it is gone")
        if self.failure:
            raise ExecutorTransportFailed(self.failure)

    async def terminate(self, grace: float = 0.0) -> None:
        self.terminated = True
        self.ended.set()

    def try_exit_status(self) -> ExitInfo | None:
        return None

    async def denied(self) -> Denied:
        return Denied(likely=False)


class ScriptedGate:
    def __init__(self, make) -> None:  # type: ignore[no-untyped-def]
        self.make = make

    async def start(self, call: ExecCall) -> Started:
        return Started(self.make())

    async def ended(self, call: ExecCall, ended: Ended) -> Started | None:
        return None

    async def patch_reader(self) -> None:
        return None

    async def patch(self, request: PatchRequest) -> None:
        return None


def test_bytes_that_were_lost_on_the_way_are_told() -> None:
    async def scenario(agent: Agent) -> None:
        answer = await agent.exec("x", tty=True, yield_time_ms=250)
        assert answer.output == "head\n... 1000 bytes omitted ...\ntail"
        assert answer.original_token_count == 252
        number = answer.process_id
        assert number is not None
        assert agent.read(number, 4).missing == 1000
        ended = await agent.write(number, "x")
        assert ended.exit_code == -1

    with_agent(scenario, gate=ScriptedGate(Script))


class Trailing(Script):
    """A session with output that ends a moment after the process."""

    async def subscribe_output(self):  # type: ignore[no-untyped-def]
        yield OutputEvent(OutputKind.STDOUT, b"head", 1)
        await self.ended.wait()
        await asyncio.sleep(0)


def test_a_call_on_a_process_that_is_ended_meanwhile_is_answered_with_its_end() -> None:
    async def scenario(agent: Agent) -> None:
        call = asyncio.create_task(agent.exec("x", yield_time_ms=30_000))
        (one,) = await eventually_so(agent.tools.background)
        assert await agent.tools.terminate(one.process_id)
        answer = await call
        assert (answer.exit_code, answer.output) == (-1, "head")

    with_agent(scenario, gate=ScriptedGate(Trailing))


def test_what_starts_while_the_tools_are_closed_is_ended() -> None:
    session, let_in = Script(), asyncio.Event()

    class Slow(ScriptedGate):
        async def start(self, call: ExecCall) -> Started:
            await let_in.wait()
            return await super().start(call)

    async def scenario(agent: Agent) -> None:
        call = asyncio.create_task(agent.exec("x"))
        await asyncio.sleep(0)
        await agent.tools.close()
        let_in.set()
        with pytest.raises(ToolFailed, match="closed"):
            await call
        assert session.terminated
        assert agent.events == []

    with_agent(scenario, gate=Slow(lambda: session))


class Answered(Script):
    """A session that ends by what is written, before the write is answered."""

    async def write(self, data: bytes) -> None:
        await super().write(data)
        for _ in range(20):
            await asyncio.sleep(0)


def test_the_end_is_told_after_the_write_that_made_it() -> None:
    async def scenario(agent: Agent) -> None:
        answer = await agent.exec("x", tty=True, yield_time_ms=250)
        ended = await agent.write(answer.process_id, "exit\n")
        assert ended.exit_code == -1
        assert [type(one) for one in agent.events[-2:]] == [Interaction, End]

    with_agent(scenario, gate=ScriptedGate(Answered))


def test_a_write_that_comes_too_late_is_answered_with_the_end() -> None:
    async def scenario(agent: Agent) -> None:
        answer = await agent.exec("x", tty=True, yield_time_ms=250)
        ended = await agent.write(answer.process_id, "x")
        assert ended.exit_code == -1
        assert agent.told(Interaction) == []

    with_agent(scenario, gate=ScriptedGate(lambda: Script(write_fails=True)))


def test_a_lost_way_to_the_process_ends_it_with_a_sentence() -> None:
    async def scenario(agent: Agent) -> None:
        answer = await agent.exec("x", tty=True, yield_time_ms=250)
        with pytest.raises(ToolFailed) as caught:
            await agent.write(answer.process_id, "x")
        text = "executor transport failure: the line is cut"
        assert str(caught.value) == f"write_stdin failed: {text}"
        assert agent.tools.background() == []
        (end,) = agent.told(End)
        assert (end.exit_code, end.error) == (-1, text)
        assert end.output.endswith(b"tail\n" + text.encode())

    with_agent(scenario, gate=ScriptedGate(lambda: Script(failure="the line is cut")))


async def test_listening_stops_with_the_tools(agent: Agent) -> None:
    events: list[Event] = []

    await agent.exec("exec sleep 100", yield_time_ms=250)
    events.extend(agent.events)
    agent.events.clear()
    await agent.tools.close()
    assert [type(one) for one in agent.events] == [End]

    assert [type(one) for one in events] == [Begin]
