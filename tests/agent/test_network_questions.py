"""Hosts that an agent's commands want to reach: asked about, told behind the output."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail import AgentShell, Answer, AsyncWorkspace, Choice, Managed, Question
from handrail.orchestrator.call_flow import TurnAborted
from tests.network.origin import fetch, origin
from tests.support.eventually import eventually_so

ASKED = Managed(allow_local_binding=True, deny=["bad.example"])


@pytest.fixture
def port() -> Iterator[int]:
    with origin() as port:
        yield port


class Scribe:
    """Answers questions, when it is let."""

    def __init__(self, *answers: Choice | Answer) -> None:
        self.questions: list[Question] = []
        self.let = asyncio.Event()
        self.let.set()
        self._answers = list(answers)
        self.open = 0

    async def ask(self, question: Question) -> Answer:
        self.questions.append(question)
        self.open += 1
        try:
            await self.let.wait()
        finally:
            self.open -= 1
        answer = self._answers.pop(0)
        return Answer(answer) if isinstance(answer, Choice) else answer


def command(*urls: str, after: str = "echo end") -> str:
    return f"echo begin; {shlex.join(fetch(*urls))}; {after}"


async def test_one_question_for_a_call_and_a_sentence_behind_its_output(
    ws: Path, port: int
) -> None:
    scribe = Scribe(Choice.APPROVE, Answer(Choice.DENY, "use the mirror"))
    url = f"http://127.0.0.1:{port}/"
    async with AgentShell(AsyncWorkspace(ws, network=ASKED), approver=scribe, rules=[]) as shell:
        good = await shell.exec_command(command(url, url))
        assert good.text.endswith("Output:\nbegin\nORIGIN\nORIGIN\nend\n")
        bad = await shell.exec_command(command(url, url))
        assert bad.text.endswith(
            "begin\n403\n403\nend\n\n"
            f'Network access to "127.0.0.1:{port}" was blocked: not approved: use the mirror.'
        )
        assert bad.exit_code == 0
    assert [question.host for question in scribe.questions] == [("http", "127.0.0.1", port)] * 2


async def test_a_question_holds_up_no_other_call(ws: Path, port: int) -> None:
    """It holds up its own call and no other."""
    scribe = Scribe(Choice.APPROVE_FOR_SESSION)
    scribe.let.clear()
    url = f"http://127.0.0.1:{port}/"
    async with AgentShell(AsyncWorkspace(ws, network=ASKED), approver=scribe, rules=[]) as shell:
        call = asyncio.ensure_future(shell.exec_command(command(url), yield_time_ms=30_000))
        await eventually_so(lambda: scribe.questions)
        beside = await shell.exec_command("echo beside")
        assert beside.output == "beside\n"
        assert not call.done()
        scribe.let.set()
        assert "ORIGIN" in (await call).text
        assert "ORIGIN" in (await shell.exec_command(command(url))).text
    assert len(scribe.questions) == 1


async def test_a_refused_host_leads_to_no_run_outside(ws: Path) -> None:
    scribe = Scribe()
    async with AgentShell(
        AsyncWorkspace(ws, network=ASKED), approver=scribe, policy="on-failure", rules=[]
    ) as shell:
        said = "echo 'denied by the sandbox: Operation not permitted'; exit 1"
        answer = await shell.exec_command(command("http://bad.example/", after=said))
    assert answer.exit_code == 1
    assert "explicitly denied by policy" in answer.text.splitlines()[-1]
    assert scribe.questions == []


async def test_under_never_nothing_is_asked(ws: Path, port: int) -> None:
    scribe = Scribe()
    async with AgentShell(ws, network=ASKED, approver=scribe, policy="never", rules=[]) as shell:
        output = await shell.run(command(f"http://127.0.0.1:{port}/"), timeout=60)
    assert b"403" in output.stdout
    assert output.notes[0].endswith("not on the allowlist for the current sandbox mode.")
    assert scribe.questions == []


async def test_abort_stops_the_turn(ws: Path) -> None:
    scribe = Scribe(Choice.ABORT, Choice.ABORT)
    words = command("http://no.example/", after="exec sleep 600")
    async with AgentShell(ws, network=Managed(), approver=scribe, rules=[]) as shell:
        answer = await shell.call("exec_command", {"cmd": words})
        assert answer.aborted
        with pytest.raises(TurnAborted):
            await shell.run(words, timeout=60)


async def test_always_holds_for_the_next_shell(ws: Path, tmp_path: Path, port: int) -> None:
    file, url = str(tmp_path / "my.rules"), f"http://127.0.0.1:{port}/"
    scribe = Scribe(Choice.HOST_RULE)
    for rules in ([], [file]):
        async with AgentShell(
            AsyncWorkspace(ws, network=ASKED),
            approver=scribe,
            rules=rules,
            rules_file=file,
        ) as shell:
            answer = await shell.exec_command(command(url))
            assert "ORIGIN" in answer.text
            saved = "Allowed network rule saved in execpolicy (allowlist): 127.0.0.1"
            assert (saved in answer.text) is not bool(rules)
    assert len(scribe.questions) == 1


async def test_the_network_cannot_be_asked_for_as_a_whole(ws: Path) -> None:
    from dataclasses import replace

    async with AgentShell(ws, network=Managed(), approver=Scribe(), rules=[]) as shell:
        house = shell.orchestrator
        house.settings = replace(house.settings, additional_permissions=True)
        wanted = {
            "cmd": "true",
            "sandbox_permissions": "with_additional_permissions",
            "justification": "x",
            "additional_permissions": {"network": {"enabled": True}},
        }
        answer = await shell.call("exec_command", wanted)
    assert not answer.ok
    assert "list of hosts" in answer.text


async def test_a_shell_session_asks_for_each_of_its_commands(ws: Path, port: int) -> None:
    scribe = Scribe(Choice.APPROVE, Choice.DENY)
    url = f"http://127.0.0.1:{port}/"
    async with AgentShell(
        ws, network=ASKED, approver=scribe, rules=[], shell_session=True
    ) as shell:
        assert "ORIGIN\nORIGIN\n" in (await shell.exec_command(command(url, url))).text
        again = command(url, after="echo second")
        assert "403\nsecond" in (await shell.exec_command(again)).text
    assert ["second" in " ".join(question.argv) for question in scribe.questions] == [False, True]


#: Connects to the proxy, asks it for a host, and gives up.
GIVE_UP = """
import socket, sys
proxy = socket.create_connection(("127.0.0.1", 800), 30)
proxy.sendall(b"GET %s HTTP/1.1\\r\\nHost: %s\\r\\n\\r\\n")
"""


async def test_a_yes_counts_for_a_tool_that_gave_up(ws: Path, port: int) -> None:
    """The question stays open for its time; the next attempt of the call asks no other."""
    scribe = Scribe(Choice.APPROVE)
    scribe.let.clear()
    url = f"http://127.0.0.1:{port}/"
    (ws / "give_up.py").write_text(GIVE_UP % (url, f"127.0.0.1:{port}"))
    script = f"python3 give_up.py; until test -e go; do sleep 0.05; done; {command(url)}"
    async with AgentShell(ws, network=ASKED, approver=scribe, rules=[]) as shell:
        call = asyncio.ensure_future(shell.exec_command(script, yield_time_ms=30_000))
        await eventually_so(lambda: scribe.questions)
        scribe.let.set()
        await eventually_so(lambda: not scribe.open)
        (ws / "go").touch()
        assert "ORIGIN" in (await call).text
    assert len(scribe.questions) == 1


async def test_the_end_of_a_call_withdraws_its_question(ws: Path) -> None:
    scribe = Scribe(Choice.APPROVE)
    scribe.let.clear()
    (ws / "give_up.py").write_text(GIVE_UP % ("http://no.example/", "no.example"))
    script = "python3 give_up.py; until test -e go; do sleep 0.05; done"
    async with AgentShell(ws, network=ASKED, approver=scribe, rules=[]) as shell:
        call = asyncio.ensure_future(shell.exec_command(script, yield_time_ms=30_000))
        await eventually_so(lambda: scribe.open)
        (ws / "go").touch()
        assert (await call).exit_code == 0
        await eventually_so(lambda: not scribe.open)
