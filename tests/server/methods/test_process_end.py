"""Signals, terminate, trees and the list: D1 to D5 and D16 of the fault matrix."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import MemoryClient
from tests.support.gates import gate
from tests.support.processes import alive, until_ended
from tests.support.servers import serving

#: Leaves the group and the session, says its pid, and lives on without an environment.
ESCAPER = "setsid sh -c 'echo {} $$; exec env -i sleep 600' &"
#: The same as a daemon: its parent is gone at once, and its streams are elsewhere.
DAEMON = "(setsid sh -c 'echo {} $$; exec env -i sleep 600 > /dev/null 2>&1' &) ;"


async def ended_with(client: MemoryClient, process_id: str = "p") -> int:
    events = await client.until_closed(process_id)
    return next(int(e["exitCode"]) for e in events if e["kind"] == "exited")


async def listed(client: MemoryClient, process_id: str = "p") -> dict[str, Any]:
    listing = (await client.call("process/list"))["processes"]
    return next(p for p in listing if p["processId"] == process_id)


async def family(client: MemoryClient, count: int, process_id: str = "p") -> dict[str, int]:
    """The pids that a process and its descendants have printed, by their names."""
    await client.until(lambda: client.output(process_id).count(b"\n") >= count)
    lines = client.output(process_id).decode().split("\n")[:count]
    return {name: int(pid) for name, pid in (line.split() for line in lines)}


async def until_no_orphans(client: MemoryClient) -> None:
    """The dead count until the keeper has buried them."""
    async with asyncio.timeout(30):
        while (await listed(client))["orphans"]:
            pass


# --- signals ----------------------------------------------------------------------------------


async def test_signals_by_their_names() -> None:
    named = ["interrupt", "int", "term", "hup", "kill", "quit", "usr1", "usr2", "alrm", "pipe",
             "sigterm", "rtmin"]  # fmt: skip
    numbers = {"interrupt": signal.SIGINT}
    async with serving() as served:
        client = await served.client()
        for name in named:
            await client.start(name, "sleep", "600")
            result = await client.call("process/signal", processId=name, signal=name)
            assert result == {}
        for name in named:
            word = name.removeprefix("sig").upper()
            number = numbers.get(name) or signal.Signals[f"SIG{word}"]
            assert await ended_with(client, name) == 128 + number


async def test_a_signal_that_does_not_end() -> None:
    async with serving() as served:
        client = await served.client()
        await client.shell("p", "trap 'echo got' USR1; echo ready; while :; do sleep 0.01; done")
        await client.until_output("p", b"ready")
        await client.call("process/signal", processId="p", signal="usr1")
        await client.until_output("p", b"got")
        assert (await client.read("p"))["exited"] is False


async def test_names_that_are_no_signals() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "sleep", "600")
        for name in ("", "nosuch", "TERM", "SIGTERM", "Interrupt", "9", "sigsigterm", "x" * 10_000):
            code, text = await client.refused("process/signal", processId="p", signal=name)
            assert code == -32602
            assert len(text) < 300
        for value in (9, None, ["term"]):
            code, _ = await client.refused("process/signal", {"processId": "p", "signal": value})
            assert code == -32602


async def test_a_signal_for_nobody() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("exited", "true")
        await client.until_closed("exited")
        for process_id in ("exited", "nosuch"):
            for members in ({}, {"tree": True}):
                call = {"processId": process_id, "signal": "interrupt", **members}
                assert await client.call("process/signal", call) == {}
            code, _ = await client.refused("process/signal", processId=process_id, signal="term")
            assert code == -32602


async def test_a_signal_reaches_the_group_and_with_tree_everybody() -> None:
    async with serving() as served:
        client = await served.client()
        await client.shell("p", "sleep 600 & echo near $!; " + ESCAPER.format("far") + " wait")
        members = await family(client, 2)
        await client.call("process/signal", processId="p", signal="usr1")
        assert await client.until_exited("p")
        await until_ended(members["near"])
        assert alive(members["far"])
        assert (await listed(client))["orphans"] == 1
        await client.call("process/signal", processId="p", signal="usr1", tree=True)
        await until_ended(members["far"])
        await client.until_closed("p")


# --- terminate --------------------------------------------------------------------------------


@pytest.mark.parametrize("tty", [False, True])
async def test_without_grace_nothing_is_cleaned_up(tty: bool) -> None:
    async with serving() as served:
        client = await served.client()
        script = "trap 'echo term; exit 7' TERM HUP; echo ready; while :; do sleep 0.01; done"
        for process_id, members in (("p", {}), ("q", {"graceMs": 0}), ("r", {"graceMs": None})):
            await client.shell(process_id, script, tty=tty)
            await client.until_output(process_id, b"ready")
            params = {"processId": process_id, **members}
            assert await client.call("process/terminate", params) == {"running": True}
            assert await ended_with(client, process_id) == 137
            assert b"term" not in client.output(process_id)


@pytest.mark.parametrize("tty", [False, True])
async def test_with_grace_a_process_may_clean_up(tty: bool) -> None:
    async with serving() as served:
        client = await served.client()
        script = (
            "trap 'echo hup' HUP; trap 'echo cleaned; exit 7' TERM; echo ready;"
            " while :; do sleep 0.01; done"
        )
        await client.shell("p", script, tty=tty)
        await client.until_output("p", b"ready")
        result = await client.call("process/terminate", processId="p", graceMs=3_600_000)
        assert result == {"running": True}
        assert await ended_with(client) == 7
        # The shell itself says what became of its sleep.
        words = [w for w in client.output("p").split() if w in (b"ready", b"hup", b"cleaned")]
        # A terminal hangs up first; pipes have nothing to hang up.
        assert words == ([b"ready", b"hup", b"cleaned"] if tty else [b"ready", b"cleaned"])
        assert (await client.read("p"))["exit"] == {
            "kind": "terminated",
            "code": 7,
            "signal": None,
            "coreDumped": False,
        }


@pytest.mark.parametrize("tty", [False, True])
async def test_a_process_that_ignores_its_grace_is_killed(tty: bool) -> None:
    async with serving() as served:
        client = await served.client()
        await client.shell(
            "p", "trap '' HUP TERM INT; echo ready; while :; do sleep 0.01; done", tty=tty
        )
        await client.until_output("p", b"ready")
        await client.call("process/terminate", processId="p", graceMs=50)
        assert await ended_with(client) == 137
        assert (await client.read("p"))["exit"]["kind"] == "terminated"


async def test_a_second_terminate_cuts_the_grace_short() -> None:
    async with serving() as served:
        client = await served.client()
        await client.shell("p", "trap '' TERM; echo ready; while :; do sleep 0.01; done")
        await client.until_output("p", b"ready")
        await client.call("process/terminate", processId="p", graceMs=3_600_000)
        assert await client.call("process/terminate", processId="p") == {"running": True}
        assert await ended_with(client) == 137


async def test_what_is_left_when_the_leader_used_its_grace_is_killed() -> None:
    async with serving() as served:
        client = await served.client()
        deaf = "setsid sh -c 'trap \"\" TERM; echo deaf $$; while :; do sleep 0.01; done' &"
        await client.shell("p", f"trap 'exit 0' TERM; {deaf} while :; do sleep 0.01; done")
        members = await family(client, 1)
        await client.call("process/terminate", processId="p", graceMs=3_600_000)
        assert await ended_with(client) == 0
        await until_ended(members["deaf"])


async def test_terminate_for_nobody() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("exited", "true")
        await client.until_closed("exited")
        for process_id in ("exited", "nosuch", ""):
            for members in ({}, {"tree": True}, {"graceMs": 10}):
                params = {"processId": process_id, **members}
                assert await client.call("process/terminate", params) == {"running": False}


@pytest.mark.parametrize("grace", [None, 50])
async def test_nobody_escapes_a_terminate(grace: int | None) -> None:
    async with serving() as served:
        client = await served.client()
        script = " ".join(ESCAPER.format(f"e{n}") for n in range(3))
        script += " " + " ".join(DAEMON.format(f"d{n}") for n in range(2))
        await client.shell("p", f"{script} sleep 600 & echo bg $!; wait")
        members = await family(client, 6)
        assert all(alive(pid) for pid in members.values())
        await client.call("process/terminate", processId="p", graceMs=grace)
        await client.until_closed("p")
        for pid in members.values():
            await until_ended(pid)
        await until_no_orphans(client)


async def test_a_tree_whose_leader_has_exited() -> None:
    async with serving() as served:
        client = await served.client()
        await client.shell("p", f"sleep 600 & echo near $!; {ESCAPER.format('far')} exit 5")
        members = await family(client, 2)
        exited = await client.until_exited("p")
        assert exited["exitCode"] == 5
        row = await listed(client)
        assert (row["state"], row["orphans"], row["pid"]) == ("exited", 2, None)
        # Plainly: not running, and nothing is touched, as on the wire.
        assert await client.call("process/terminate", processId="p") == {"running": False}
        assert await client.call("process/terminate", processId="p", graceMs=0) == {
            "running": False
        }
        assert all(alive(pid) for pid in members.values())
        assert await client.call("process/terminate", processId="p", tree=True) == {
            "running": False
        }
        for pid in members.values():
            await until_ended(pid)
        await client.until_closed("p")
        row = await listed(client)
        assert (row["state"], row["exit"]["code"]) == ("closed", 5)
        await until_no_orphans(client)


async def test_closing_the_session_ends_what_its_leaders_left() -> None:
    async with serving() as served:
        client = await served.client()
        await client.shell("p", f"sleep 600 & echo near $!; {DAEMON.format('far')} exit 5")
        members = await family(client, 2)
        await client.until_exited("p")
        assert await client.call("session/close") == {}
        for pid in members.values():
            await until_ended(pid)


# --- the list, and the size of a terminal ------------------------------------------------------


async def test_the_list_says_what_is_there(tmp_path: Path) -> None:
    with gate(tmp_path / "gate") as held:
        async with serving() as served:
            client = await served.client()
            other = await served.client()
            await other.start("theirs", "sleep", "600")
            assert (await client.call("process/list"))["processes"] == []
            script = f"echo ü; read l < {held.path}"
            await client.shell("p", script, name="my process", cwd=tmp_path.as_uri())
            await client.start("q", "sleep", "600", tty=True)
            await client.until_output("p", b"\n")
            rows = (await client.call("process/list"))["processes"]
            assert [row["processId"] for row in rows] == ["p", "q"]
            first = rows[0]
            assert alive(first.pop("pid"))
            assert first.pop("startedAtMs") > 1_600_000_000_000
            assert first == {
                "processId": "p",
                "name": "my process",
                "argv": ["sh", "-c", script],
                "cwd": tmp_path.as_uri(),
                "tty": False,
                "state": "running",
                "exit": None,
                "outputBytes": 3,
                "nextSeq": 2,
                "orphans": 0,
                "heldOpen": False,
                "detached": False,
                "labels": {},
            }
            assert rows[1]["tty"] is True
            assert rows[1]["name"] is None
            held.open()
            await client.until_closed("p")
            row = await listed(client)
            assert (row["state"], row["pid"], row["nextSeq"]) == ("closed", None, 4)
            assert row["exit"]["code"] == 0


async def test_resize() -> None:
    async with serving() as served:
        client = await served.client()
        script = "trap 'stty size' WINCH; stty size; while :; do sleep 0.01; done"
        await client.shell("p", script, tty=True)
        await client.until_output("p", b"24 80\r\n")
        call = {"processId": "p", "rows": 50, "cols": 132}
        assert await client.call("process/resize", call) == {}
        await client.until_output("p", b"50 132\r\n")
        call = {"processId": "p", "rows": 65_535, "cols": 1}
        assert await client.call("process/resize", call) == {}
        await client.until_output("p", b"65535 1\r\n")
        for rows, cols in ((0, 1), (1, 0), (65_536, 1), (-1, 1), (1.0, 1), ("1", 1), (None, 1)):
            call = {"processId": "p", "rows": rows, "cols": cols}
            assert (await client.refused("process/resize", call))[0] == -32602
        await client.call("process/terminate", processId="p")
        await client.until_closed("p")
        assert await client.call("process/resize", processId="p", rows=1, cols=1) == {}


async def test_resize_where_there_is_no_terminal() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "sleep", "600")
        code, text = await client.refused("process/resize", processId="p", rows=1, cols=1)
        assert code == -32600
        assert "terminal" in text
        assert await client.refused("process/resize", processId="q", rows=1, cols=1) == (
            -32600,
            "unknown process id q",
        )
