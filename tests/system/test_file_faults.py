"""File calls of a whole server: its own processes are out of reach, a kill leaves nothing."""

from __future__ import annotations

import base64
import os
import signal
from pathlib import Path

import pytest

from tests.support.clients import SocketClient, b64, dialled
from tests.support.processes import nothing_left
from tests.support.servers import ServerProcess, server_process

pytestmark = pytest.mark.fault


def uri(path: str | Path) -> str:
    return f"file://{path}"


async def test_files_of_server_and_keeper_are_refused(tmp_path: Path) -> None:
    with server_process(tmp_path / "state") as server:
        async with dialled(server.url) as client:
            for pid in (server.keeper(), server.pid):
                await all_refused(client, pid, tmp_path / "copy")
            assert not (tmp_path / "copy").exists()
            other = await client.call("fs/readFile", {"path": uri(f"/proc/{os.getpid()}/stat")})
            assert base64.b64decode(other["dataBase64"]).startswith(b"%d " % os.getpid())


async def test_files_of_a_keeper_that_was_found_are_refused(tmp_path: Path) -> None:
    """It is no child of the server that goes on with it."""
    with nothing_left():
        first = ServerProcess(tmp_path / "state")
        keeper = first.keeper()
        first.process.kill()
        first.wait()
        first.close()
        with server_process(tmp_path / "state") as server:
            async with dialled(server.url) as client:
                await all_refused(client, keeper, tmp_path / "copy")
            assert not (tmp_path / "copy").exists()


async def all_refused(client: SocketClient, pid: int, copy: Path) -> None:
    for name in ("environ", "mem", f"task/{pid}/environ", "fd/3", "maps"):
        path = uri(f"/proc/{pid}/{name}")
        to = {"sourcePath": path, "destinationPath": uri(copy), "recursive": True}
        for method, params in (
            ("fs/readFile", {"path": path}),
            ("fs/writeFile", {"path": path, "dataBase64": b64(b"x")}),
            ("fs/getMetadata", {"path": path}),
            ("fs/copy", to),
        ):
            _, text = await client.refused(method, params)
            assert "Permission denied" in text, (method, path)
    _, text = await client.refused("fs/readDirectory", {"path": uri(f"/proc/{pid}/fd")})
    assert "Permission denied" in text


async def test_a_kill_between_link_and_rename_leaves_no_file(tmp_path: Path) -> None:
    folder, state = tmp_path / "folder", tmp_path / "state"
    folder.mkdir()
    (folder / "target").write_bytes(b"old")
    faults = {"HANDRAIL_FAULTS": "stage.named:crash"}
    with nothing_left():
        first = ServerProcess(state, env=faults)
        async with dialled(first.url) as client:
            params = {"path": uri(folder / "target"), "dataBase64": b64(b"new")}
            client.post("fs/writeFile", params).cancel()
            await client.until_ended()
        assert first.wait() == -signal.SIGKILL
        first.close()
        assert len(os.listdir(folder)) == 2
        with server_process(state):
            assert os.listdir(folder) == ["target"]
            assert (folder / "target").read_bytes() == b"old"
