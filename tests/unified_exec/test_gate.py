"""Who may say no: before a start, after an end, before a patch."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from handrail.errors import ApprovalRejected, HandrailError
from handrail.executor.local import LocalExecutor
from handrail.unified_exec.events import Begin, End, PatchBegin, PatchEnd
from handrail.unified_exec.gate import Ended, ExecCall, PatchRequest, Started
from handrail.unified_exec.tools import ToolFailed, UnknownProcess
from tests.unified_exec.agent import Agent, with_agent

PATCH = "apply_patch <<'E'\n*** Begin Patch\n*** Add File: {}\n+1\n*** End Patch\nE"


class Orchestrator:
    """A gate that notes what it is asked and does what it is told."""

    def __init__(self, *, refuse: HandrailError | None = None, retry: str | None = None) -> None:
        self.refuse = refuse
        self.retry = retry
        self.calls: list[ExecCall] = []
        self.ends: list[Ended] = []
        self.patches: list[PatchRequest] = []
        self.executor: LocalExecutor | None = None
        self.no_retry: HandrailError | None = None
        self.question: asyncio.Event | None = None
        self.asked = asyncio.Event()

    async def start(self, call: ExecCall) -> Started:
        self.calls.append(call)
        if self.refuse is not None:
            raise self.refuse
        self.executor = self.executor or LocalExecutor()
        return Started(await self.executor.spawn(call.spawn), ("it runs in a sandbox",))

    async def ended(self, call: ExecCall, ended: Ended) -> Started | None:
        self.ends.append(ended)
        if self.no_retry is not None:
            raise self.no_retry
        if self.question is not None:
            self.asked.set()
            await self.question.wait()
        if self.retry is None or call.attempt > 1 or not ended.exit.code:
            return None
        assert self.executor is not None
        argv = (*call.spawn.argv[:-1], self.retry)
        again = replace(call.spawn, process_id="again", argv=argv)
        return Started(await self.executor.spawn(again), ("it ran again without a sandbox",))

    async def patch_reader(self) -> None:
        return None

    async def patch(self, request: PatchRequest) -> None:
        self.patches.append(request)
        if self.refuse is not None:
            raise self.refuse

    async def close(self) -> None:
        if self.executor is not None:
            await self.executor.close()


def run(gate: Orchestrator, scenario, **settings) -> None:  # type: ignore[no-untyped-def]
    async def main(agent: Agent) -> None:
        try:
            await scenario(agent)
        finally:
            await agent.tools.close()
            await gate.close()

    with_agent(main, gate=gate, **settings)


def test_a_refusal_is_a_sentence_and_gives_the_id_back() -> None:
    gate = Orchestrator(refuse=ApprovalRejected("exec command rejected by user"))

    async def scenario(agent: Agent) -> None:
        for _ in range(2):
            with pytest.raises(ToolFailed) as caught:
                await agent.exec("echo hi")
            assert str(caught.value) == "exec_command failed: exec command rejected by user"
        assert [call.process_id for call in gate.calls] == [1000, 1000]
        assert agent.events == []

    run(gate, scenario, deterministic_ids=True)


def test_the_gate_sees_what_would_run_and_its_notes_reach_the_model() -> None:
    gate = Orchestrator()

    async def scenario(agent: Agent) -> None:
        answer = await agent.exec("echo hi")
        (call,) = gate.calls
        assert call.spawn.argv == ("/bin/bash", "-c", "echo hi")
        assert call.args.cmd == "echo hi"
        assert "\nNote: it runs in a sandbox\nOutput:\nhi\n" in answer.text
        assert answer.notes == ("it runs in a sandbox",)
        (end,) = gate.ends
        assert (end.exit.code, end.output) == (0, b"hi\n")

    run(gate, scenario)


def test_a_second_start_replaces_the_first_answer_and_both_are_told() -> None:
    gate = Orchestrator(retry="echo better")

    async def scenario(agent: Agent) -> None:
        answer = await agent.exec("echo denied; exit 1")
        assert (answer.output, answer.exit_code) == ("better\n", 0)
        assert answer.notes == ("it ran again without a sandbox",)
        assert [(one.call_id, one.attempt) for one in agent.told(Begin)] == [
            (answer.call_id, 1),
            (answer.call_id, 2),
        ]
        assert [(one.exit_code, one.output) for one in agent.told(End)] == [
            (1, b"denied\n"),
            (0, b"better\n"),
        ]
        assert [end.output for end in gate.ends] == [b"denied\n", b"better\n"]
        assert agent.tools.background() == []

    run(gate, scenario)


def test_a_second_start_can_go_on_as_a_session() -> None:
    gate = Orchestrator(retry="echo up; exec sleep 100")

    async def scenario(agent: Agent) -> None:
        answer = await agent.exec("exit 1", yield_time_ms=250)
        ended = await agent.write(answer.process_id, "\x03", yield_time_ms=30_000)
        assert ended.exit_code == 130

    run(gate, scenario)


def test_a_refused_second_start_is_the_answer_and_leaves_no_session() -> None:
    gate = Orchestrator()
    gate.no_retry = ApprovalRejected("no second time")

    async def scenario(agent: Agent) -> None:
        with pytest.raises(ApprovalRejected, match="no second time"):
            await agent.exec("sleep 0.3; exit 1")
        assert agent.tools.background() == []
        number = gate.calls[0].process_id
        with pytest.raises(UnknownProcess):
            await agent.write(number)

    run(gate, scenario)


def test_a_call_broken_off_while_the_user_is_asked_loses_nothing() -> None:
    gate = Orchestrator()
    gate.question = asyncio.Event()

    async def scenario(agent: Agent) -> None:
        call = asyncio.create_task(agent.exec("sleep 0.3; echo a; exit 1"))
        await gate.asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        answer = await agent.write(gate.calls[0].process_id)
        assert (answer.output, answer.exit_code) == ("a\n", 1)

    run(gate, scenario)


def test_notes_can_be_kept_out_of_the_text() -> None:
    gate = Orchestrator()

    async def scenario(agent: Agent) -> None:
        answer = await agent.exec("echo hi")
        assert "Note:" not in answer.text
        assert answer.structured()["notes"] == ["it runs in a sandbox"]

    run(gate, scenario, notes_in_text=False)


def test_a_patch_passes_the_gate_and_starts_nothing(tmp_path: Path) -> None:
    gate = Orchestrator()

    async def scenario(agent: Agent) -> None:
        answer = await agent.exec(PATCH.format("a/f"))
        assert answer.text == (
            "Wall time: 0.0000 seconds\nOutput:\nExit code: 0\nWall time: 0 seconds\nOutput:\n"
            "Success. Updated the following files:\nA a/f\n"
        )
        assert (tmp_path / "a" / "f").read_text() == "1\n"
        assert gate.calls == []
        assert [change.target for change in gate.patches[0].changes] == [f"{tmp_path}/a/f"]
        assert [type(one) for one in agent.events] == [PatchBegin, PatchEnd]
        with pytest.raises(ToolFailed, match=r"^apply_patch verification failed: "):
            await agent.exec("apply_patch <<'E'\nno patch\nE")
        (tmp_path / "d").mkdir()
        with pytest.raises(ToolFailed, match=r"^Exit code: 1\nWall time: 0 seconds\nOutput:\nFail"):
            await agent.exec(PATCH.format("d"))
        assert agent.told(PatchEnd)[-1].status == "failed"

    run(gate, scenario, cwd=str(tmp_path))


def test_a_patch_can_be_refused(tmp_path: Path) -> None:
    gate = Orchestrator(refuse=ApprovalRejected("patch rejected by user"))

    async def scenario(agent: Agent) -> None:
        with pytest.raises(ToolFailed, match=r"^patch rejected by user$"):
            await agent.exec(PATCH.format("f"))
        assert agent.told(PatchEnd)[0].status == "declined"

    run(gate, scenario, cwd=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_patch_deletes_files_and_no_folders(tmp_path: Path) -> None:
    async def scenario(agent: Agent) -> None:
        script = "apply_patch <<'E'\n*** Begin Patch\n*** Delete File: {}\n*** End Patch\nE"
        with pytest.raises(ToolFailed):
            await agent.exec(script.format("d"))
        assert (tmp_path / "d").is_dir()
        await agent.exec(script.format("f"))
        assert not (tmp_path / "f").exists()

    (tmp_path / "d").mkdir()
    (tmp_path / "f").write_text("x")
    run(Orchestrator(), scenario, cwd=str(tmp_path))
