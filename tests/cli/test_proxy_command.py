"""``handrail proxy``: a bridge to the server of this user, which it starts if need be."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from handrail.executor.base import SpawnRequest
from handrail.executor.remote import RemoteExecutor
from tests.support.eventually import eventually
from tests.support.processes import bearing

PROXY = [sys.executable, "-m", "handrail", "proxy"]
REQUEST = SpawnRequest("p", ("/bin/sh", "-c", "echo $0"), "/", {"PATH": "/usr/bin:/bin"})


async def one_command(proxy: list[str]) -> bytes:
    executor = await RemoteExecutor.connect(proxy)
    try:
        session = await executor.spawn(REQUEST)
        return b"".join([event.data async for event in session.subscribe_output()])
    finally:
        await executor.close()


async def test_the_first_starts_a_server_and_the_others_find_it(room: Path) -> None:
    proxy = [*PROXY, "--socket", f"{room}/sub/s"]
    found = await asyncio.gather(*(one_command(proxy) for _ in range(3)))
    assert found == [b"/bin/sh\n"] * 3
    assert len(bearing(f"unix:{room}/sub/s")) == 1
    assert os.stat(f"{room}/sub").st_mode & 0o777 == 0o700


async def test_the_session_outlives_the_proxy(room: Path) -> None:
    proxy = [*PROXY, "--socket", f"{room}/s"]
    executor = await RemoteExecutor.connect(proxy)
    request = SpawnRequest("long", ("/bin/cat",), "/", {})
    await executor.spawn(request)
    session_id, secret = await executor.detach()
    again = await RemoteExecutor.connect(proxy, session_id=session_id, resume_secret=secret)
    session = await again.attach("long")
    await session.write(b"still here\n")
    assert (await session.wait_for("still here", timeout=20)).match == b"still here"
    await again.close()


def test_without_a_server_it_says_so(room: Path) -> None:
    done = subprocess.run(  # noqa: PLW1510 (looked at below)
        [*PROXY, "--socket", f"{room}/s", "--no-start"],
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 1
    assert b"no server listens at" in done.stderr


def test_a_place_where_no_server_can_be(room: Path) -> None:
    (room / "file").write_text("")
    done = subprocess.run(  # noqa: PLW1510 (looked at below)
        [*PROXY, "--socket", f"{room}/file/s"], capture_output=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 1
    assert done.stderr.startswith(b"handrail: ")
    assert b"Traceback" not in done.stderr


def test_the_default_place_is_ours_alone(room: Path) -> None:
    """A runtime directory that others can write to is not used."""
    runtime = room / "runtime"
    runtime.mkdir(mode=0o777)
    os.chmod(runtime, 0o777)
    done = subprocess.run(  # noqa: PLW1510 (looked at below)
        [*PROXY, "--no-start"],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env={
            **os.environ,
            "XDG_RUNTIME_DIR": str(runtime),
            "XDG_STATE_HOME": f"{room}/state",
        },
    )
    assert done.returncode == 1
    assert f"no server listens at {room}/state/handrail/runtime/server.sock".encode() in done.stderr
    assert os.listdir(runtime) == []


def test_it_ends_with_the_server(room: Path) -> None:
    proxy = subprocess.Popen(
        [*PROXY, "--socket", f"{room}/s"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with proxy:
        (server,) = eventually(lambda: bearing(f"unix:{room}/s"), "the server runs")
        eventually((room / "s").exists, "it listens")
        assert proxy.stdin is not None
        proxy.stdin.write(b'{"id":1,"method":"initialize","params":{"clientName":"t"}}\n')
        proxy.stdin.flush()
        assert proxy.stdout is not None
        assert b"sessionId" in proxy.stdout.readline()
        os.kill(server, signal.SIGTERM)
        assert proxy.wait(20) == 0
