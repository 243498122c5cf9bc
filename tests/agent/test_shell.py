"""The front door of an agent, with real processes in a real sandbox."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from handrail import AsyncWorkspace, Profile, QueueApprover, Workspace
from handrail.agent.shell import AgentShell
from handrail.agent.target import from_profile
from handrail.errors import ApprovalRejected, ExecutorSpawnFailed, UsageError
from handrail.executor.base import SpawnRequest
from handrail.executor.local import LocalExecutor
from handrail.orchestrator.approvals import Answer, Choice, Kind, Question
from handrail.orchestrator.audit import Notice
from handrail.orchestrator.call_flow import SIDE_EFFECTS, TurnAborted
from handrail.orchestrator.result import CommandTimedOut
from handrail.orchestrator.settings import Mode, SandboxMode, Settings
from handrail.policy.context import Approval
from handrail.policy.load import load_files, parse_rules
from handrail.unified_exec.events import Begin, End, Event
from handrail.unified_exec.tools import ToolFailed
from tests.orchestrator.scripted import Trail

ADD = "*** Begin Patch\n*** Add File: {}\n+hi\n*** End Patch\n"


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory outside /tmp, which workspaces may write to."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        yield Path(os.path.realpath(name))


@pytest.fixture
def work(base: Path) -> Path:
    folder = base / "work"
    folder.mkdir()
    return folder


class Scribe:
    def __init__(self, *answers: Answer | Choice) -> None:
        self.questions: list[Question] = []
        self._answers = list(answers)

    async def ask(self, question: Question) -> Answer:
        self.questions.append(question)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return Answer(answer) if isinstance(answer, Choice) else answer


def played(main: Any) -> Any:
    return asyncio.run(asyncio.wait_for(main, 50))


def test_a_workspace_opens_the_door(work: Path) -> None:
    async def main() -> None:
        for where in (str(work), work, Workspace(work), AsyncWorkspace(work)):
            async with AgentShell(where) as shell:
                answer = await shell.exec_command("pwd; touch made")
                assert answer.exit_code == 0, answer.text
                assert answer.output == f"{work}\n"

    played(main())
    assert (work / "made").exists()


def test_an_executor_and_a_directory_do_too(work: Path) -> None:
    async def main() -> None:
        executor = LocalExecutor()
        try:
            with pytest.raises(UsageError, match="cwd"):
                async with AgentShell(executor):
                    pass
            async with AgentShell(executor, cwd=str(work)) as shell:
                assert (await shell.exec_command("pwd")).output == f"{work}\n"
        finally:
            await executor.close()

    played(main())


def test_a_closed_shell_says_so(work: Path) -> None:
    shell = AgentShell(str(work))
    with pytest.raises(UsageError, match="async with"):
        played(shell.exec_command("true"))


def test_commands_stay_in_the_workspace(base: Path, work: Path) -> None:
    async def main() -> None:
        async with AgentShell(str(work)) as shell:
            answer = await shell.exec_command(f"touch {base}/out; touch in")
            assert answer.exit_code == 0
            refused = await shell.exec_command(f"touch {base}/out")
            assert refused.exit_code == 1
            assert "Read-only file system" in refused.output
            env = await shell.exec_command("echo $HANDRAIL_SANDBOX_NETWORK_DISABLED")
            assert env.output == "1\n"

    played(main())
    assert not (base / "out").exists()
    assert (work / "in").exists()


def test_run_gives_the_whole_output_under_the_same_rules(base: Path, work: Path) -> None:
    async def main() -> None:
        async with AgentShell(str(work)) as shell:
            done = await shell.run("cat; echo err >&2; exit 3", stdin=b"given")
            assert (done.exit_code, done.stdout, done.stderr) == (3, b"given", b"err\n")
            refused = await shell.run(f"touch {base}/out")
            assert b"Read-only file system" in refused.stderr
            with pytest.raises(CommandTimedOut) as late:
                await shell.run("echo begun; exec sleep 1000", timeout=0.5)
            assert late.value.output.stdout == b"begun\n"
            late_too = await shell.run("exec sleep 1000", timeout=0.5, check=False)
            assert (late_too.exit_code, late_too.timed_out) == (124, True)
            with pytest.raises(UsageError, match="no terminal"):
                await shell.run("true", tty=True)
            assert (await shell.run("cat", stdin="text")).stdout == b"text"

    played(main())
    assert not (base / "out").exists()


def test_mistaken_arguments_of_a_method_are_named(work: Path) -> None:
    async def main() -> None:
        async with AgentShell(str(work)) as shell:
            mistakes: list[tuple[Any, dict[str, Any], str]] = [
                (shell.exec_command, {"workdr": "/"}, "did you mean 'workdir'"),
                (shell.exec_command, {"timeout": 3}, "no option 'timeout'"),
                (shell.run, {"cwd": "/"}, "no option 'cwd'"),
                (shell.run, {"timeout": -1}, "timeout"),
                (shell.run, {"stdin": 5}, "str or bytes"),
                (shell.run, {"on_output": 5}, "on_output"),
            ]
            for method, given, named in mistakes:
                with pytest.raises(UsageError, match=named):
                    await method("touch made", **given)
            with pytest.raises(UsageError, match="no option 'timeout'"):
                await shell.write_stdin(1000, timeout=3)
            # A model's are ignored, as its other tools do.
            assert (await shell.call("exec_command", {"cmd": "true", "timeout": 3})).ok

    played(main())
    assert not (work / "made").exists()


@pytest.mark.parametrize("watch", [False, True])
def test_a_silent_denial_is_noticed_when_it_is_watched(base: Path, work: Path, watch: bool) -> None:
    """The output says nothing, so only the sandbox itself knows."""
    scribe = Scribe(Choice.APPROVE)

    async def main() -> None:
        where = AsyncWorkspace(work)
        shell = AgentShell(where, approver=scribe, policy="on-failure", watch_denials=watch)
        async with shell:
            silent = f"mkdir {base}/out 2>&- || exit 3"
            answer = await shell.exec_command(silent)
            assert answer.exit_code == (0 if watch else 3), answer.text
            (base / "out").rmdir() if watch else None
            done = await shell.run(silent)
            assert done.exit_code == (0 if watch else 3)

    played(main())
    kinds = [question.kind for question in scribe.questions]
    assert kinds == ([Kind.RETRY] * 2 if watch else [])
    assert (base / "out").exists() is watch


def test_a_machine_that_cannot_watch_runs_it_all_the_same(work: Path) -> None:
    class Blind(LocalExecutor):
        asked = 0

        async def spawn(self, request: SpawnRequest) -> Any:
            if request.watch_denials:
                self.asked += 1
                raise ExecutorSpawnFailed("calls cannot be announced here")
            return await super().spawn(request)

    async def main() -> None:
        executor = Blind()
        try:
            shell = AgentShell(executor, cwd=str(work), policy="on-failure", watch_denials=True)
            async with shell:
                for _ in range(2):
                    assert (await shell.exec_command("echo hi")).output == "hi\n"
            assert executor.asked == 1
        finally:
            await executor.close()

    played(main())


def test_run_asks_as_a_tool_call_does(base: Path, work: Path) -> None:
    class No:
        async def ask(self, question: Question) -> Answer:
            return Answer(Choice.DENY)

    async def main() -> None:
        async with AgentShell(str(work), approver=No(), policy="untrusted") as shell:
            with pytest.raises(ApprovalRejected):
                await shell.run("touch in")
            told = await shell.run("touch in", check=False)
            assert told.exit_code == -1
            assert told.stderr

    played(main())
    assert not (work / "in").exists()


def test_a_question_holds_up_its_own_call_and_no_other(work: Path) -> None:
    class Slow:
        def __init__(self) -> None:
            self.asked = asyncio.Event()
            self.answered = asyncio.Event()

        async def ask(self, question: Question) -> Answer:
            self.asked.set()
            await self.answered.wait()
            return Answer(Choice.APPROVE)

    async def main() -> None:
        slow = Slow()
        rules = parse_rules('prefix_rule([["sleep", "true"]], decision="allow")', "rules")
        guarded = AgentShell(str(work), approver=slow, policy="untrusted", rules=rules)
        async with guarded as shell:
            asking = asyncio.create_task(shell.exec_command("touch asked"))
            await slow.asked.wait()
            done = await shell.exec_command("true")
            assert done.exit_code == 0
            running = await shell.exec_command("sleep 1000", yield_time_ms=250)
            assert running.exit_code is None
            assert not asking.done()
            slow.answered.set()
            assert (await asking).exit_code == 0
            await shell.clean()

    played(main())


@pytest.mark.parametrize("slow", [False, True])
def test_a_denial_is_asked_about_however_long_it_took(base: Path, work: Path, slow: bool) -> None:
    """The peer asks only if the refusal comes within 150 ms."""
    scribe = Scribe(Choice.GRANT_AND_RERUN)
    events: list[Event] = []
    trail = Trail()

    async def main() -> None:
        async with AgentShell(
            str(work), approver=scribe, policy="on-failure", on_event=events.append, on_audit=trail
        ) as shell:
            pause = "sleep 0.4; " if slow else ""
            answer = await shell.exec_command(f"{pause}touch {base}/out && echo made")
            assert answer.output == "made\n", answer.text
            assert answer.exit_code == 0
            assert "run again in the sandbox" in answer.notes[0]
            elsewhere = await shell.call("exec_command", {"cmd": "touch /usr/lib/handrail-x"})
            assert not elsewhere.ok or elsewhere.answer is not None

    scribe._answers = [Choice.GRANT_AND_RERUN, Choice.DENY]
    played(main())
    first = scribe.questions[0]
    assert first.kind is Kind.RETRY
    assert first.grant == str(base)
    assert first.notes == (SIDE_EFFECTS,)
    assert (base / "out").exists()
    begins = [event.attempt for event in events if isinstance(event, Begin)]
    ends = [event.attempt for event in events if isinstance(event, End)]
    assert begins[:2] == [1, 2]
    assert sorted(ends) == sorted(begins)
    assert any(isinstance(event, Notice) for event in trail.events)


def test_a_late_denial_is_named_with_the_way_out(base: Path, work: Path) -> None:
    async def main() -> None:
        scribe = Scribe(Choice.APPROVE)
        async with AgentShell(str(work), approver=scribe, policy="on-failure") as shell:
            started = await shell.exec_command(
                f"read x; touch {base}/out", tty=True, yield_time_ms=250
            )
            assert started.process_id is not None
            answer = await shell.write_stdin(started.process_id, "\n", yield_time_ms=30_000)
            assert answer.exit_code == 1
            assert "require_escalated" in answer.notes[-1]
            assert f"\nNote: probably refused by the sandbox: writing {base}/out" in answer.text
            assert scribe.questions == []

    played(main())


def test_sockets_that_come_and_go_harm_no_command(base: Path, work: Path) -> None:
    """Each is covered by name in a sandbox; one that vanishes meanwhile must not look like the
    command's own failure.
    """
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            folder = tempfile.mkdtemp(dir=base)
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(f"{folder}/s")
                server.listen()
                over.wait(0.1)
            shutil.rmtree(folder)

    async def main() -> None:
        async with AgentShell(str(work)) as shell:
            for _ in range(15):
                answer = await shell.exec_command("true")
                assert answer.exit_code == 0, answer.text

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        played(main())
    finally:
        over.set()
        thread.join()


def test_a_declined_retry_shows_the_model_what_happened(base: Path, work: Path) -> None:
    async def main() -> None:
        scribe = Scribe(Answer(Choice.DENY, "not there"))
        async with AgentShell(str(work), approver=scribe, policy="on-failure") as shell:
            with pytest.raises(ToolFailed) as caught:
                await shell.exec_command(f"echo before; touch {base}/out")
            text = str(caught.value)
            assert text.startswith("exec command rejected by user: not there")
            assert "before\n" in text
            assert "exited with code 1" in text
            assert caught.value.output.startswith(b"before\n")

    played(main())


def test_a_declined_retry_keeps_to_the_budget(base: Path, work: Path) -> None:
    async def main() -> None:
        async with AgentShell(
            str(work), policy="on-failure", approver=Scribe(Choice.DENY)
        ) as shell:
            cmd = f"seq 1 20000; touch {base}/out"
            with pytest.raises(ToolFailed) as caught:
                await shell.exec_command(cmd, max_output_tokens=100)
            assert len(str(caught.value)) < 1000
            assert "Warning: truncated output" in str(caught.value)
            assert "Process exited with code 1" in str(caught.value)
            assert caught.value.output.startswith(b"1\n2\n")
            assert len(caught.value.output) > 100_000
            by_default = await shell.call("exec_command", {"cmd": cmd})
            assert len(by_default.text) < 50_000

    played(main())


def test_abort_is_for_the_program(work: Path) -> None:
    async def main() -> None:
        scribe = Scribe(Choice.ABORT)
        async with AgentShell(str(work), approver=scribe, policy="untrusted") as shell:
            with pytest.raises(TurnAborted):
                await shell.exec_command("true")
            with pytest.raises(TurnAborted):
                await shell.apply_patch(ADD.format("a"))
            answer = await shell.call("exec_command", {"cmd": "true"})
            assert answer.aborted

    played(main())


def test_patches_are_written_in_the_sandbox(base: Path, work: Path) -> None:
    async def main() -> None:
        scribe = Scribe(Choice.DENY)
        async with AgentShell(str(work), approver=scribe) as shell:
            answer = await shell.apply_patch(ADD.format("sub/a"))
            assert "A sub/a" in answer.text
            script = "apply_patch <<'P'\n" + ADD.format("b") + "P"
            assert "A b" in (await shell.exec_command(script)).text
            (work / "way").symlink_to(base)
            with pytest.raises(ToolFailed):
                # Inside by its name, outside by its link: the sandbox stops it, nobody allows it.
                await shell.apply_patch(ADD.format("way/x"))
            with pytest.raises(ToolFailed, match="patch rejected by user"):
                await shell.apply_patch(ADD.format("../out"))
            with pytest.raises(ToolFailed, match="empty patch"):
                await shell.apply_patch("*** Begin Patch\n*** End Patch\n")
            kinds = [question.kind for question in scribe.questions]
            assert kinds == [Kind.RETRY, Kind.PATCH]

    played(main())
    assert (work / "sub" / "a").read_text() == "hi\n"
    assert (work / "b").exists()
    assert sorted(os.listdir(base)) == ["work"]


def test_an_approved_patch_outside_is_written(base: Path, work: Path) -> None:
    async def main() -> None:
        async with AgentShell(str(work), approver=Scribe(Choice.APPROVE)) as shell:
            await shell.apply_patch(ADD.format("../out"))

    played(main())
    assert (base / "out").read_text() == "hi\n"


def test_a_tool_call_always_has_a_text(work: Path) -> None:
    async def main() -> None:
        async with AgentShell(str(work)) as shell:
            for name, arguments in (
                ("exec_command", {}),
                ("exec_command", {"cmd": "true", "justification": "why"}),
                ("exec_command", {"cmd": "true", "workdir": "none"}),
                ("write_stdin", {"session_id": 1}),
                ("read_output", {"session_id": 1}),
                ("apply_patch", {}),
                ("nothing", {}),
            ):
                answer = await shell.call(name, arguments)
                assert not answer.ok
                assert answer.text
            assert answer.text.startswith("there is no tool 'nothing'; there are exec_command, ")
            ran = await shell.call("exec_command", {"cmd": "echo hi"})
            assert ran.ok
            assert ran.text.endswith("Output:\nhi\n")

    played(main())


HALF = "\ud83d"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("exec_command", None),
        ("exec_command", [1]),
        ("apply_patch", "x"),
        ("write_stdin", None),
        ("exec_command", {"cmd": f"echo {HALF}"}),
        ("exec_command", {"cmd": "true", "workdir": HALF}),
        ("exec_command", {"cmd": "true", "prefix_rule": ["touch", HALF]}),
        ("exec_command", {"cmd": "true", HALF: 1}),
        ("exec_command", {"cmd": "true\0"}),
        ("exec_command", {"cmd": "true", "workdir": "a\0b"}),
        ("apply_patch", {"patch": ADD.format(HALF)}),
        ("apply_patch", {"patch": ADD.format("a\0b")}),
        ("apply_patch", {"patch": ADD.format("new"), "workdir": HALF}),
        ("apply_patch", {"patch": ADD.format("new"), "workdir": "a\0b"}),
        ("apply_patch", {"patch": ADD.format("new"), "workdir": 5}),
        (HALF, {}),
        ("exec_command", '{"cmd": "touch x", "more": ' + "[" * 500 + "]" * 500 + "}"),
        ("write_stdin", {"session_id": "9" * 5000}),
        ("read_output", {"session_id": "9" * 5000}),
    ],
)
def test_odd_arguments_are_answered_with_a_text(work: Path, name: str, arguments: Any) -> None:
    async def main() -> None:
        async with AgentShell(str(work), approver=Scribe(Choice.APPROVE)) as shell:
            answer = await shell.call(name, arguments)
            assert not answer.ok
            assert answer.text.encode()

    played(main())
    assert not list(work.iterdir())


def test_a_listener_that_fails_harms_nothing(work: Path) -> None:
    def fails(event: object) -> None:
        raise RuntimeError("full")

    async def main() -> None:
        async with AgentShell(str(work), on_event=fails, on_audit=fails) as shell:
            ran = await shell.call("exec_command", {"cmd": "echo hi"})
            assert ran.text.endswith("Output:\nhi\n")
            left = await shell.exec_command("sleep 100", yield_time_ms=250)
            assert [found.process_id for found in shell.background()] == [left.process_id]
            assert (await shell.call("apply_patch", {"patch": ADD.format("made")})).ok

    played(main())
    assert (work / "made").exists()


def test_the_rules_are_not_the_agents_to_write(work: Path) -> None:
    loaded, target = work / "a.rules", work / "more.rules"
    loaded.write_text('prefix_rule(pattern=["ls"], decision="allow")\n')
    target.write_text("")
    before = loaded.read_text()

    async def main() -> None:
        scribe = Scribe(Choice.DENY)
        async with AgentShell(
            str(work), approver=scribe, rules=load_files([str(loaded)]), rules_file=str(target)
        ) as shell:
            for path in (loaded, target):
                ran = await shell.exec_command(f"echo more >> {path}")
                assert ran.exit_code == 1, path
            assert (await shell.exec_command(f"mv {loaded} gone")).exit_code == 1
            assert not scribe.questions
            for path in (loaded, target):
                asked = len(scribe.questions)
                patch = f"*** Begin Patch\n*** Add File: {path}\n+hi\n*** End Patch\n"
                assert not (await shell.call("apply_patch", {"patch": patch})).ok
                assert len(scribe.questions) == asked + 1
            assert (await shell.exec_command("echo hi > other")).exit_code == 0

    played(main())
    assert loaded.read_text() == before
    assert target.read_text() == ""


def test_rules_behind_a_link_that_could_be_replaced_let_no_command_run(work: Path) -> None:
    (work / "link.rules").symlink_to(work / "more.rules")

    async def main() -> None:
        async with AgentShell(str(work), rules_file=str(work / "link.rules")) as shell:
            with pytest.raises(ToolFailed, match="give its real path"):
                await shell.exec_command("true")

    played(main())


def test_rules_that_are_not_there_yet_are_not_the_agents_to_make(work: Path) -> None:
    async def main() -> None:
        async with AgentShell(str(work), rules_file=str(work / "new.rules")) as shell:
            await shell.exec_command("echo more > new.rules")

    played(main())
    found = work / "new.rules"
    assert not found.exists() or found.read_text() == ""


def test_sessions_live_on_and_are_ended(work: Path) -> None:
    async def main() -> int:
        async with AgentShell(str(work)) as shell:
            started = await shell.exec_command("cat", tty=True, yield_time_ms=250)
            assert started.process_id is not None
            echoed = await shell.write_stdin(started.process_id, "hi\n", yield_time_ms=250)
            said = echoed.output
            while said.count("hi") < 2:
                said += (await shell.write_stdin(started.process_id, yield_time_ms=5000)).output
            found = shell.read_output(started.process_id, 0, 2)
            assert found.data == b"hi"
            assert [one.process_id for one in shell.background()] == [started.process_id]
            assert await shell.terminate(started.process_id)
            assert not await shell.terminate(started.process_id)
            assert await shell.clean() == 0
            return started.process_id

    played(main())


def test_a_yes_after_the_end_of_the_shell_starts_nothing(work: Path) -> None:
    async def main() -> None:
        executor, queue = LocalExecutor(), QueueApprover()
        shell = AgentShell(
            executor, cwd=str(work), approver=queue, policy="untrusted", sandbox="off"
        )
        async with shell:
            call = asyncio.create_task(shell.call("exec_command", {"cmd": "touch made"}))
            question = await queue.next()
        question.answer(True)
        answer = await call
        assert not answer.ok
        assert "closed" in answer.text
        await executor.close()

    played(main())
    assert not (work / "made").exists()


def test_whole_settings_can_be_given(work: Path) -> None:
    async def main() -> None:
        settings = Settings(str(work), Approval.NEVER, sandbox=SandboxMode(Mode.READ_ONLY))
        async with AgentShell(str(work), policy=settings) as shell:
            answer = await shell.exec_command("touch x")
            assert answer.exit_code == 1
            assert "rejected" not in answer.text
            assert not (await shell.call("exec_command", {"cmd": "rm -rf x"})).ok

    played(main())


def test_hidden_files_stay_hidden_even_when_escalated(work: Path) -> None:
    (work / "secret").write_text("s3cret")

    async def main() -> None:
        mode = SandboxMode(deny_read=(str(work / "secret"),))
        async with AgentShell(str(work), approver=Scribe(Choice.APPROVE), sandbox=mode) as shell:
            answer = await shell.exec_command(
                "cat secret", sandbox_permissions="require_escalated", justification="let me"
            )
            assert "s3cret" not in answer.output

    played(main())


def test_a_patch_is_no_way_to_guess_hidden_files(work: Path) -> None:
    (work / "secret").write_text("s3cret\n")
    (work / "alias").symlink_to("secret")
    update = "*** Begin Patch\n*** Update File: {}\n@@\n-{}\n+x\n*** End Patch\n"

    async def main() -> None:
        mode = SandboxMode(deny_read=(str(work / "secret"), "**/*.env"))
        async with AgentShell(str(work), approver=Scribe(Choice.APPROVE), sandbox=mode) as shell:
            for name in ("secret", "alias"):
                said = set()
                for guess in ("s3cret", "wrong"):
                    answer = await shell.call("apply_patch", {"patch": update.format(name, guess)})
                    assert not answer.ok
                    said.add(answer.text)
                assert len(said) == 1

    played(main())
    assert (work / "secret").read_text() == "s3cret\n"


@pytest.mark.parametrize(
    ("profile", "mode"),
    [
        (None, SandboxMode(Mode.OFF)),
        (Profile(), SandboxMode()),
        (
            Profile(write=("build", "../data"), read=("/usr", "."), deny=("x", "**/*.env")),
            SandboxMode(
                writable_roots=("/w/build", "/data"),
                deny_read=("/w/x", "**/*.env"),
                workspace=False,
                readable_roots=("/usr", "/w"),
            ),
        ),
        (
            Profile(write=(), temporary=False),
            SandboxMode(
                Mode.READ_ONLY, exclude_tmpdir=True, exclude_slash_tmp=True, workspace=False
            ),
        ),
        (
            Profile(write=(".", "/data"), deny=("x",), network=True),
            SandboxMode(writable_roots=("/data",), network_access=True, deny_read=("/w/x",)),
        ),
    ],
)
def test_a_workspaces_sandbox_is_kept(profile: Profile | None, mode: SandboxMode) -> None:
    assert from_profile(profile, "/w") == mode


def test_a_profile_belongs_to_the_workspace_wherever_commands_start() -> None:
    mode = from_profile(Profile(deny=("**/*.env", "x")), "/w[1]", "/w[1]/sub")
    assert (mode.writable_roots, mode.workspace) == (("/w[1]",), False)
    assert mode.deny_read == ("/w[[]1]/**/*.env", "/w[1]/x")
