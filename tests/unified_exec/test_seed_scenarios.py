"""The eight scenarios that the first unified exec was specified by, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from handrail.executor.output.head_tail import HeadTail
from handrail.unified_exec.tools import UnknownProcess
from handrail.unified_exec.yield_time import MAX_YIELD_MS, exec_yield, poll_yield, write_yield
from tests.unified_exec.agent import Agent, Latch


def test_1_buffer_keeps_a_stable_prefix_and_the_newest_suffix() -> None:
    buffer = HeadTail(10)
    buffer.append(b"0123456789")
    assert buffer.omitted == 0
    buffer.append(b"ab")
    assert (buffer.head, buffer.tail, buffer.omitted) == (b"01234", b"789ab", 2)
    buffer.append(b"c" * 100)
    assert (buffer.head, buffer.tail, buffer.omitted) == (b"01234", b"ccccc", 102)


def test_2_buffer_of_no_size_keeps_nothing_and_counts_everything() -> None:
    buffer = HeadTail(0)
    buffer.append(b"abc")
    assert (buffer.content(), buffer.retained, buffer.omitted) == (b"", 0, 3)
    last = HeadTail(1)
    last.append(b"abc")
    assert last.content() == b"c"


async def test_3_state_persists_across_calls(agent: Agent) -> None:
    shell = await agent.exec("bash --norc", tty=True, yield_time_ms=250)
    assert shell.process_id is not None
    assert shell.exit_code is None
    await agent.write(shell.process_id, "HANDRAIL_WORD=lamp\n")
    seen = await agent.write_until(shell.process_id, "echo it=$HANDRAIL_WORD.\n", "it=lamp.")
    assert "it=lamp." in seen


async def test_4_sessions_are_apart_and_a_quick_command_has_none(agent: Agent) -> None:
    first = await agent.exec("bash --norc", tty=True, yield_time_ms=250)
    second = await agent.exec("bash --norc", tty=True, yield_time_ms=250)
    assert first.process_id != second.process_id
    await agent.write(first.process_id, "HANDRAIL_WORD=lamp\n")
    quick = await agent.exec("echo it=$HANDRAIL_WORD.")
    assert quick.process_id is None
    assert quick.exit_code == 0
    assert quick.output == "it=.\n"
    other = await agent.write_until(second.process_id, "echo it=${HANDRAIL_WORD}.\n", "it=.")
    assert "lamp" not in other
    same = await agent.write_until(first.process_id, "echo it=${HANDRAIL_WORD}.\n", "it=lamp.")
    assert "it=lamp." in same


async def test_5_what_comes_after_the_waiting_time_is_given_by_a_later_poll(
    agent: Agent, tmp_path: Path
) -> None:
    latch = Latch(tmp_path)
    early = await agent.exec(f"read x <{latch}; echo late", yield_time_ms=250)
    assert early.process_id is not None
    assert "late" not in early.output
    await latch.open(agent)
    poll = await agent.write(early.process_id)
    assert poll.output == "late\n"
    assert poll.exit_code == 0
    assert poll.process_id is None


def test_6_waiting_times_are_capped() -> None:
    assert exec_yield(10**9) == write_yield(10**9) == MAX_YIELD_MS == 30_000
    assert poll_yield(10**9) == 300_000
    assert poll_yield(10**9, 6_000) == 6_000
    assert (exec_yield(0), write_yield(0), poll_yield(0), poll_yield(0, 10)) == (
        250,
        250,
        5_000,
        5_000,
    )


async def test_7_an_ended_command_leaves_no_session(agent: Agent) -> None:
    done = await agent.exec("echo done", tty=True)
    assert done.process_id is None
    assert done.exit_code == 0
    assert "done" in done.output
    assert agent.tools.background() == []


async def test_8_an_ended_session_is_unknown_and_the_error_carries_its_id(agent: Agent) -> None:
    shell = await agent.exec("bash --norc", tty=True, yield_time_ms=250)
    number = shell.process_id
    assert number is not None
    answer = await agent.write(number, "exit\n", yield_time_ms=30_000)
    assert answer.exit_code == 0
    assert answer.process_id is None
    with pytest.raises(UnknownProcess, match=f"Unknown process id {number}") as caught:
        await agent.write(number)
    assert caught.value.process_id == number
    with pytest.raises(UnknownProcess, match=r"Unknown process id 4$"):
        await agent.write(4)
