"""Commands of a workspace with a list of hosts: reached, refused, asked about, near and far."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import handrail
from handrail import (
    Answer,
    AsyncWorkspace,
    Choice,
    ExitKind,
    Managed,
    Profile,
    Question,
    SandboxUnavailable,
    UsageError,
    Workspace,
)
from handrail.executor.fake import FakeExecutor
from tests.network.origin import fetch, origin
from tests.support.coroutines import run
from tests.support.servers import server_process


@pytest.fixture
def port() -> Iterator[int]:
    with origin() as port:
        yield port


def test_listed_hosts_are_reached_and_others_told(at: str | None, root: Path, port: int) -> None:
    network = Managed(allow=[f"127.0.0.1:{port}"], deny=["bad.example"])
    with Workspace(root, at=at, network=network) as ws:
        good = f"http://127.0.0.1:{port}/"
        result = ws.run(fetch(good, "http://bad.example/", "http://no.example:81/", good))
    assert result.ok
    assert result.stdout.split() == ["ORIGIN", "403", "403", "ORIGIN"]
    found = {(d.host, d.port, d.reason, d.method, d.count) for d in result.denials}
    assert found == {
        ("bad.example", 80, "denied", "GET", 1),
        ("no.example", 81, "not_allowed", "GET", 1),
    }
    assert all(d.kind == "network" and d.certain and d.pid for d in result.denials)
    assert str(result).endswith(
        'Network access to "bad.example:80" was blocked: domain is explicitly denied by policy and'
        " cannot be approved from this prompt.\n"
        'Network access to "no.example:81" was blocked: domain is not on the allowlist for the'
        " current sandbox mode."
    )


def test_an_approver_is_asked_in_a_thread(at: str | None, root: Path, port: int) -> None:
    url, seen = f"http://127.0.0.1:{port}/", []
    other = threading.Event()

    def approver(question: Question) -> bool:
        seen.append(question)
        assert other.wait(30)  # a question holds up no other command
        return True

    with Workspace(root, at=at, network=Managed(allow_local_binding=True), approver=approver) as ws:
        process = ws.start(fetch(url, url), stdin=False)
        assert ws.run("echo beside").stdout == "beside\n"
        other.set()
        result = process.result()
    assert result.stdout.split() == ["ORIGIN", "ORIGIN"]
    assert result.notes == ()
    (question,) = seen
    assert question.host == ("http", "127.0.0.1", port)
    assert question.argv == tuple(fetch(url, url))
    assert question.cwd == str(root)
    assert question.program
    assert question.pid


def test_answers_and_saved_rules(root: Path, tmp_path: Path, port: int) -> None:
    url, file = f"http://127.0.0.1:{port}/", tmp_path / "my.rules"
    answers = [
        Answer(Choice.DENY, "use the mirror"),
        Answer(Choice.DENY_FOR_SESSION),
        Answer(Choice.HOST_RULE),
    ]

    async def approver(question: Question) -> Answer:
        return answers.pop(0)

    async def main() -> None:
        network = Managed(allow_local_binding=True, rules_file=str(file))
        async with AsyncWorkspace(root, network=network, approver=approver) as ws:
            once = await ws.run(fetch(url))
            assert once.notes[0].endswith("blocked: not approved: use the mirror.")
            refused = [await ws.run(fetch(url)) for _ in range(2)]
            assert [one.stdout for one in refused] == ["403\n", "403\n"]
        assert not file.exists()
        for left in (0, 0):  # the second workspace reads what the first has written
            async with AsyncWorkspace(root, network=network, approver=approver) as ws:
                assert (await ws.run(fetch(url))).stdout == "ORIGIN\n"
            assert len(answers) == left
        # A yes for one port opens no other.
        async with AsyncWorkspace(root, network=network) as ws:
            with origin() as other:
                assert (await ws.run(fetch(f"http://127.0.0.1:{other}/"))).stdout == "403\n"

    run(main())
    assert f"port={port}" in file.read_text()


def test_a_refusal_may_end_the_command(at: str | None, root: Path) -> None:
    network = Managed(unlisted="deny", on_network_denial="end")
    words = fetch("http://no.example/")
    with Workspace(root, at=at, network=network) as ws:
        result = ws.run(["sh", "-c", 'echo begun; "$@"; exec sleep 600', "sh", *words])
    assert result.stdout.startswith("begun\n")
    assert result.exit is not None
    assert result.exit.kind in (ExitKind.TERMINATED, ExitKind.SIGNALED)
    assert result.denials[0].host == "no.example"


def test_abort_ends_the_command(root: Path) -> None:
    with Workspace(root, network=Managed(), approver=lambda _: Choice.ABORT) as ws:
        words = fetch("http://no.example/")
        result = ws.run(["sh", "-c", 'echo begun; "$@"; exec sleep 600', "sh", *words])
    assert result.stdout.startswith("begun\n")
    assert not result.ok


def test_which_network_a_command_has(root: Path, port: int) -> None:
    listed = Managed(allow=[f"127.0.0.1:{port}"])
    url = f"http://127.0.0.1:{port}/"
    with Workspace(root, network=listed) as ws:
        for options in ({}, {"sandbox": "read-only"}):
            assert ws.run(fetch(url), **options).stdout == "ORIGIN\n"  # type: ignore[call-overload]
        assert not ws.run(fetch(url), network="off").ok
        assert not ws.run(fetch(url), sandbox=Profile()).ok
        assert ws.run(fetch(url), sandbox="off").stdout == "ORIGIN\n"
    with Workspace(root) as ws:
        assert not ws.run(fetch(url)).ok
        assert ws.run(fetch(url), network=listed).stdout == "ORIGIN\n"
        assert ws.run(fetch(url), network="open").stdout == "ORIGIN\n"
    result = handrail.run(fetch(url), cwd=root, sandbox=Profile(network=listed))
    assert result.stdout == "ORIGIN\n"


def test_what_cannot_be_enforced_is_refused(root: Path) -> None:
    with pytest.raises(UsageError, match="needs a sandbox"):
        Workspace(root, sandbox="off", network=Managed())

    async def main() -> None:
        async with AsyncWorkspace("/w", executor=FakeExecutor(), network=Managed()) as ws:
            with pytest.raises(SandboxUnavailable, match="carries no managed network"):
                await ws.run("true")

    asyncio.run(main())


def test_it_is_the_same_after_coming_back(
    root: Path, tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    network = Managed(allow=[f"127.0.0.1:{port}"], addresses={"10.1.0.0/16": "deny"})
    with server_process(state) as server:
        left = Workspace(root, at=server.url, network=network, detach_ttl=60)
        left.run("true")
        with Workspace.attach(left.detach()) as ws:
            result = ws.run(fetch(f"http://127.0.0.1:{port}/", "http://no.example/"))
    assert result.stdout.split() == ["ORIGIN", "403"]
