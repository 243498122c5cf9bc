"""``timeoutMs`` and ``limits`` of process/start, and how an end by one of them is told."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from handrail import process
from handrail.process.keeper_client.answers import Abilities
from handrail.server import quota
from handrail.server_settings import Quota
from tests.support.clients import MemoryClient
from tests.support.gates import gate
from tests.support.processes import until_ended
from tests.support.servers import Served, serving

READY = "echo ready; while :; do sleep 0.01; done"


async def client_of(served: Served) -> MemoryClient:
    return await served.client(resumeSecret=None)


async def exit_of(client: MemoryClient, process_id: str = "p") -> dict[str, Any]:
    exited = (await client.until_exited(process_id))["exit"]
    assert isinstance(exited, dict)
    return exited


def needs(served: Served, limit: str) -> None:
    """Skip where this machine cannot enforce it; that it is refused then is tested below."""
    if limit not in served.server.launcher.abilities.limits:
        pytest.skip(f"no control group for {limit} is delegated to us here")


# --- time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tty", [False, True], ids=["pipes", "tty"])
async def test_a_timeout_ends_the_tree_with_grace(tty: bool) -> None:
    async with serving() as served:
        client = await client_of(served)
        script = f"trap '' HUP; trap 'echo bye; exit 3' TERM; setsid sleep 600 & echo $!; {READY}"
        await client.shell("p", script, tty=tty, timeoutMs=300)
        exited = await exit_of(client)
        assert (exited["kind"], exited["code"], exited["signal"]) == ("timedOut", 3, None)
        assert b"bye" in client.output("p")
        await until_ended(int(client.output("p").split()[0]))
        page = await client.read("p")
        assert page["exit"]["kind"] == "timedOut"
        assert page["exitCode"] == 3


async def test_one_that_is_deaf_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "TIMEOUT_GRACE", 0.05)
    async with serving() as served:
        client = await client_of(served)
        await client.shell("p", f"trap '' TERM; {READY}", timeoutMs=50)
        exited = await exit_of(client)
        assert (exited["kind"], exited["signal"]) == ("timedOut", "SIGKILL")


async def test_no_time_at_all() -> None:
    async with serving() as served:
        client = await client_of(served)
        await client.start("p", "sleep", "600", timeoutMs=0)
        assert (await exit_of(client))["kind"] == "timedOut"


async def test_one_that_ends_in_time_is_none_the_wiser() -> None:
    async with serving() as served:
        client = await client_of(served)
        await client.shell("p", "exit 4", timeoutMs=2**63)
        exited = await exit_of(client)
        assert (exited["kind"], exited["code"]) == ("exited", 4)
        await client.until_closed("p")


async def test_terminate_comes_first(tmp_path: Path) -> None:
    async with serving() as served:
        client = await client_of(served)
        await client.start("p", "sleep", "600", timeoutMs=3_600_000)
        await client.call("process/terminate", processId="p")
        assert (await exit_of(client))["kind"] == "terminated"


async def test_a_session_that_ends_takes_the_timer_along() -> None:
    async with serving() as served:
        client = await client_of(served)
        await client.start("p", "sleep", "600", timeoutMs=100)
        await client.call("session/close")


@pytest.mark.parametrize("bad", [-1, "1", 1.5, True, 2**64])
async def test_a_time_that_is_none(bad: Any) -> None:
    async with serving() as served:
        client = await client_of(served)
        code, text = await client.refused(
            "process/start", client.start_params("p", "true", timeoutMs=bad)
        )
        assert code == -32602
        assert "timeoutMs" in text


# --- limits ---------------------------------------------------------------------------------------


async def test_limits_of_each_process(tmp_path: Path) -> None:
    async with serving() as served:
        client = await client_of(served)
        script = "ulimit -n; ulimit -v; ulimit -t; sh -c 'ulimit -n'"
        given = {"openFiles": 33, "addressSpaceBytes": 512 * 1024 * 1024, "cpuSeconds": 17}
        await client.shell("p", script, limits=given)
        await client.until_closed("p")
        assert client.output("p").split() == [b"33", b"524288", b"17", b"33"]
        # And nobody else has them.
        await client.shell("q", "ulimit -v; ulimit -t")
        await client.until_closed("q")
        assert client.output("q").split() == [b"unlimited", b"unlimited"]


async def test_a_file_may_grow_so_far(tmp_path: Path) -> None:
    async with serving() as served:
        client = await client_of(served)
        script = f"exec head -c 100000 /dev/zero > {tmp_path}/file"
        await client.shell("p", script, limits={"fileBytes": 5000})
        assert (await exit_of(client))["signal"] == "SIGXFSZ"
        assert (tmp_path / "file").stat().st_size == 5000


async def test_processor_time() -> None:
    async with serving() as served:
        client = await client_of(served)
        loop = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
        await client.start("p", sys.executable, "-c", loop, limits={"cpuSeconds": 1})
        # One that ignores the warning is killed a second later.
        exited = await exit_of(client)
        assert (exited["kind"], exited["signal"]) == ("signaled", "SIGKILL")
        assert exited["limit"] == "cpuSeconds"


async def test_more_output_than_it_may_write() -> None:
    async with serving() as served:
        client = await client_of(served)
        await client.start("p", "yes", limits={"outputBytes": 300_000})
        exited = await exit_of(client)
        assert (exited["kind"], exited["signal"]) == ("evicted", "SIGKILL")
        assert exited["limit"] == "outputBytes"
        await client.until_closed("p")
        assert len(client.output("p")) > 300_000
        await client.start(
            "q", "head", "-c", "300000", "/dev/zero", limits={"outputBytes": 300_000}
        )
        assert (await exit_of(client, "q"))["kind"] == "exited"


async def test_memory_of_the_whole_tree() -> None:
    async with serving() as served:
        needs(served, "memory")
        client = await client_of(served)
        limits = {"memoryBytes": 64 * 1024 * 1024}
        eat = "x = bytearray(300_000_000); print(len(x))"
        await client.start("p", sys.executable, "-c", eat, limits=limits)
        exited = await exit_of(client)
        assert (exited["kind"], exited["code"], exited["signal"]) == ("outOfMemory", 137, "SIGKILL")
        # One of the family is the family.
        await client.shell("q", f"{sys.executable} -c '{eat}'; exit $?", limits=limits)
        exited = await exit_of(client, "q")
        assert (exited["kind"], exited["code"]) == ("outOfMemory", 137)
        # A kill on request is not taken for it, nor an exit without trouble.
        await client.start("r", "sleep", "600", limits=limits)
        await client.call("process/terminate", processId="r")
        assert (await exit_of(client, "r"))["kind"] == "terminated"
        await client.start("s", "true", limits=limits)
        assert (await exit_of(client, "s"))["kind"] == "exited"
        # The server has not noticed anything.
        await client.start("t", "true")
        await client.until_closed("t")


async def test_processes_of_the_whole_tree(tmp_path: Path) -> None:
    async with serving() as served:
        needs(served, "pids")
        client = await client_of(served)
        script = "for i in 1 2 3 4 5 6 7 8; do sleep 600 & done; wait"
        await client.shell("p", script, limits={"pids": 4})
        await client.until_output("p", b"fork")
        await client.call("process/terminate", processId="p", tree=True)
        await client.until_exited("p")


async def test_command_that_fails_for_its_limit_of_processes_says_so() -> None:
    many = "for i in 1 2 3 4 5 6 7 8; do sleep 600 & done"
    async with serving() as served:
        needs(served, "pids")
        client = await client_of(served)
        await client.shell("failed", many, limits={"pids": 4})
        ended = await exit_of(client, "failed")
        assert (ended["kind"], ended["limit"]) == ("evicted", "pids")
        await client.shell("coped", f"({many}) 2>&- || exit 0", limits={"pids": 4})
        assert (await exit_of(client, "coped"))["kind"] == "exited"


async def test_what_cannot_be_enforced_is_refused() -> None:
    async with serving() as served:
        served.server.launcher.abilities = Abilities("walk", frozenset({"cpu", "files"}))
        client = await client_of(served)
        for field in ("memoryBytes", "pids"):
            params = client.start_params("p", "true", limits={field: 1000})
            code, text = await client.refused("process/start", params)
            assert code == -32602
            assert f"`limits.{field}` cannot be enforced here" in text
        await client.start("p", "true", limits={"cpuSeconds": 5})


@pytest.mark.parametrize(
    "bad",
    [[], 5, {"memory": 5}, {"pids": 0}, {"pids": -1}, {"cpuSeconds": 1.5}, {"openFiles": "5"}],
    ids=str,
)
async def test_limits_that_are_none(bad: Any) -> None:
    async with serving() as served:
        client = await client_of(served)
        params = client.start_params("p", "true", limits=bad)
        assert (await client.refused("process/start", params))[0] == -32602
        await client.start("p", "true", limits={})


# --- how many -------------------------------------------------------------------------------------


async def test_a_session_may_have_so_many(tmp_path: Path) -> None:
    with gate(tmp_path / "gate") as held:
        async with serving(quota=Quota(session_processes=3)) as served:
            client, other = await client_of(served), await client_of(served)
            for number in range(3):
                await client.shell(f"p{number}", f"read l < {held.path}")
            code, text = await client.refused("process/start", client.start_params("x", "true"))
            assert code == -32603
            assert "this session has 3 running processes" in text
            # Another has its own.
            await other.start("x", "true")
            # One that has exited is not counted, though it can still be read; nor one that failed.
            held.open()
            await client.until(lambda: any(client._event(f"p{n}", "closed") for n in range(3)))
            for _ in range(5):
                await client.refused("process/start", client.start_params("x", "/nowhere"))
            await client.start("x", "sleep", "600")
            assert (await client.refused("process/start", client.start_params("y", "true")))[0]


async def test_a_server_may_have_so_many() -> None:
    async with serving(quota=Quota(processes=2)) as served:
        one, other = await client_of(served), await client_of(served)
        await one.start("p", "sleep", "600")
        await other.start("p", "sleep", "600")
        code, text = await one.refused("process/start", one.start_params("x", "true"))
        assert code == -32603
        assert "the server has 2 running processes" in text
        await other.call("process/terminate", processId="p")
        await other.until_exited("p")
        await one.start("x", "true")


async def test_a_server_may_retain_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "_COUNT_SECONDS", 0.0)
    async with serving(quota=Quota(bytes=900_000)) as served:
        client, other = await client_of(served), await client_of(served)
        await client.start("p", "head", "-c", "3000000", "/dev/zero")
        await client.until_closed("p")
        code, text = await other.refused("process/start", other.start_params("x", "true"))
        assert code == -32603
        assert "bytes of output are retained for all sessions" in text
        await client.call("session/close")
        await other.start("x", "true")


async def test_a_session_may_retain_so_much() -> None:
    async with serving(quota=Quota(session_bytes=900_000)) as served:
        client = await client_of(served)
        await client.start("p", "head", "-c", "3000000", "/dev/zero")
        await client.until_closed("p")
        code, text = await client.refused("process/start", client.start_params("x", "true"))
        assert code == -32603
        assert "bytes of output are retained for this session" in text
