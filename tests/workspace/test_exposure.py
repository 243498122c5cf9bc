"""A port of this machine that leads to one of sandboxed commands, near and far."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail import AsyncWorkspace, Exposure, Managed, UsageError, Workspace
from handrail.executor.fake import FakeExecutor
from handrail.workspace import exposure
from tests.sandbox.arena import ORDINARY_UID, as_uid, python_for
from tests.support.coroutines import run
from tests.support.eventually import spin
from tests.support.servers import server_process
from tests.workspace.inner_server import listening


@pytest.fixture(params=["near", "far"])
def ws(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workspace]:
    root, state = tmp_path / "repo", tmp_path / "state"
    root.mkdir()
    if request.param == "near":
        with Workspace(root, network=Managed(unlisted="deny")) as workspace:
            yield workspace
        return
    state.mkdir(mode=0o700)
    with server_process(state) as server, Workspace(root, at=server.url) as workspace:
        yield workspace


def connected(exposure: Exposure) -> socket.socket:
    return socket.create_connection(("127.0.0.1", exposure.port), 30)


def read_all(conn: socket.socket) -> bytes:
    said = b""
    while data := conn.recv(1 << 20):
        said += data
    return said


def test_it_leads_to_the_command(ws: Workspace) -> None:
    exposure = ws.expose(8123)
    assert exposure.url == f"http://127.0.0.1:{exposure.port}"
    with pytest.raises(ConnectionResetError), connected(exposure) as early:
        early.recv(1)  # nothing listens yet
    listening(ws, 8123)
    with connected(exposure) as conn:
        conn.sendall(b"there")
        conn.shutdown(socket.SHUT_WR)  # one half: the answer still comes
        assert read_all(conn) == b"hello there"
    with connected(exposure) as conn:
        assert conn.recv(6) == b"hello "
        exposure.close()
        with pytest.raises(OSError):
            assert not conn.recv(1)
            raise ConnectionResetError
    with pytest.raises(ConnectionRefusedError):
        connected(exposure)
    six = ws.expose(8124)
    listening(ws, 8124, "::1")
    with connected(six) as conn:
        assert conn.recv(6) == b"hello "


def test_a_client_that_does_not_read_holds_up_no_other(ws: Workspace) -> None:
    exposure = ws.expose(8123)
    listening(ws, 8123)
    with connected(exposure) as slow:
        slow.sendall(b"pour")
        many = [connected(exposure) for _ in range(40)]
        for number, conn in enumerate(many):
            conn.sendall(b"%d" % number)
            conn.shutdown(socket.SHUT_WR)
        for number, conn in enumerate(many):
            with conn:
                assert read_all(conn) == b"hello %d" % number
        slow.shutdown(socket.SHUT_WR)
        assert len(read_all(slow)) == 6 + (64 << 20)


def test_it_ends_with_its_workspace(tmp_path: Path) -> None:
    before = threading.active_count()
    with Workspace(tmp_path) as ws:
        exposure = ws.expose(8123)
        with contextlib.suppress(ConnectionResetError):  # no command listens there
            connected(exposure).close()
    with pytest.raises(ConnectionRefusedError):
        connected(exposure)
    assert threading.active_count() <= before + 1


@pytest.mark.skipif(
    shutil.which("setpriv") is None or python_for(ORDINARY_UID) is None,
    reason="only root can connect as another user",
)
def test_another_user_is_refused(tmp_path: Path) -> None:
    """The kernel says whose a peer is; this user and root are let in."""
    found = python_for(ORDINARY_UID)
    assert found is not None
    script = """
import socket, sys
conn = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20)
try:
    print(conn.recv(6))
except OSError as error:
    print(type(error).__name__)
"""
    with Workspace(tmp_path) as ws, ws.expose(8123) as exposure:
        listening(ws, 8123)
        words = ["-I", "-c", script, str(exposure.port)]
        others = [*as_uid(ORDINARY_UID), found["python"]]
        said = [
            subprocess.run([*who, *words], capture_output=True, text=True, check=True).stdout
            for who in (others, [sys.executable])
        ]
    assert said[0] in ("b''\n", "ConnectionResetError\n")
    assert said[1] == "b'hello '\n"


async def test_strangers_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    shown = exposure.open_exposure(FakeExecutor(), "name", 8123, None, lambda _: None)
    for _ in range(100):
        shown._refused("a process of user 7 connected; say so")
    await shown.close()
    (line,) = caplog.messages
    assert f"a process of user 7 connected (exposed port {shown.port})" in line


async def test_a_close_that_is_cancelled_leaves_no_listener() -> None:
    shown = exposure.open_exposure(FakeExecutor(), "name", 8123, None, lambda _: None)
    closing = asyncio.create_task(shown.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await spin(lambda: shown._listener.fileno() < 0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", shown.port))


def test_what_cannot_be_exposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Workspace(tmp_path) as ws, socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(UsageError, match="cannot be listened on"):
            ws.expose(8123, local_port=taken.getsockname()[1])
        for port in (0, 65_536, "80", True):
            with pytest.raises(UsageError, match="1 to 65535"):
                ws.expose(port)  # type: ignore[arg-type]
        monkeypatch.setattr(exposure, "is_overflow_user", lambda: True)
        with pytest.raises(UsageError, match="could not be kept from them"):
            ws.expose(8123)
    for options in ({"network": "open"}, {"sandbox": "off"}):
        with Workspace(tmp_path, **options) as ws:  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="have the network of their machine"):
                ws.expose(8123)

    async def fake() -> None:
        async with AsyncWorkspace("/", executor=FakeExecutor(), sandbox="read-only") as ws:
            with pytest.raises(UsageError, match="does not share a loopback"):
                await ws.expose(8123)

    run(fake())
