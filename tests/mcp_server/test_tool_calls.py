"""Answers in time: calls that outlast the host's patience."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from handrail.agent.shell import AgentShell
from handrail.errors import UsageError
from handrail.mcp_server.call_approvals import PendingCalls, read_unasked
from handrail.mcp_server.tool_calls import InputNeeded, Reply, ToolCalls
from handrail.orchestrator.approvals import Answer, Choice, Question


class Channel:
    """A host in front of which somebody sits, or nobody."""

    def __init__(self, *, can_ask: bool = True, in_reply: bool = False) -> None:
        self.can_ask = can_ask
        self.asks_in_reply = in_reply
        self.asked = asyncio.Event()
        self.answers: asyncio.Queue[Answer] = asyncio.Queue()
        self.messages: list[str] = []

    async def ask(self, question: Question) -> Answer:
        self.asked.set()
        return await self.answers.get()

    async def progress(self, seconds: float, total: float, message: str) -> None:
        self.messages.append(message)


def at_desk(
    cwd: Path,
    main: Any,
    within: float = 30.0,
    sandbox: str = "danger-full-access",
    unasked: Choice = Choice.DENY,
) -> None:
    async def whole() -> None:
        pending = PendingCalls(unasked)
        async with AgentShell(
            str(cwd), approver=pending, policy="untrusted", sandbox=sandbox
        ) as shell:
            calls = ToolCalls(shell, pending, answer_within=within)
            try:
                await main(calls)
            finally:
                await calls.close()

    asyncio.run(whole())


def test_a_late_approval_is_fetched_by_name(tmp_path: Path) -> None:
    async def main(calls: ToolCalls) -> None:
        channel = Channel()
        first = await calls.call("exec_command", {"cmd": "echo hi"}, channel)
        assert isinstance(first, Reply)
        assert first.text.startswith("Waiting for an approval")
        assert first.structured is not None
        name = first.structured["pending"]
        channel.answers.put_nowait(Answer(Choice.APPROVE))
        found: Reply | InputNeeded = first
        while isinstance(found, Reply) and found.structured == {"pending": name}:
            found = await calls.call("write_stdin", {"session_id": name}, channel)
        assert isinstance(found, Reply)
        assert "hi\n" in found.text
        gone = await calls.call("write_stdin", {"session_id": name}, channel)
        assert isinstance(gone, Reply)
        assert not gone.ok

    at_desk(tmp_path, main, within=0.2)


def test_a_question_in_the_reply_comes_back_with_the_next_call(tmp_path: Path) -> None:
    async def main(calls: ToolCalls) -> None:
        channel = Channel(in_reply=True)
        needed = await calls.call("exec_command", {"cmd": "echo hi"}, channel)
        assert isinstance(needed, InputNeeded)
        done = await calls.resume(needed.state, lambda _: Answer(Choice.APPROVE), channel)
        assert isinstance(done, Reply)
        assert done.ok

    at_desk(tmp_path, main)


def test_an_answer_that_is_sent_twice_answers_one_question(tmp_path: Path) -> None:
    """The first is about a sandboxed run, the next about one outside."""
    told = tmp_path / "told"
    work = tmp_path / "work"
    work.mkdir()

    def yes(_: Question) -> Answer:
        return Answer(Choice.APPROVE)

    async def main(calls: ToolCalls) -> None:
        channel = Channel(in_reply=True)
        script = f"touch {told} || exit 1"
        first = await calls.call("exec_command", {"cmd": script}, channel)
        assert isinstance(first, InputNeeded)
        assert not first.question.outside
        second = await calls.resume(first.state, yes, channel)
        assert isinstance(second, InputNeeded)
        assert second.question.outside
        again = await calls.resume(first.state, yes, channel)
        assert again == second
        assert not told.exists()
        done = await calls.resume(second.state, yes, channel)
        assert isinstance(done, Reply)
        assert told.exists()

    at_desk(work, main, sandbox="workspace-write")


def test_nobody_to_ask_gets_the_setting(tmp_path: Path) -> None:
    async def denied(calls: ToolCalls) -> None:
        reply = await calls.call("exec_command", {"cmd": "true"}, Channel(can_ask=False))
        assert isinstance(reply, Reply)
        assert not reply.ok

    async def approved(calls: ToolCalls) -> None:
        reply = await calls.call("exec_command", {"cmd": "true"}, Channel(can_ask=False))
        assert isinstance(reply, Reply)
        assert reply.ok

    at_desk(tmp_path, denied)
    at_desk(tmp_path, approved, unasked=read_unasked("approve"))
    with pytest.raises(UsageError):
        read_unasked("maybe")


def test_an_abort_tells_the_model_to_stop(tmp_path: Path) -> None:
    async def main(calls: ToolCalls) -> None:
        channel = Channel()
        channel.answers.put_nowait(Answer(Choice.ABORT))
        reply = await calls.call("exec_command", {"cmd": "true"}, channel)
        assert isinstance(reply, Reply)
        assert not reply.ok
        assert "stop" in reply.text

    at_desk(tmp_path, main)


def test_a_call_taken_back_is_not_run(tmp_path: Path) -> None:
    async def main(calls: ToolCalls) -> None:
        channel = Channel()
        call = asyncio.create_task(calls.call("exec_command", {"cmd": "touch made"}, channel))
        await channel.asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        channel.answers.put_nowait(Answer(Choice.APPROVE))

    at_desk(tmp_path, main)
    assert not (tmp_path / "made").exists()
