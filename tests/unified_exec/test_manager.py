"""The calls on real processes: answers, ends, rooms, interruptions."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from handrail.unified_exec.process_lifecycle import Background
from handrail.unified_exec.tools import Size, ToolFailed, UnknownProcess
from tests.support.eventually import eventually_so
from tests.unified_exec.agent import Agent, Latch, agent_with, with_agent

TEXT = re.compile(
    r"Chunk ID: [0-9a-f]{6}\n"
    r"Wall time: \d+\.\d{4} seconds\n"
    r"Process exited with code 3\n"
    r"Original token count: 1\n"
    r"Output:\n"
    r"hi\n"
)


async def test_an_answer_is_a_text_and_data(agent: Agent) -> None:
    answer = await agent.exec("echo hi; exit 3")
    assert TEXT.fullmatch(answer.text)
    assert answer.structured() == {
        "chunk_id": answer.chunk_id,
        "wall_time_seconds": answer.wall_time_seconds,
        "exit_code": 3,
        "original_token_count": 1,
        "output": "hi\n",
    }
    assert answer.command == ("/bin/bash", "-c", "echo hi; exit 3")
    running = await agent.exec("echo on; exec sleep 100", yield_time_ms=250)
    assert f"Process running with session ID {running.process_id}\n" in running.text
    assert "exited" not in running.text
    assert running.structured()["session_id"] == running.process_id


async def test_an_empty_command_is_an_empty_script(agent: Agent) -> None:
    assert (await agent.exec("")).exit_code == 0


async def test_bytes_that_are_no_text_are_replaced_in_the_text_only(agent: Agent) -> None:
    answer = await agent.exec(r"printf 'a\377b'")
    assert answer.raw == b"a\xffb"
    assert answer.output == "a\ufffdb"
    assert answer.original_token_count == 1


async def test_output_is_fitted_for_a_model_and_whole_for_a_program(agent: Agent) -> None:
    answer = await agent.exec("seq 20000")
    assert len(answer.output) == 108894
    assert "Warning: truncated output (original token count: 27224)" in answer.text
    assert "tokens truncated…" in answer.text
    asked = await agent.exec("seq 20000", max_output_tokens=10)
    assert asked.output.endswith("tokens truncated…7\n19998\n19999\n20000\n")
    assert "Total output lines: 20000\n\n1\n2\n" in asked.output


async def test_the_answer_says_where_the_omitted_range_can_be_read(agent: Agent) -> None:
    answer = await agent.exec("seq 20000", max_output_tokens=10)
    found = re.search(r"session_id (\d+) and offset (\d+) reads on", answer.text)
    assert found
    number, offset = int(found[1]), int(found[2])
    whole = "".join(f"{n}\n" for n in range(1, 20001)).encode()
    part = agent.read(number, offset, 1000)
    assert part.data == whole[offset : offset + 1000]
    assert whole[:offset] == b"1\n2\n3\n4\n5\n6\n7\n8\n9\n10"
    assert part.total == len(whole) == answer.output_end


async def test_what_the_buffer_cannot_hold_is_counted_and_kept_on_disk(agent: Agent) -> None:
    answer = await agent.exec("head -c 3000004 /dev/zero | tr '\\0' x; printf end")
    assert answer.omitted_bytes == 1951431
    assert len(answer.raw) == 1048576
    assert answer.original_token_count == 750002
    assert "... 1951431 bytes omitted ..." in answer.text
    found = re.search(r"session_id (\d+)", answer.text)
    assert found
    number = int(found[1])
    assert agent.read(number, 1_500_000, 10).data == b"x" * 10
    assert agent.read(number, 3_000_000, 100).data == b"xxxxend"


async def test_a_pipe_session_reads_end_of_file_and_takes_no_text(agent: Agent) -> None:
    assert (await agent.exec("cat; echo eof")).output == "eof\n"
    open_one = await agent.exec("exec sleep 100", yield_time_ms=250)
    with pytest.raises(ToolFailed, match="stdin is closed for this session; rerun"):
        await agent.write(open_one.process_id, "text")
    ended = await agent.write(open_one.process_id, "\x03", yield_time_ms=30_000)
    assert ended.exit_code == 130


async def test_an_interrupt_in_a_terminal_tells_the_signal(agent: Agent) -> None:
    sleeper = await agent.exec("exec sleep 100", tty=True, yield_time_ms=250)
    ended = await agent.write(sleeper.process_id, keys=("ctrl-c",), yield_time_ms=30_000)
    assert ended.exit_code == 130
    assert "^C" in ended.output


async def test_keys_and_sizes_reach_a_terminal(agent: Agent) -> None:
    cat, _ = await agent.exec_until("stty size; exec cat -v", "24 80", tty=True)
    first = await agent.write(cat, "x", keys=("up", "enter"))
    ended = await agent.write(cat, keys=("ctrl-d",), yield_time_ms=30_000)
    assert "x^[[A" in first.output + ended.output
    assert ended.exit_code == 0
    shell = await agent.exec("bash --norc", tty=True, yield_time_ms=250)
    await agent.write(shell.process_id, resize=Size(rows=33, cols=99))
    assert "33 99" in await agent.write_until(shell.process_id, "stty size\n", "33 99")
    with pytest.raises(ToolFailed, match="unknown key `hyper`"):
        await agent.write(shell.process_id, keys=("hyper",))


def test_relative_directories_are_under_the_workspace(tmp_path: Path) -> None:
    async def scenario(agent: Agent) -> None:
        assert (await agent.exec("pwd", workdir="sub")).output == f"{tmp_path}/sub\n"
        assert (await agent.exec("pwd", workdir="")).output == f"{tmp_path}\n"
        assert (await agent.exec("pwd", workdir="/")).output == "/\n"
        with pytest.raises(ToolFailed) as caught:
            await agent.exec("pwd", workdir="none")
        assert str(caught.value) == (
            f"exec_command failed: cannot start in {tmp_path}/none: No such file or directory"
            " (os error 2)"
        )

    (tmp_path / "sub").mkdir()
    with_agent(scenario, cwd=str(tmp_path))


def test_children_get_a_calm_environment_without_secrets() -> None:
    async def scenario(agent: Agent) -> None:
        answer = await agent.exec("env")
        env = dict(line.split("=", 1) for line in answer.output.splitlines())
        assert env["TERM"] == "dumb"
        assert env["NO_COLOR"] == env["HANDRAIL_CI"] == env["CODEX_CI"] == "1"
        assert env["COLORTERM"] == ""
        assert env["LANG"] == env["LC_CTYPE"] == env["LC_ALL"] == "C.UTF-8"
        assert env["PAGER"] == env["GIT_PAGER"] == env["GH_PAGER"] == "cat"
        assert env["WORD"] == "lamp"
        assert "MY_API_KEY" not in env

    base = {"MY_API_KEY": "x", "WORD": "rug", "PATH": os.environ["PATH"], "TERM": "xterm"}
    with_agent(scenario, base_env=base, env={"WORD": "lamp"})


async def test_the_shell_is_chosen_by_kind(agent: Agent) -> None:
    assert (await agent.exec("true", login=None)).command[:2] == ("/bin/bash", "-lc")
    assert (await agent.exec("true", shell="/nowhere/sh")).command[0].endswith("/sh")
    assert (await agent.exec("true", shell="fish")).command[0] == "/bin/sh"
    async with agent_with(allow_login=False) as other:
        assert (await other.exec("true", login=None)).command[:2] == ("/bin/bash", "-c")
        with pytest.raises(ToolFailed, match="login shells are disabled"):
            await other.exec("true", login=True)


async def test_output_that_nobody_asked_for_waits(agent: Agent, tmp_path: Path) -> None:
    latch = Latch(tmp_path)
    number, seen = await agent.exec_until(f"echo a; read x <{latch}; echo b", "a\n")
    assert seen == "a\n"
    await latch.open(agent)
    late = await agent.write(number)
    assert late.output == "b\n"
    assert late.exit_code == 0
    assert (late.output_start, late.output_end) == (2, 4)


async def test_a_call_that_is_broken_off_loses_nothing(agent: Agent) -> None:
    call = asyncio.create_task(agent.exec("echo a; exec sleep 100", yield_time_ms=30_000))
    number = (await eventually_so(agent.tools.background))[0].process_id
    await eventually_so(lambda: agent.read(number).data)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    ended = await agent.write(number, "\x03", yield_time_ms=30_000)
    assert ended.output == "a\n"
    assert ended.exit_code == 130


async def test_what_a_child_leaves_behind_does_not_hold_the_answer(
    agent: Agent, tmp_path: Path
) -> None:
    latch = Latch(tmp_path)
    answer = await agent.exec(f"(read x <{latch}; echo late) & echo now", yield_time_ms=30_000)
    assert answer.output == "now\n"
    assert answer.exit_code == 0
    found = re.search(r"session_id (\d+) and offset 4 gives what that prints", answer.text)
    assert found
    await latch.open(agent)
    number = int(found[1])
    assert await eventually_so(lambda: agent.read(number, 4).data) == b"late\n"


async def test_an_ended_session_can_be_interrupted_and_read(agent: Agent, tmp_path: Path) -> None:
    latch = Latch(tmp_path)
    one = await agent.exec(f"read x <{latch}; echo bye; exit 7", yield_time_ms=250)
    number = one.process_id
    assert number is not None
    await latch.open(agent)
    assert (await agent.write(number)).exit_code == 7
    again = await agent.write(number, "\x03")
    assert again.exit_code == 7
    assert again.process_id is None
    assert agent.read(number).data == b"bye\n"
    with pytest.raises(UnknownProcess, match=f"id {number}: it ended with exit code 7"):
        await agent.write(number, "more")


async def test_what_an_ended_session_keeps_is_small(agent: Agent, tmp_path: Path) -> None:
    sessions: list[weakref.ref[object]] = []

    latch = Latch(tmp_path)
    answer = await agent.exec(f"read x <{latch}; seq 1000", yield_time_ms=250)
    number = answer.process_id
    assert number is not None
    process = agent.tools._table.get(number)
    assert process is not None
    sessions.append(weakref.ref(process.session))
    del process
    await latch.open(agent)
    assert (await agent.write(number)).exit_code == 0
    await eventually_so(lambda: gc.collect() >= 0 and sessions[0]() is None)
    assert agent.read(number).total == 3893


def test_ids_count_up_from_1000_when_asked() -> None:
    async def scenario(agent: Agent) -> None:
        first = await agent.exec("exec sleep 100", yield_time_ms=250)
        second = await agent.exec("exec sleep 100", yield_time_ms=250)
        assert (first.process_id, second.process_id) == (1000, 1001)
        await agent.tools.terminate(1001)
        assert (await agent.exec("exec sleep 100", yield_time_ms=250)).process_id == 1001

    with_agent(scenario, deterministic_ids=True)


def test_the_least_recently_used_makes_room_and_the_model_is_told() -> None:
    async def scenario(agent: Agent) -> None:
        answers = await asyncio.gather(
            *(agent.exec(f"exec sleep {100 + n}", yield_time_ms=250) for n in range(4))
        )
        numbers = [answer.process_id for answer in answers]
        assert not any("Note:" in answer.text for answer in answers[:2])
        assert "3 sessions are open and 4 may be" in answers[2].text
        fifth = await agent.exec("exec sleep 104", yield_time_ms=250)
        assert (
            f"Note: session {numbers[0]} (`exec sleep 100`) was ended to make room for this one"
            in fifth.text
        )
        assert [one.process_id for one in agent.tools.background()] == sorted(
            number for number in [*numbers[1:], fifth.process_id] if number is not None
        )
        with pytest.raises(UnknownProcess, match=f"id {numbers[0]}: it was ended to make room"):
            await agent.write(numbers[0])

    with_agent(scenario, max_processes=4, warn_at=3, protected=2)


async def test_of_66_sleepers_64_stay(agent: Agent) -> None:
    answers = []
    for _ in range(11):
        answers += await asyncio.gather(
            *(agent.exec("exec sleep 100", yield_time_ms=250) for _ in range(6))
        )
    numbers = [answer.process_id for answer in answers]
    alive = {one.process_id for one in agent.tools.background()}
    assert len(alive) == 64
    assert numbers[0] not in alive
    assert numbers[1] not in alive
    assert "60 sessions are open and 64 may be" in answers[59].text
    assert await agent.tools.clean() == 64
    assert agent.tools.background() == []


async def test_background_processes_can_be_listed_and_ended(agent: Agent) -> None:
    one = await agent.exec("exec  sleep 100", yield_time_ms=250)
    number = one.process_id
    assert number is not None
    assert agent.tools.background() == [Background(one.call_id, number, "exec  sleep 100", "/")]
    assert await agent.tools.terminate(number)
    assert not await agent.tools.terminate(number)
    assert not await agent.tools.terminate(3)
    assert agent.tools.background() == []


async def test_calls_on_one_session_take_turns(agent: Agent) -> None:
    one = await agent.exec("exec cat", tty=True, yield_time_ms=250)
    await agent.write_until(one.process_id, "warm\n", "warm\r\nwarm")
    first, second = await asyncio.gather(
        agent.write(one.process_id, "a\n"), agent.write(one.process_id, "b\n")
    )
    assert "a" in first.output
    assert "b" not in first.output
    assert "b" in second.output


async def test_a_question_about_a_process_does_not_use_up_its_waiting_time(
    agent: Agent, tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = f"read a; read b <{fifo}; echo $b"
    one = await agent.exec(script, tty=True, yield_time_ms=250)
    with agent.tools.asking(one.call_id):
        call = asyncio.create_task(agent.write(one.process_id, "go\n", yield_time_ms=250))
        # Longer than the waiting time; the call must still be there afterwards.
        await (await asyncio.create_subprocess_shell(f"sleep 0.5; echo word >{fifo}")).wait()
    answer = await call
    assert "word" in answer.output
    assert answer.exit_code == 0


MEMORY = """
import asyncio, sys
from handrail.executor.local import LocalExecutor
from handrail.unified_exec.manager import UnifiedExec
from handrail.unified_exec.settings import Settings
from handrail.unified_exec.tools import ExecCommandArgs

def peak():
    # Not ru_maxrss: over a fork that still counts what the parent had.
    with open("/proc/self/status") as file:
        return next(line.split()[1] for line in file if line.startswith("VmHWM"))

async def main():
    executor = LocalExecutor()
    tools = UnifiedExec(executor, settings=Settings(cwd="/"))
    answer = await tools.exec_command(
        ExecCommandArgs(cmd="head -c 1073741824 /dev/zero", login=False, yield_time_ms=30000)
    )
    done = answer.exit_code == 0 and answer.original_token_count == 1 << 28
    await tools.close()
    await executor.close()
    print(done or answer.process_id, peak())

asyncio.run(main())
"""


def test_a_gibibyte_costs_little_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, timeout=55, check=True
    )
    outcome, kibibytes = done.stdout.split()
    assert outcome == "True"
    assert int(kibibytes) < 150 * 1024
