"""The same workspace at a server: running, cutting the line, leaving and coming back."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from handrail import (
    AsyncWorkspace,
    AuthenticationFailed,
    ExecutorSpawnFailed,
    ExecutorTransportFailed,
    ExitKind,
    FilesError,
    UsageError,
    WaitReason,
    Workspace,
    WorkspaceBusy,
)
from handrail.workspace import detached_store
from tests.executor.places import codex_server, why_not
from tests.support.eventually import eventually
from tests.support.processes import alive
from tests.support.servers import server_process


@pytest.fixture(autouse=True)
def _records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))


def test_it_means_the_same_there(url: str, root: Path) -> None:
    with Workspace(root, at=url, sandbox="off", env={"A": "1"}) as ws:
        result = ws.run("echo out; echo err >&2; echo $A; pwd; exit 3")
        assert result.stdout.splitlines() == ["out", "1", str(root)]
        assert (result.stderr, result.exit_code) == ("err\n", 3)
        assert ws.run(["cat"], input=b"\xff\0", text=False).stdout == b"\xff\0"
        assert ws.run("sleep 60", timeout=0.2).timed_out
        ws.files.write("notes.txt", "hi")
        assert ws.files.read("notes.txt") == "hi"
        with pytest.raises(FilesError) as info:
            ws.files.read("missing")
        assert info.value.kind == "not_found"
        with pytest.raises(ExecutorSpawnFailed, match="no-such-program"):
            ws.run(["no-such-program"])


def test_sandboxed_there_too(url: str, root: Path) -> None:
    with Workspace(root, at=url) as ws:
        result = ws.run("echo x > inside; echo y > ../outside; cat inside; exit 1")
        assert result.stdout == "x\n"
        assert result.denials
        assert ws.run('echo z > /tmp/t && echo "$TMPDIR"', check=True).stdout == "/tmp\n"
        assert ws.files.read("/tmp/t") == "z\n"
        place = ws._twin._location.temporary
        assert place is not None
        assert Path(place).stat().st_mode & 0o077 == 0
    assert not (root.parent / "outside").exists()
    assert not Path(place).exists()


def test_a_program_on_stdio_is_a_place_too(root: Path, tmp_path: Path) -> None:
    state = tmp_path / "stdio"
    state.mkdir(mode=0o700)
    serve = f"stdio:{sys.executable} -m handrail serve --listen stdio --state-dir {state}"
    with Workspace(root, at=serve, sandbox="off") as ws:
        assert ws.run("echo hi").stdout == "hi\n"


def test_leaving_and_coming_back(url: str, root: Path) -> None:
    with Workspace(root, at=url, sandbox="off", detach_ttl=60) as ws:
        process = ws.start([sys.executable, "-q"], tty=True, env={"PYTHON_BASIC_REPL": "1"})
        process.wait_for(">>> ", timeout=20)
        process.send("n = 41\n")
        left = ws.detach()
    with Workspace.attach(left) as back:
        assert back.root == str(root)
        (again,) = back.processes
        assert again.id == process.id
        again.send("n + 1\n")
        assert again.wait_for(r"^42", timeout=20).reason is WaitReason.PATTERN
        with pytest.raises(WorkspaceBusy, match="attached"):
            Workspace.attach(left)
        assert back.run("echo more").stdout == "more\n"
    with pytest.raises(UsageError, match="no workspace"):
        Workspace.attach(left)


def test_a_python_session_is_left_and_found_again(url: str, root: Path) -> None:
    pytest.importorskip("ipykernel")
    with Workspace(root, at=url, sandbox="off", detach_ttl=60) as ws:
        assert ws.python(python=sys.executable).run("n = 41; n").text == "41"
        left = ws.detach()
    with Workspace.attach(left) as back:
        (process,) = back.processes
        with back.python(process=process) as again:
            assert again.run("n + 1").text == "42"
            assert again.process.id == process.id
        with pytest.raises(UsageError, match="no running process"), Workspace(root) as other:
            other.python(process=process)


def test_what_ended_while_nobody_was_there(url: str, root: Path) -> None:
    gate = root / "gate"
    os.mkfifo(gate)
    with Workspace(root, at=url, sandbox="off", detach_ttl=60) as ws:
        seen = ws.start("exit 2")
        assert seen.wait() is not None
        process = ws.start(f"echo $$; read x < {gate}; echo done; exit 3")
        pid = int(process.wait_for(r"^\d+$", timeout=20).match)
        left = ws.detach()
    gate.write_text("\n")
    eventually(lambda: not alive(pid))
    for _ in range(2):  # to have looked is not to have taken it away
        back = Workspace.attach(left)
        (again,) = back.processes
        assert again.id == process.id
        result = again.result()
        assert (result.stdout, result.exit_code) == (f"{pid}\ndone\n", 3)
        assert back.run("true").ok
        assert [one.running for one in back.processes] == [False]
        left = back.detach()
    Workspace.attach(left).close()


def test_what_cannot_be_left_or_found_is_refused(url: str, root: Path) -> None:
    with Workspace(root, sandbox="off") as ws, pytest.raises(UsageError, match="at a server"):
        ws.detach()
    for name in ("00000000", "../../etc/passwd", ""):
        with pytest.raises(UsageError):
            Workspace.attach(name)


def test_a_program_of_ours_cannot_be_left(root: Path, tmp_path: Path) -> None:
    state = tmp_path / "stdio"
    state.mkdir(mode=0o700)
    serve = f"stdio:{sys.executable} -m handrail serve --listen stdio --state-dir {state}"
    with Workspace(root, at=serve, sandbox="off") as ws:
        process = ws.start("cat")
        with pytest.raises(UsageError, match="goes on without us"):
            ws.detach()
        assert process.running
        assert ws.run("echo still there").ok


def test_a_timeout_is_kept_while_nobody_is_there(url: str, root: Path) -> None:
    with Workspace(root, at=url, sandbox="off", detach_ttl=60) as ws:
        process = ws.start("echo $$; exec sleep 600", timeout=3)  # enough to leave while it runs
        pid = int(process.wait_for(r"^\d+$", timeout=20).match)
        left = ws.detach()
    eventually(lambda: not alive(pid))
    with Workspace.attach(left) as back:
        (again,) = back.processes
        info = again.wait()
        assert info is not None
        assert info.kind is ExitKind.TIMED_OUT


def test_a_timeout_that_nobody_would_keep_keeps_us(root: Path, tmp_path: Path) -> None:
    why = why_not("codex")
    if why is not None:
        pytest.skip(why)

    async def main() -> None:
        async with (
            codex_server(tmp_path) as url,
            AsyncWorkspace(root, at=url, sandbox="off") as ws,
        ):
            process = await ws.start("sleep 600", timeout=60)
            with pytest.raises(UsageError, match="timeout that its server cannot keep"):
                await ws.detach()
            await process.terminate()
            await ws.detach()

    asyncio.run(main())


def test_variables_come_back_too(url: str, root: Path) -> None:
    env = {"A": "1", "B": b"\xff", "PATH": None}
    with Workspace(root, at=url, sandbox="off", detach_ttl=60, env=env) as ws:
        script = 'printf "%s %s %s" "$A" "$B" "${PATH-none}"'
        before = ws.run(script, text=False).stdout
        left = ws.detach()
    (record,) = (tmp for tmp in detached_store.known() if tmp.id == left)
    assert "\udcff" not in repr(record)
    with Workspace.attach(left) as back:
        assert back.run(script, text=False).stdout == before
        assert b"1 \xff" in before


def test_a_session_without_results_that_is_over_is_told(tmp_path: Path, root: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    with server_process(state, "--results-each", "0") as server:
        with Workspace(root, at=server.url, sandbox="off") as ws:
            pid = int(ws.start("echo $$; exec sleep 60").wait_for(r"^\d+$", timeout=20).match)
            left = ws.detach(keep=0)
        eventually(lambda: not alive(pid))
        with pytest.raises(ExecutorTransportFailed, match="unknown session"):
            Workspace.attach(left)


@pytest.mark.parametrize(
    ("at", "token", "error"),
    [
        ("ws://127.0.0.1:1", None, ExecutorTransportFailed),
        ("unix:/nowhere/at/all", None, ExecutorTransportFailed),
        ("ftp://example.org", None, UsageError),
        ("stdio:", None, UsageError),
        (None, "secret", UsageError),
        ("unix:/nowhere", "secret", UsageError),
    ],
)
def test_places_that_are_none(at: str | None, token: str | None, error: type, root: Path) -> None:
    with pytest.raises(error), Workspace(root, at=at, token=token) as ws:
        ws.run("true")


@pytest.mark.parametrize("given", [None, "another"])
def test_a_wrong_token_is_an_error_of_its_own(
    given: str | None, root: Path, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("the-right-one")
    token.chmod(0o600)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    words = ("--ws-auth", "capability-token", "--ws-token-file", str(token))
    with server_process(state, *words) as server:
        with pytest.raises(AuthenticationFailed, match=r"give the server's token by") as caught:
            Workspace(root, at=server.url, token=given).run("true")
        assert isinstance(caught.value, ExecutorTransportFailed)
        assert "the-right-one" not in str(caught.value)
