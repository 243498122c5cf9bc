"""Contained commands as a client sees them: terminals, signals, ends, refusals."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import MemoryClient
from tests.support.eventually import eventually_so
from tests.support.servers import serving


def sandbox(ws: Path, *entries: dict[str, Any], root: str = "root", **more: Any) -> dict[str, Any]:
    def special(kind: str) -> dict[str, Any]:
        return {"type": "special", "value": {"kind": kind}}

    return {
        "permissions": {
            "type": "managed",
            "file_system": {
                "type": "restricted",
                "entries": [
                    {"path": special(root), "access": "read"},
                    {"path": special("project_roots"), "access": "write"},
                    *entries,
                ],
            },
            "network": more.pop("network", "restricted"),
        },
        "workspaceRoots": [ws.as_uri()],
        "windowsSandboxLevel": "disabled",
        **more,
    }


async def ended(client: MemoryClient, name: str) -> tuple[dict[str, Any], bytes]:
    """How a process ended, and all of its output."""
    await client.until_closed(name)
    return (await client.read(name))["exit"], client.output(name)


async def test_a_terminal_controls_the_command(ws: Path) -> None:
    async with serving() as served:
        client = await served.client()
        script = "echo to-tty > /dev/tty; stty size; read x; echo got $x"
        size = {"rows": 33, "cols": 77}
        await client.shell("p", script, tty=True, size=size, cwd=ws.as_uri(), sandbox=sandbox(ws))
        await client.until_output("p", b"33 77")
        await client.write("p", b"word\r", "1")
        exit_, output = await ended(client, "p")
        assert exit_["code"] == 0
        assert b"to-tty" in output
        assert b"got word" in output


async def test_the_keys_of_a_terminal_reach_the_foreground_job(ws: Path) -> None:
    async with serving() as served:
        client = await served.client()
        given = sandbox(ws)
        argv = ("bash", "--norc", "--noprofile", "-i")
        await client.start("p", *argv, tty=True, cwd=ws.as_uri(), sandbox=given)
        await client.write("p", b"PS1=; echo rea''dy\r", "1")
        await client.until_output("p", b"ready")
        await client.write("p", b"sh -c 'echo jo\"\"b; exec sleep 600'\r", "2")
        await client.until_output("p", b"job")
        await client.write("p", b"\x03", "3")
        await client.write("p", b"echo co''de $?\r", "4")
        await client.until_output("p", b"code 130")
        await client.write("p", b"sh -c 'echo jo\"\"b2; exec sleep 601'\r", "5")
        await client.until_output("p", b"job2")
        await client.write("p", b"\x1a", "6")
        await client.until_output("p", b"Stopped")
        await client.write("p", b"disown -a; exit 3\r", "7")
        exit_, _ = await ended(client, "p")
        assert exit_["code"] == 3


async def test_a_new_size_is_told(ws: Path) -> None:
    async with serving() as served:
        client = await served.client()
        script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done"
        await client.shell("p", script, tty=True, cwd=ws.as_uri(), sandbox=sandbox(ws))
        await client.until_output("p", b"ready")
        await client.call("process/resize", processId="p", rows=40, cols=100)
        _, output = await ended(client, "p")
        assert b"40 100" in output


async def test_a_terminal_cannot_be_made_to_type(ws: Path) -> None:
    script = (
        "import fcntl, sys\n"
        "for n in (0x5412, 0x541C):\n"
        "  try: fcntl.ioctl(0, n, b'x'); print('TYPED')\n"
        "  except OSError as e: print(e.errno)\n"
    )
    async with serving() as served:
        client = await served.client()
        argv = ("/usr/bin/python3", "-c", script)
        await client.start("p", *argv, tty=True, cwd=ws.as_uri(), sandbox=sandbox(ws))
        _, output = await ended(client, "p")
        assert output.split() == [b"1", b"1"]


@pytest.mark.parametrize("tty", [False, True])
async def test_a_signal_reaches_the_command_and_not_its_holder(ws: Path, tty: bool) -> None:
    async with serving() as served:
        client = await served.client()
        script = "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.05; done"
        await client.shell("p", script, tty=tty, cwd=ws.as_uri(), sandbox=sandbox(ws))
        await client.until_output("p", b"ready")
        await client.call("process/signal", processId="p", signal="interrupt")
        exit_, output = await ended(client, "p")
        assert exit_["code"] == 7
        assert b"caught" in output


async def test_an_end_with_grace(ws: Path) -> None:
    async with serving() as served:
        client = await served.client()
        script = "trap 'echo bye; exit 9' TERM; echo ready; while :; do sleep 0.05; done"
        await client.shell("p", script, cwd=ws.as_uri(), sandbox=sandbox(ws))
        await client.until_output("p", b"ready")
        await client.call("process/terminate", processId="p", graceMs=20_000)
        exit_, output = await ended(client, "p")
        assert (exit_["kind"], exit_["code"]) == ("terminated", 9)
        assert b"bye" in output


async def test_a_command_killed_by_a_signal_says_so(ws: Path) -> None:
    async with serving() as served:
        client = await served.client()
        await client.shell("p", "kill -SEGV $$", cwd=ws.as_uri(), sandbox=sandbox(ws))
        exit_, _ = await ended(client, "p")
        assert (exit_["kind"], exit_["code"], exit_["signal"]) == ("signaled", 139, "SIGSEGV")


async def test_nothing_is_left_by_any_end(ws: Path) -> None:
    async with serving() as served:
        client = await served.client()
        given = sandbox(ws)
        await client.shell("a", "sleep 600 & echo ready; wait", cwd=ws.as_uri(), sandbox=given)
        await client.shell("b", "setsid sleep 600 & echo ready", cwd=ws.as_uri(), sandbox=given)
        await client.until_closed("b")
        await client.until_output("a", b"ready")
        assert (ws / ".git").is_dir()  # the other one still needs it
        await client.call("process/terminate", processId="a")
        await client.until_closed("a")
        # A sandbox may wait for a third command, for half a second.
        await eventually_so(lambda: os.listdir(ws) == [], "nothing is left")
        await client.shell("c", "echo ready; sleep 600", cwd=ws.as_uri(), sandbox=given)
        await client.until_output("c", b"ready")
    assert os.listdir(ws) == []


async def test_a_background_job_ends_with_its_command(
    ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANDRAIL_WARM", "off")  # no other sandbox holds the names
    async with serving() as served:
        client = await served.client()
        # Makes the protected name as soon as it can, for as long as it lives.
        script = "(while :; do mkdir -p .git/hooks; done) >/dev/null 2>&1 & sleep 0.05"
        for number in range(5):
            await client.shell(f"p{number}", script, cwd=ws.as_uri(), sandbox=sandbox(ws))
            await client.until_closed(f"p{number}")
            assert os.listdir(ws) == []


@pytest.mark.parametrize(("network", "reached"), [("restricted", False), ("enabled", True)])
async def test_the_network_is_what_was_asked_for(ws: Path, network: str, reached: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        async with serving() as served:
            client = await served.client()
            script = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo REACHED"
            given = sandbox(ws, network=network)
            await client.start("p", "bash", "-c", script, cwd=ws.as_uri(), sandbox=given)
            _, output = await ended(client, "p")
            assert (b"REACHED" in output) is reached


async def test_the_name_a_program_is_called_by(ws: Path) -> None:
    async with serving() as served:
        client = await served.client()
        argv = ("/bin/sh", "-c", "tr '\\0' '\\n' < /proc/$$/cmdline | head -1")
        await client.start("p", *argv, arg0="odd name", cwd=ws.as_uri(), sandbox=sandbox(ws))
        exit_, output = await ended(client, "p")
        assert (exit_["code"], output) == (0, b"odd name\n")


async def test_what_cannot_work_is_refused(ws: Path) -> None:
    async with serving() as served:
        client = await served.client()
        narrow = sandbox(ws, root="minimal")
        params = client.start_params("p", "/bin/true", cwd=ws.parent.as_uri(), sandbox=narrow)
        code, text = await client.refused("process/start", params)
        assert code == -32602
        assert "working directory" in text
        params = client.start_params("p", f"{ws.parent}/program", cwd=ws.as_uri(), sandbox=narrow)
        code, text = await client.refused("process/start", params)
        assert code == -32602
        assert "not readable under the profile" in text
        (ws / ".git").symlink_to("x")
        params = client.start_params("p", "true", cwd=ws.as_uri(), sandbox=sandbox(ws))
        code, text = await client.refused("process/start", params)
        assert code == -32602
        assert "failed to prepare process sandbox" in text
        (ws / ".git").unlink()
        await client.start("p", "true", cwd=ws.as_uri(), sandbox=sandbox(ws))


@pytest.mark.parametrize(
    "permissions",
    [
        {},
        {"type": "bogus"},
        {"type": "managed", "network": "restricted"},
        {"type": "managed", "file_system": {"type": "unrestricted"}},
        {"file_system": {"type": "unrestricted"}, "network": {"enabled": True}},
        {"type": "external"},
    ],
)
async def test_bad_shapes_are_refused(ws: Path, permissions: dict[str, Any]) -> None:
    async with serving() as served:
        client = await served.client()
        given = {"permissions": permissions, "windowsSandboxLevel": "disabled"}
        params = client.start_params("p", "true", sandbox=given)
        code, _ = await client.refused("process/start", params)
        assert code == -32602


@pytest.mark.parametrize(
    "entry",
    [
        {"path": {"type": "glob_pattern", "pattern": "*"}, "access": "read"},
        {"path": {"type": "special", "value": {"kind": "workspace_roots"}}, "access": "read"},
        {"path": {"type": "path", "path": "/native"}, "access": "read"},
        {"path": {"type": "path", "path": "file:///x"}, "access": "execute"},
        {
            "path": {"type": "special", "value": {"kind": "project_roots", "subpath": "../x"}},
            "access": "write",
        },
    ],
)
async def test_bad_entries_are_refused(ws: Path, entry: dict[str, Any]) -> None:
    async with serving() as served:
        client = await served.client()
        params = client.start_params("p", "true", sandbox=sandbox(ws, entry))
        code, _ = await client.refused("process/start", params)
        assert code == -32602


async def test_a_sandbox_is_set_up_again_when_a_place_vanished(
    ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from handrail.process.keeper_client.spawn_children import Launcher

    place = ws / "place"
    place.mkdir()
    (place / "file").write_text("")
    hidden = {"path": {"type": "path", "path": (place / "file").as_uri()}, "access": "deny"}
    given = sandbox(ws, hidden)
    given["workspaceRoots"] = []
    spawn = Launcher.spawn
    calls = []

    def vanishing(self: Launcher, spec: Any, note: bytes) -> Any:
        calls.append(spec)
        shutil.rmtree(place, ignore_errors=True)
        return spawn(self, spec, note)

    monkeypatch.setattr(Launcher, "spawn", vanishing)
    async with serving() as served:
        client = await served.client()
        result = await client.shell("p", "echo ran", cwd=ws.as_uri(), sandbox=given)
        assert result["sandboxType"] == "linuxSeccomp"
        exit_, output = await ended(client, "p")
        assert (exit_["code"], output) == (0, b"ran\n")
    assert len(calls) >= 2  # more if others come and go as well
    assert not place.exists()


async def test_the_list_shows_what_was_asked_for(ws: Path) -> None:
    async with serving() as served:
        client = await served.client()
        await client.shell("p", "sleep 600", cwd=ws.as_uri(), sandbox=sandbox(ws))
        (row,) = (await client.call("process/list"))["processes"]
        assert (row["argv"], row["cwd"]) == (["sh", "-c", "sleep 600"], ws.as_uri())
        await client.call("process/terminate", processId="p")
        await client.until_closed("p")
        (row,) = (await client.call("process/list"))["processes"]
        assert (row["argv"], row["cwd"]) == (["sh", "-c", "sleep 600"], ws.as_uri())
