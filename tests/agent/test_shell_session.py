"""An agent's commands in one shell session, under the same rules."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from handrail import AgentShell, AsyncWorkspace
from handrail.executor.output.buffered_session import BufferedSession
from handrail.orchestrator.approvals import Answer, Choice, Question
from handrail.policy.load import parse_rules
from handrail.process.output.output_log import RETENTION_BYTES
from handrail.unified_exec.tools import ToolFailed
from tests.support.eventually import eventually_so

ASK_TOUCH = parse_rules('prefix_rule(pattern=["touch"], decision="prompt")', "rules")


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


async def test_two_first_calls_at_once_have_one_shell(work: Path) -> None:
    open_workspace = AsyncWorkspace(work, sandbox="off")  # in a sandbox every pid is the same
    async with AgentShell(open_workspace, policy="never", shell_session=True) as shell:
        calls = [shell.call("exec_command", {"cmd": "echo =$$="}) for _ in range(2)]
        answers = [answer.text for answer in await asyncio.gather(*calls)]
        answers.append((await shell.exec_command("echo =$$=")).text)
        pids = {text.split("=")[1] for text in answers if "still runs" not in text}
        assert len(pids) == 1


async def test_a_command_runs_where_it_was_decided_about(work: Path) -> None:
    class Moves(Yes):
        async def ask(self, question: Question) -> Answer:
            await shell.exec_command("cd sub")
            return await super().ask(question)

    approver = Moves()
    (work / "sub").mkdir()
    async with AgentShell(work, approver=approver, rules=ASK_TOUCH, shell_session=True) as shell:
        await shell.exec_command("true")
        assert (await shell.exec_command("touch here")).exit_code == 0
        assert [question.cwd for question in approver.questions] == [str(work)]
        assert (work / "here").exists()


async def test_a_forged_directory_is_the_one_it_runs_in(work: Path) -> None:
    approver = Yes()
    (work / "a").mkdir()
    (work / "b").mkdir()
    async with AgentShell(work, approver=approver, rules=ASK_TOUCH, shell_session=True) as shell:
        await shell.exec_command(f"cd a; PWD={work}/b")
        assert (await shell.exec_command("touch here")).exit_code == 0
        assert [question.cwd for question in approver.questions] == [f"{work}/b"]
        assert (work / "b/here").exists()


async def test_the_status_and_a_removed_directory_are_kept(work: Path) -> None:
    async with AgentShell(work, policy="never", shell_session=True) as shell:
        await shell.exec_command("mkdir gone; cd gone; rmdir ../gone; (exit 7)")
        assert (await shell.exec_command("echo $? on")).text.endswith("\n7 on\n")
        assert (await shell.exec_command("pwd", workdir=f"{work}/none")).exit_code == 1


async def test_a_newly_forbidden_program_is_not_run_by_the_old_shell(work: Path) -> None:
    rules = parse_rules('prefix_rule(pattern=["touch"], decision="forbidden")', "rules")
    async with AgentShell(work, policy="never", shell_session=True) as shell:
        await shell.exec_command("x=1")
        settings = shell.orchestrator.settings
        shell.orchestrator.settings = replace(settings, policy=rules)
        assert (await shell.exec_command("echo x$x")).text.endswith("\nx\n")
        shell.orchestrator.settings = settings
        assert (await shell.exec_command("echo x$x")).text.endswith("\nx1\n")


async def test_what_background_jobs_wrote_is_in_the_next_answer(work: Path) -> None:
    async with AgentShell(work, policy="never", shell_session=True) as shell:
        job = "(until [ -e go ]; do sleep 0.05; done; echo late; echo x >written) &"
        assert (await shell.exec_command(job)).exit_code == 0
        (work / "go").touch()
        await eventually_so((work / "written").exists)
        assert (await shell.exec_command("echo on")).text.endswith("late\non\n")


async def test_secrets_are_masked_after_the_end_marks_are_read(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    keep = BufferedSession.keep_output

    def noted(session: BufferedSession, limit: int) -> None:
        kept.append(limit)
        keep(session, limit)

    monkeypatch.setattr(BufferedSession, "keep_output", noted)
    approver = Yes()
    (work / "sub").mkdir()
    workspace = AsyncWorkspace(work, secrets={"TOK": work.name})
    async with AgentShell(
        workspace, approver=approver, rules=ASK_TOUCH, shell_session=True
    ) as shell:
        answer = await shell.exec_command(f"cd sub; echo $TOK; printf {work.name[:5]}")
        assert answer.text.endswith(f"\n[secret TOK]\n{work.name[:5]}")
        assert RETENTION_BYTES in kept
        await shell.exec_command("touch here")
        assert [question.cwd for question in approver.questions] == [f"{work}/sub"]
