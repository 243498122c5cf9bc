"""D of the fault matrix, row by row, against a real server; D4 and D10 have files of their own."""

from __future__ import annotations

import asyncio
import base64
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import SocketClient, dialled
from tests.support.eventually import LIMIT, eventually
from tests.support.processes import alive, until_ended, zombies
from tests.support.servers import ServerProcess, server_process

READY = "echo ready; while :; do sleep 0.01; done"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    state = tmp_path_factory.mktemp("rows") / "state"
    with server_process(state, "--log-level", "info") as server:
        yield server
        assert server.stop() == (0, b"")


async def extended(client: SocketClient) -> SocketClient:
    """One that is told our members too."""
    await client.handshake(resumeSecret=None)
    return client


@pytest.mark.parametrize("tty", [False, True], ids=["pipes", "tty"])
async def test_d1_one_that_ignores_term_is_killed_after_its_grace(
    server: ServerProcess, tty: bool
) -> None:
    async with dialled(server.url, handshake=False) as raw:
        client = await extended(raw)
        name = f"deaf {tty}"
        await client.shell(name, f"trap '' TERM HUP; {READY}", tty=tty)
        await client.until_output(name, b"ready")
        await client.call("process/terminate", processId=name, graceMs=100)
        exited = await client.until_exited(name)
        assert exited["exit"] == {
            "kind": "terminated",
            "code": 137,
            "signal": "SIGKILL",
            "coreDumped": False,
        }
        # Its client is told of the exit first.
        killed = f"process '{name}': did not end within its grace, killed"
        await asyncio.to_thread(eventually, lambda: killed in server.words(), killed)
        assert f"process '{name}': asked to end, with 0.1 s of grace" in server.words()
        await client.call("session/close")


@pytest.mark.parametrize("tty", [False, True], ids=["pipes", "tty"])
async def test_d2_one_that_cleans_up_is_heard_to_the_end(server: ServerProcess, tty: bool) -> None:
    async with dialled(server.url) as client:
        # Its own child cleans up too, longer than it does itself.
        loop = "echo listening; while :; do sleep 0.01; done"
        helper = f"(trap 'sleep 0.1; echo helper; exit 0' TERM; {loop}) &"
        script = f"trap '' HUP; {helper} trap 'echo cleaned; exit 7' TERM; {READY}"
        await client.shell("p", script, tty=tty)
        for word in (b"ready", b"listening"):
            await client.until_output("p", word)
        await client.call("process/terminate", processId="p", graceMs=30_000)
        events = await client.until_closed("p")
        assert next(e for e in events if e["kind"] == "exited")["exitCode"] == 7
        words = client.output("p")
        assert b"cleaned" in words
        assert b"helper" in words


async def test_d3_an_exit_by_terminate_is_the_same_on_pipes_and_in_a_terminal(
    server: ServerProcess,
) -> None:
    async with dialled(server.url, handshake=False) as raw:
        client = await extended(raw)
        exits = []
        for tty in (False, True):
            await client.start(str(tty), "sleep", "600", tty=tty)
            await client.call("process/terminate", processId=str(tty))
            exits.append((await client.until_exited(str(tty)))["exit"])
        assert exits[0] == exits[1]
        assert (exits[0]["code"], exits[0]["signal"]) == (137, "SIGKILL")


async def test_d5_a_background_job_outlives_its_leader_and_no_session(
    server: ServerProcess,
) -> None:
    async with dialled(server.url) as client:
        script = "setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $!"
        jobs = []
        for name in ("p", "q"):
            await client.shell(name, script)
            await client.until_closed(name)
            jobs.append(int(client.output(name)))
        rows = (await client.call("process/list"))["processes"]
        assert [(row["processId"], row["orphans"]) for row in rows] == [("p", 1), ("q", 1)]
        # As the wire has it.
        assert await client.call("process/terminate", processId="p") == {"running": False}
        assert all(alive(job) for job in jobs)
        # Ours.
        answer = await client.call("process/terminate", processId="p", tree=True)
        assert answer == {"running": False}
        await until_ended(jobs[0])
        assert alive(jobs[1])
        rows = (await client.call("process/list"))["processes"]
        assert [(row["processId"], row["orphans"]) for row in rows] == [("p", 0), ("q", 1)]
        await client.call("session/close")
        await until_ended(jobs[1])


@pytest.mark.parametrize("tty", [False, True], ids=["pipes", "tty"])
async def test_d6_a_grandchild_that_holds_the_pipe(server: ServerProcess, tty: bool) -> None:
    async with dialled(server.url, handshake=False) as raw, dialled(server.url) as plain:
        client = await extended(raw)
        script = "trap '' HUP; setsid sleep 600 & echo $!; exit 5"
        for one in (client, plain):
            await one.shell("p", script, tty=tty)
            began = time.monotonic()
            assert (await one.until_exited("p"))["exitCode"] == 5
            exited = time.monotonic()
            assert one._event("p", "closed") is None
            await one.until_closed("p")
            closed = time.monotonic()
        print(f"\nexited after {exited - began:.3f} s, closed {closed - exited:.2f} s later")
        assert client._event("p", "closed")["heldOpen"] is True  # type: ignore[index]
        # One that speaks the wire alone is told nothing it does not know.
        assert plain._event("p", "closed").keys() == {"kind", "processId", "seq"}  # type: ignore[union-attr]
        page = await client.read("p")
        assert (page["closed"], page["heldOpen"]) == (True, True)
        (row,) = (await client.call("process/list"))["processes"]
        assert (row["state"], row["heldOpen"], row["orphans"]) == ("closed", True, 1)
        for one in (client, plain):
            holder = int(one.output("p").split()[0])
            assert alive(holder)
            await one.call("process/terminate", processId="p", tree=True)
            await until_ended(holder)


async def test_d6_who_writes_on_does_not_notice_the_close(
    server: ServerProcess, tmp_path: Path
) -> None:
    async with dialled(server.url) as client:
        # Far more than any pipe holds: it would stop, or die of SIGPIPE.
        late = f"read l < {tmp_path}/go; head -c 3000000 /dev/zero; echo written > {tmp_path}/done"
        os.mkfifo(tmp_path / "go")
        await client.shell("p", f"setsid sh -c '{late}' & exit 0")
        events = await client.until_closed("p")
        (tmp_path / "go").write_text("now\n")
        await asyncio.to_thread(eventually, (tmp_path / "done").exists, "it wrote all of it")
        assert client.events("p") == events


async def test_d7_a_full_stdin_stops_nobody_but_its_writer(server: ServerProcess) -> None:
    async with dialled(server.url) as client:
        await client.start("p", "sleep", "600", pipeStdin=True)
        await client.start("cat", "cat", pipeStdin=True)
        data = base64.b64encode(bytes(65536)).decode()
        writes = [
            client.post("process/write", processId="p", chunk=data, writeId=str(number))
            for number in range(200)
        ]
        await client.write("cat", b"hello", "1")
        await client.until_output("cat", b"hello")
        assert await client.call("environment/status") == {"status": "ready"}
        accepted = sum(write.done() for write in writes)
        assert 64 < accepted < 200
        assert await client.call("process/terminate", processId="p") == {"running": True}
        async with asyncio.timeout(LIMIT):
            answers = await asyncio.gather(*writes, return_exceptions=True)
        assert {"status": "accepted"} in answers
        # Those that waited are told, not left alone.
        assert all(getattr(a, "code", None) == -32603 for a in answers if not isinstance(a, dict))
        print(f"\n{accepted} writes of 64 KiB accepted, the others refused with the end")


async def test_d7_a_full_stdin_says_so_to_whoever_asks(server: ServerProcess) -> None:
    async with dialled(server.url) as client:
        await client.start("p", "sleep", "600", pipeStdin=True)
        data = base64.b64encode(bytes(65536)).decode()
        write = {"processId": "p", "chunk": data, "onFull": "busy"}
        accepted = 0
        while (answer := await client.call("process/write", **write, writeId=str(accepted))) == {
            "status": "accepted"
        }:
            accepted += 1
        assert answer["status"] == "busy"
        assert 0 <= answer["freeBytes"] < 65536
        print(f"\n{accepted} writes of 64 KiB accepted, then busy with {answer['freeBytes']} free")
        # What was accepted stays so, and nothing else is held up.
        assert await client.call("process/write", **write, writeId="0") == {"status": "accepted"}
        assert await client.call("environment/status") == {"status": "ready"}
        assert await client.call("process/terminate", processId="p") == {"running": True}


async def test_d8_a_write_id_is_applied_once(server: ServerProcess) -> None:
    async with dialled(server.url) as client:
        await client.start("once", "cat", pipeStdin=True)
        for data in (b"first ", b"first ", b"other "):
            assert await client.write("once", data, "the same") == "accepted"
        await client.write("once", b"last", "another")
        await client.until_output("once", b"last")
        assert client.output("once") == b"first last"
        assert "write id 'the same' of process 'once' came again with other bytes" in server.words()


async def test_d11_an_id_that_is_taken_and_one_that_failed(server: ServerProcess) -> None:
    async with dialled(server.url) as client:
        await client.start("p", "sleep", "600")
        code, text = await client.refused("process/start", client.start_params("p", "true"))
        assert (code, text) == (-32600, "process p already exists")
        code, text = await client.refused("process/start", client.start_params("q", "/nowhere"))
        assert code == -32603
        assert "/nowhere" in text
        await client.start("q", "true")
        await client.until_closed("q")


async def test_d12_a_directory_that_cannot_be_used(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "removed").mkdir()
    async with dialled(server.url) as client:
        for tty in (False, True):
            for name in ("missing", "file"):
                where = tmp_path / name
                params = client.start_params("x", "true", cwd=where.as_uri(), tty=tty)
                code, text = await client.refused("process/start", params)
                assert code == -32603
                assert str(where) in text
        await client.start("p", "cat", pipeStdin=True, cwd=(tmp_path / "removed").as_uri())
        (tmp_path / "removed").rmdir()
        await client.write("p", b"still here", "1")
        await client.until_output("p", b"still here")


@pytest.mark.parametrize(
    "members",
    [
        {"env": {"A=B": "c"}},
        {"env": {"": "c"}},
        {"env": {"A\0": "c"}},
        {"env": {"A": "c\0d"}},
        {"argv": ["true", "a\0b"]},
        {"argv": ["tr\0ue"]},
        {"arg0": "a\0b"},
    ],
    ids=str,
)
async def test_d13_what_no_process_can_be_given(
    server: ServerProcess, members: dict[str, Any]
) -> None:
    async with dialled(server.url) as client:
        params = {**client.start_params("p", "true"), **members}
        code, _ = await client.refused("process/start", params)
        assert code == -32602
        await client.start("p", "true")


@pytest.mark.parametrize("where", ["argv", "env"])
async def test_d14_too_much_of_it(server: ServerProcess, where: str) -> None:
    async with dialled(server.url) as client:
        words = ["x" * 100_000] * 60
        params = client.start_params("p", "true", *(words if where == "argv" else ()))
        if where == "env":
            params["env"] = {f"V{n}": word for n, word in enumerate(words)}
        code, text = await client.refused("process/start", params)
        assert code == -32603
        assert f"at most {os.sysconf('SC_ARG_MAX')} bytes" in text
        params = client.start_params("p", "true", "x" * 131_072)  # fewer bytes, one word
        assert (
            "longer than 131071; give it by stdin"
            in (await client.refused("process/start", params))[1]
        )
        await client.start("p", "true")
        await client.until_closed("p")


async def test_d15_many_started_and_ended_leave_nothing(server: ServerProcess) -> None:
    """The thousands of the row are left to the benchmark; what would grow, grows here too."""
    keeper = server.keeper()

    def open_files() -> tuple[int, int]:
        return len(os.listdir(f"/proc/{server.pid}/fd")), len(os.listdir(f"/proc/{keeper}/fd"))

    def at_most(before: tuple[int, int]) -> bool:
        """Fewer is possible: the connection before may have been on its way out."""
        return all(now <= then for now, then in zip(open_files(), before, strict=True))

    async def burst(client: SocketClient, count: int) -> None:
        names = [f"p{number}" for number in range(count)]
        for name in names:
            client.post("process/start", client.start_params(name, "true", tty=name[-1] == "0"))
        for name in names:
            await client.until_closed(name)
        await client.call("session/close")

    async with dialled(server.url) as client:
        await burst(client, 100)
    async with dialled(server.url) as client:
        before = open_files()
        rss = server.rss()
        began = time.monotonic()
        await burst(client, 1000)
        spent = time.monotonic() - began
        await asyncio.to_thread(eventually, lambda: at_most(before), "no more than before")
        assert zombies(keeper) == set()
        print(f"\n{1000 / spent:.0f} processes a second; RSS {rss} -> {server.rss()} bytes")
        assert server.rss() < rss * 1.1 + 2_000_000


async def test_d16_a_terminal_hangs_up_first(server: ServerProcess) -> None:
    async with dialled(server.url) as client:
        script = f"trap 'echo hup' HUP; trap 'echo term' TERM; {READY}"
        await client.shell("p", script, tty=True)
        await client.until_output("p", b"ready")
        await client.call("process/terminate", processId="p", graceMs=int(LIMIT * 1000))
        await client.until_output("p", b"term")
        await client.call("process/terminate", processId="p")
        await client.until_closed("p")
        words = client.output("p").split()
        assert words.index(b"hup") < words.index(b"term")
        assert client._event("p", "exited")["exitCode"] == 137  # type: ignore[index]
