"""An agent's commands in one shell session, under the same rules."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail import AgentShell, AsyncWorkspace
from handrail.orchestrator.approvals import Answer, Choice, Question
from handrail.policy.load import parse_rules
from handrail.unified_exec.tools import ToolFailed


@pytest.fixture
def work() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        yield Path(name).resolve()


class Yes:
    def __init__(self) -> None:
        self.questions: list[Question] = []

    async def ask(self, question: Question) -> Answer:
        self.questions.append(question)
        return Answer(Choice.APPROVE)


async def test_state_is_kept_between_calls(work: Path) -> None:
    async with AgentShell(work, policy="never", shell_session=True) as shell:
        first = await shell.exec_command("mkdir sub; cd sub; x=1; f() { echo f $x; }")
        assert first.exit_code == 0
        answer = await shell.exec_command("f; pwd; echo err >&2; (exit 3)")
        assert answer.exit_code == 3
        assert f"f 1\n{work}/sub\n" in answer.text
        assert "err\n" in answer.text
        answer = await shell.exec_command("pwd", workdir=str(work))
        assert answer.text.endswith(f"{work}\n")


async def test_without_the_option_nothing_is_kept(work: Path) -> None:
    async with AgentShell(work, policy="never") as shell:
        await shell.exec_command("x=1")
        assert (await shell.exec_command("echo x$x")).text.endswith("x\n")


async def test_the_session_is_sandboxed(work: Path) -> None:
    async with AgentShell(work, policy="never", shell_session=True) as shell:
        assert (await shell.exec_command("echo x >inside")).exit_code == 0
        assert (await shell.exec_command("echo x >/usr/outside")).exit_code != 0
        assert (await shell.exec_command("cat inside")).text.endswith("x\n")


async def test_a_command_with_more_permissions_has_a_process_of_its_own(work: Path) -> None:
    approver = Yes()
    async with AgentShell(work, approver=approver, shell_session=True) as shell:
        await shell.exec_command("x=1")
        answer = await shell.exec_command(
            "echo x$x", sandbox_permissions="require_escalated", justification="to see"
        )
        assert len(approver.questions) == 1
        assert answer.text.endswith("x\n")
        assert (await shell.exec_command("echo x$x")).text.endswith("x1\n")


async def test_rules_hold_in_the_session(work: Path) -> None:
    rules = parse_rules('prefix_rule(pattern=["touch"], decision="forbidden")', "rules")
    async with AgentShell(work, policy="never", rules=rules, shell_session=True) as shell:
        with pytest.raises(ToolFailed):
            await shell.exec_command("touch there")
        assert not (work / "there").exists()


async def test_a_running_command_is_waited_for_and_interrupted(work: Path) -> None:
    async with AgentShell(work, policy="never", shell_session=True) as shell:
        answer = await shell.exec_command("x=1; echo begun; sleep 100", yield_time_ms=250)
        assert answer.exit_code is None
        assert answer.process_id is not None
        with pytest.raises(ToolFailed, match="still runs in the shell session"):
            await shell.exec_command("echo two")
        ended = await shell.write_stdin(answer.process_id, "\x03", yield_time_ms=20_000)
        assert ended.exit_code == 130
        assert (await shell.exec_command("echo x$x")).text.endswith("x1\n")


async def test_a_shell_that_ended_is_replaced_with_a_note(work: Path) -> None:
    async with AgentShell(work, policy="never", shell_session=True) as shell:
        assert (await shell.exec_command("x=1; exit 4")).exit_code == 4
        answer = await shell.exec_command("echo x$x")
        assert "another was started" in answer.text
        assert answer.text.endswith("x\n")


async def test_closing_ends_what_runs(work: Path) -> None:
    async with AgentShell(work, policy="never", shell_session=True) as shell:
        answer = await shell.exec_command("sleep 1000", yield_time_ms=250)
        assert answer.process_id is not None
        assert await shell.terminate(answer.process_id)
        assert (await shell.exec_command("echo on")).text.endswith("on\n")
        await shell.exec_command("sleep 1000", yield_time_ms=250)


async def test_in_a_workspace_without_a_sandbox(work: Path) -> None:
    async with AgentShell(
        AsyncWorkspace(work, sandbox="off"), policy="never", shell_session=True
    ) as shell:
        await shell.exec_command("x=1")
        assert (await shell.call("exec_command", {"cmd": "echo x$x"})).text.endswith("x1\n")
