"""What a managed network tells and learns while a process runs: refused hosts, and answers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from handrail import (
    AgentShell,
    Answer,
    AsyncProcess,
    AsyncWorkspace,
    Choice,
    Managed,
    Question,
    Workspace,
)
from handrail.workspace.refused_hosts import HostsTold
from tests.network.origin import fetch, origin
from tests.support.coroutines import run

#: Fetches once for each line of its stdin.
_EACH = """
import os, sys, urllib.error, urllib.request
for name in ("NO_PROXY", "no_proxy"):
    os.environ.pop(name, None)
for number, _ in enumerate(sys.stdin):
    try:
        urllib.request.urlopen(sys.argv[1], timeout=30).read()
        print(f"[{number} 200]", flush=True)
    except urllib.error.HTTPError as error:
        print(f"[{number} {error.code}]", flush=True)
"""


def test_a_shell_session_tells_the_hosts_of_each_command(at: str | None, root: Path) -> None:
    (root / "f.py").write_text(fetch()[3])
    one, two = (f"{sys.executable} -I f.py http://{name}.example/" for name in ("one", "two"))
    with Workspace(root, at=at, network=Managed(unlisted="deny")) as ws, ws.shell() as shell:
        first = shell.run(f"{one}; {one}; echo on")
        assert first.stdout == "403\n403\non\n"
        assert [(d.host, d.count) for d in first.denials] == [("one.example", 2)]
        assert first.notes[0].startswith('Network access to "one.example:80" was blocked')
        second = shell.run("echo nothing")
        assert (second.denials, second.notes) == ((), ())
        third = shell.run(f"{two}; {one}")
        assert {(d.host, d.count) for d in third.denials} == {
            ("one.example", 1),
            ("two.example", 1),
        }
        assert len(third.notes) == 2


def test_questions_of_a_shell_session_name_the_command(root: Path) -> None:
    """What was said «once» holds for one command of it."""
    asked = []

    def approver(question: Question) -> bool:
        asked.append(question.argv[-1])
        return False

    (root / "f.py").write_text(fetch()[3])
    words = f"{sys.executable} -I f.py http://h.example/ http://h.example/"
    with Workspace(root, network=Managed(), approver=approver) as ws, ws.shell() as shell:
        notes = [shell.run(f"{words} {mark}").notes for mark in ("", "#2")]
    assert asked == [f"{words} ", f"{words} #2"]
    assert notes == [('Network access to "h.example:80" was blocked: not approved.',)] * 2


def test_an_agent_with_a_shell_session_is_told(root: Path) -> None:
    async def main() -> None:
        ws = AsyncWorkspace(root, network=Managed(unlisted="deny"))
        async with AgentShell(ws, rules=[], shell_session=True) as shell:
            (root / "f.py").write_text(fetch()[3])
            words = f"{sys.executable} -I f.py http://h.example/; echo on"
            told = await shell.call("exec_command", {"cmd": words})
            assert 'on\n\nNetwork access to "h.example:80" was blocked' in told.text
            again = await shell.call("exec_command", {"cmd": "echo two"})
            assert "blocked" not in again.text

    run(main())


@pytest.mark.parametrize("allow", [True, False])
def test_answers_for_the_session_reach_a_process_that_runs(
    at: str | None, root: Path, allow: bool
) -> None:
    """The newest answer counts, also where the porter has an older one for the process."""
    lasting = Choice.APPROVE_FOR_SESSION if allow else Choice.DENY_FOR_SESSION
    answers = [Answer(Choice.DENY if allow else Choice.APPROVE), Answer(lasting)]

    async def approver(_: Question) -> Answer:
        return answers.pop(0)

    async def fetched(process: AsyncProcess, number: int) -> str:
        await process.send("\n")
        return (await process.wait_for(rf"\[{number} (\d+)\]", timeout=60)).match

    async def main(port: int) -> None:
        url = f"http://127.0.0.1:{port}/"
        network = Managed(allow_local_binding=True)
        async with AsyncWorkspace(root, at=at, network=network, approver=approver) as ws:
            process = await ws.start([sys.executable, "-I", "-c", _EACH, url])
            first = "403" if allow else "200"
            assert await fetched(process, 0) == f"[0 {first}]"
            last = "200" if allow else "403"
            assert (await ws.run(fetch(url))).stdout == ("ORIGIN\n" if allow else "403\n")
            number = 1
            while await fetched(process, number) != f"[{number} {last}]":
                number += 1  # told at once, and not before the command's own answer
                assert number < 200
            assert not answers

    with origin() as port:
        run(main(port))


def test_records_that_were_told_before() -> None:
    told = HostsTold()
    one = {"kind": "network", "op": "request", "host": "a", "port": 80, "reason": "r", "count": 2}
    assert told.new([one]) == [one]
    assert told.new([one]) == []
    rest = {"kind": "network", "host": "a", "count": 0, "omitted": 5}
    assert told.new([{**one, "count": 5}, rest]) == [{**one, "count": 3}, rest]
    assert told.new([{**one, "count": 5}, {**rest, "omitted": 7}]) == [{**rest, "omitted": 2}]
