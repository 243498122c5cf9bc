"""Workspaces of a real server: create, enter, release, adopt, leases, and the next server."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.server.workspaces.support import create, listed, options, path_of, ran, stored
from tests.support.clients import Refused, dialled
from tests.support.eventually import LIMIT, eventually_so
from tests.support.processes import alive, ended
from tests.support.servers import ServerProcess, server_process


async def test_a_workspace_from_its_creation_to_its_release(tmp_path: Path) -> None:
    with server_process(tmp_path / "s", *options(tmp_path / "d")) as server:
        async with (
            dialled(server.url, handshake=False) as control,
            dialled(server.url, handshake=False) as line,
        ):
            info = await control.handshake()
            assert info["environmentInfo"]["capabilities"]["handrail"]["workspaces"] is True
            await line.handshake()
            assert (await control.call("workspace/hold", owner="o"))["incarnation"]
            made = await create(line, "one", labels={"k": "v"}, cpuMillis=1000, enter=True)
            root, temporary = path_of(made["root"]), path_of(made["temporary"])
            assert made["sessionId"] == line.session
            assert made["warm"] is False
            assert root.is_dir()
            assert temporary.is_dir()
            assert not list(root.iterdir())
            again = await create(line, "one", enter=True)
            assert again["root"] == made["root"], "the same id and owner are the same workspace"
            assert (
                await ran(line, "p", made, "pwd; echo $TMPDIR") == f"{root}\n{temporary}\n".encode()
            )
            await line.shell("long", "sleep 300", cwd=made["root"])
            (entry,) = (await listed(control, labels={"k": "v"})).values()
            assert entry["held"]
            assert entry["running"] == 1
            assert entry["processes"] == 2
            assert not await listed(control, labels={"k": "x"})
            assert (await control.call("workspace/list"))["share"]["freeCpuMillis"] == 3000
            await control.call("workspace/release", workspaceId="one", owner="o")
            assert not root.exists()
            assert not await listed(control)
            assert (await control.call("workspace/list"))["share"]["freeCpuMillis"] == 4000
            await control.call("workspace/release", workspaceId="one", owner="o")


async def test_a_shared_session_goes_on_to_the_next_workspace(tmp_path: Path) -> None:
    with server_process(tmp_path / "s", *options(tmp_path / "d")) as server:
        async with dialled(server.url, handshake=False) as line:
            await line.handshake()
            first = await create(line, "a", enter=True, shared=True)
            await line.shell("p", "sleep 300", cwd=first["root"])
            with pytest.raises(Refused, match="release that first"):
                await create(line, "b", enter=True)
            await line.call("workspace/release", workspaceId="a", owner="o")
            second = await create(line, "b", enter=True, shared=True)
            assert (
                await ran(line, "p", second, "pwd") == os.fsencode(path_of(second["root"])) + b"\n"
            )
            await line.shell("q", "sleep 300", cwd=second["root"])
            third = await create(line, "c", enter=True, shared=True, releases="b")
            assert not path_of(second["root"]).exists()
            assert await ran(line, "q", third, "pwd; ls") == (
                os.fsencode(path_of(third["root"])) + b"\n"
            )
            with pytest.raises(Refused):  # the third is released whatever becomes of the next
                await create(line, "d", enter=True, template="0" * 64, releases="c")
            assert await listed(line) == {}
            assert stored(tmp_path / "d") == set()


async def test_a_daemon_ends_with_the_workspace_that_the_next_one_releases(tmp_path: Path) -> None:
    with server_process(tmp_path / "s", *options(tmp_path / "d")) as server:
        async with dialled(server.url) as line:
            daemon = "setsid sleep 300 </dev/null >/dev/null 2>&1 & echo $!"
            last, pid = None, 0
            for script in ("echo 0", daemon, "echo 0", daemon, daemon, "echo 0"):
                made = await create(line, enter=True, shared=True, releases=last)
                assert not pid or not alive(pid)
                assert set(await listed(line)) == {made["id"]}
                last, pid = made["id"], int(await ran(line, "p", made, script))
                assert not pid or alive(pid)
            await line.call("workspace/release", {"workspaceId": last, "owner": "o"})
            assert await listed(line) == {}
            assert stored(tmp_path / "d") == set()


async def test_the_last_place_is_given_once(tmp_path: Path) -> None:
    share = "cpus=2,memory=1GiB,workspaces=3"
    with server_process(tmp_path / "s", *options(tmp_path / "d", share=share)) as server:
        async with (
            dialled(server.url, handshake=False) as one,
            dialled(server.url, handshake=False) as two,
        ):
            await one.handshake()
            await two.handshake()
            made = await asyncio.gather(
                *(create(c, cpuMillis=700) for c in (one, two) for _ in range(10)),
                return_exceptions=True,
            )
            refused = [error for error in made if isinstance(error, Refused)]
            assert len(made) - len(refused) == 2
            assert {(e.code, e.data["what"], e.data["never"]) for e in refused} == {
                (-32020, "cpus", False)
            }
            for what, members in (
                ("cpus", {"cpuMillis": 2001}),
                ("memory", {"memoryBytes": 2**40}),
            ):
                with pytest.raises(Refused) as never:
                    await create(one, **members)
                assert never.value.data == {"what": what, "never": True}
            await create(one)
            with pytest.raises(Refused) as full:
                await create(one)
            assert full.value.data["what"] == "workspaces"


async def test_a_full_disk_takes_no_workspace(tmp_path: Path) -> None:
    given = options(tmp_path / "d")[:-1]
    with server_process(tmp_path / "s", *given, str(2**62)) as server:
        async with dialled(server.url, handshake=False) as client:
            await client.handshake()
            with pytest.raises(Refused) as full:
                await create(client)
            assert (full.value.code, full.value.data["what"]) == (-32020, "disk")
            assert (await client.call("workspace/list"))["share"]["freeWorkspaces"] == 100
            refused = 'handrail_workspace_refusals_total{reason="disk"}'
            assert (await asyncio.to_thread(server.metrics))[refused] == 1


async def test_only_its_owner_has_it_until_it_is_adopted(tmp_path: Path) -> None:
    with server_process(tmp_path / "s", *options(tmp_path / "d")) as server:
        async with (
            dialled(server.url, handshake=False) as old,
            dialled(server.url, handshake=False) as new,
        ):
            await old.handshake(resumeSecret=None)
            await new.handshake()
            made = await create(old, "w", labels={"a": "b"}, enter=True)
            await old.shell("p", "echo first; read line; echo $line; exit 7", cwd=made["root"])
            await old.until_output("p", b"first")
            for method in ("workspace/enter", "workspace/release"):
                with pytest.raises(Refused) as other:
                    await new.call(method, workspaceId="w", owner="another")
                assert other.value.data == {"what": "owner"}
            with pytest.raises(Refused) as inside:
                await new.call("workspace/enter", workspaceId="w", owner="o")
            assert inside.value.data["sessionId"] == old.session
            await new.call("workspace/hold", owner="new")
            adopted = await new.call("workspace/adopt", workspaceId="w", owner="new")
            assert adopted["labels"] == {"a": "b"}
            assert adopted["sessionId"] == old.session
            await old.until_ended()
            assert (await listed(new))["w"]["owner"] == "new"
            async with dialled(server.url, handshake=False) as late:
                with pytest.raises(Refused, match="unknown session"):
                    await late.handshake(resumeSessionId=old.session, resumeSecret=old.secret)
            async with dialled(server.url, handshake=False) as line:
                await line.handshake(
                    resumeSessionId=adopted["sessionId"], resumeSecret=adopted["resumeSecret"]
                )
                assert (await line.call("process/list"))["processes"][0]["processId"] == "p"
                page = await line.read("p", waitMs=10_000)
                assert page["chunks"][0]["seq"] == 1
            with pytest.raises(Refused) as gone:
                await new.call("workspace/adopt", workspaceId="other", owner="new")
            assert gone.value.data == {"what": "gone"}


async def test_a_lease_runs_while_no_connection_holds_its_owner(tmp_path: Path) -> None:
    ticks = tmp_path / "ticks"
    with server_process(tmp_path / "s", *options(tmp_path / "d")) as server:
        async with dialled(server.url, handshake=False) as watcher:
            await watcher.handshake()
            async with (
                dialled(server.url, handshake=False) as control,
                dialled(server.url, handshake=False) as line,
            ):
                await control.handshake()
                await line.handshake()
                await control.call("workspace/hold", owner="o")
                made = await create(line, "w", leaseMs=1, enter=True)
                await create(line, "long", leaseMs=600_000)
                await line.shell("p", f"echo $$ > {ticks}; exec sleep 300", cwd=made["root"])
                pid = await eventually_so(lambda: ticks.exists() and ticks.read_text().strip())
                assert (await listed(watcher))["w"]["held"]
            async with asyncio.timeout(20):
                while "w" in await listed(watcher):  # noqa: ASYNC110 (it is asked, not told)
                    await asyncio.sleep(0.05)
            assert not path_of(made["root"]).exists()
            assert not alive(int(pid))
            assert not (await listed(watcher))["long"]["held"]


async def test_the_next_server_goes_on_with_records_sessions_and_leases(tmp_path: Path) -> None:
    given = options(tmp_path / "d", "--detach-ttl", "0.1")
    with server_process(tmp_path / "s", *given) as server:
        async with (
            dialled(server.url, handshake=False) as control,
            dialled(server.url, handshake=False) as line,
        ):
            await control.handshake()
            await line.handshake(resumeSecret=None)
            before = await control.call("workspace/hold", owner="o")
            made = await create(line, "w", cpuMillis=1500, labels={"n": "1"}, enter=True)
            await create(line, "short", owner="gone", leaseMs=1_000_000)
            (path_of(made["root"]) / "mark").write_text("here")
            await line.shell("done", "echo over; exit 3", cwd=made["root"])
            await line.until_closed("done")
            await line.shell("p", "echo a; sleep 300", cwd=made["root"])
            await line.until_output("p", b"a")
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
        after = ServerProcess(tmp_path / "s", *given)
        try:
            async with (
                dialled(after.url, handshake=False) as control,
                dialled(after.url, handshake=False) as again,
            ):
                await control.handshake()
                assert await control.call("workspace/hold", owner="o") == before
                entry = (await listed(control))["w"]
                assert entry["labels"] == {"n": "1"}
                assert entry["held"]
                assert (await listed(control))["short"]["held"] is False
                share = (await control.call("workspace/list"))["share"]
                assert share["freeCpuMillis"] == 2500
                assert share["freeWorkspaces"] == 98
                assert entry["running"] == 1
                assert entry["processes"] == 2
                await again.handshake(resumeSessionId=line.session, resumeSecret=line.secret)
                page = await again.read("done")
                assert page["exitCode"] == 3
                assert page["chunks"]
                assert await ran(again, "cat", made, "cat mark; echo $TMPDIR") == (
                    b"here" + os.fsencode(path_of(made["temporary"])) + b"\n"
                )
                await control.call("workspace/release", workspaceId="w", owner="o")
                assert not path_of(made["root"]).exists()
        finally:
            after.stop()
            after.close()


async def test_another_incarnation_begins_without_workspaces(tmp_path: Path) -> None:
    given = options(tmp_path / "d")
    with server_process(tmp_path / "s", *given) as server:
        keeper = server.keeper()
        async with dialled(server.url, handshake=False) as line:
            await line.handshake()
            before = await line.call("workspace/hold", owner="o")
            made = await create(line, "w", enter=True)
            await line.shell("p", "exec sleep 300", cwd=made["root"])
            os.kill(server.pid, signal.SIGKILL)
            os.kill(keeper, signal.SIGKILL)
            server.wait()
        after = ServerProcess(tmp_path / "s", *given)
        try:
            async with dialled(after.url, handshake=False) as line:
                await line.handshake()
                assert await line.call("workspace/hold", owner="o") != before
                assert not await listed(line)
                assert not path_of(made["root"]).exists()
        finally:
            after.stop()
            after.close()


async def test_processes_that_have_ended_are_kept_until_the_release(tmp_path: Path) -> None:
    """64 of them; of the others the oldest go."""
    with server_process(tmp_path / "s", *options(tmp_path / "d")) as server:
        async with dialled(server.url, handshake=False) as line:
            await line.handshake()
            made = await create(line, enter=True)
            for number in range(70):
                await line.start(f"p{number}", "true", cwd=made["root"])
                await line.until_closed(f"p{number}")
            async with asyncio.timeout(20):
                while len(found := (await line.call("process/list"))["processes"]) > 64:  # noqa: ASYNC110 (as above)
                    await asyncio.sleep(0.05)
            assert {one["processId"] for one in found} == {f"p{n}" for n in range(6, 70)}


async def test_a_keeper_that_dies_alone_takes_no_workspace_with_it(tmp_path: Path) -> None:
    """Its processes go on or have a known end; the server makes another keeper."""
    with server_process(tmp_path / "s", *options(tmp_path / "d")) as server:
        keeper = server.keeper()
        async with dialled(server.url) as line:
            before = await line.call("workspace/hold", owner="o")
            made = await create(line, "w", enter=True)
            (path_of(made["root"]) / "kept").write_text("k")
            await line.shell("p", "echo a; exec sleep 300", cwd=made["root"])
            await line.until_output("p", b"a")
            os.kill(keeper, signal.SIGKILL)
            async with asyncio.timeout(LIMIT):
                while (await line.call("workspace/list"))["keeperPid"] in (0, keeper):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert await line.call("workspace/hold", owner="o") == before
            found = (await listed(line))["w"]
            assert (found["root"], found["processes"]) == (made["root"], 1)
            assert await ran(line, "q", made, "cat kept") == b"k"
            await line.call("workspace/release", workspaceId="w", owner="o")
            assert not path_of(made["root"]).exists()


@pytest.mark.parametrize("missing", [False, True])
async def test_a_server_without_a_supervisor_ends_everything(tmp_path: Path, missing: bool) -> None:
    given = options(tmp_path / "d", "--on-stop", "keep", "--supervised", "60")
    with server_process(tmp_path / "s", *given) as server:
        async with dialled(server.url, handshake=False) as line:
            await line.handshake()
            made = await create(line, enter=True)
            await line.shell("p", "exec sleep 300", cwd=made["root"])
            stamp = tmp_path / "d" / "stamp"
            if missing:
                stamp.unlink()
            else:
                os.utime(stamp, (1, 1))
            await line.until_ended()
        await asyncio.to_thread(server.wait)
        assert not path_of(made["root"]).exists()
        assert not stored(tmp_path / "d")
        assert not os.listdir(tmp_path / "d" / "w")


async def test_a_server_without_a_directory_offers_no_workspaces(tmp_path: Path) -> None:
    with server_process(tmp_path / "s") as server:
        async with dialled(server.url, handshake=False) as client:
            info = await client.handshake()
            assert info["environmentInfo"]["capabilities"]["handrail"]["workspaces"] is False
            assert (await client.refused("workspace/list"))[0] == -32601


async def test_an_upgrade_keeps_workspaces(tmp_path: Path) -> None:
    with server_process(tmp_path / "s", *options(tmp_path / "d")) as server:
        async with dialled(server.url, handshake=False) as line:
            await line.handshake(resumeSecret=None)
            before = await line.call("workspace/hold", owner="o")
            made = await create(line, "w", enter=True)
            await line.shell("p", "echo a; exec sleep 300", cwd=made["root"])
            await line.until_output("p", b"a")
            os.kill(server.pid, signal.SIGUSR2)
            await line.until_ended()
        async with dialled(server.url, handshake=False) as again:
            await again.handshake(resumeSessionId=line.session, resumeSecret=line.secret)
            assert await again.call("workspace/hold", owner="o") == before
            assert (await listed(again))["w"]["running"] == 1
            pid = (await again.call("workspace/list"))["serverPid"]
            assert pid != server.pid
            os.kill(pid, signal.SIGTERM)
            await again.until_ended()
        assert await asyncio.to_thread(ended, pid)
        assert not path_of(made["root"]).exists()


async def test_a_server_that_is_killed_at_work_leaves_no_half_workspace(tmp_path: Path) -> None:
    """What was answered is there; what was not is there whole, or not at all."""
    given = options(tmp_path / "d", share="cpus=1,memory=1GiB,workspaces=1000")
    with server_process(tmp_path / "s", *given) as server:
        async with dialled(server.url) as client:
            calls = [
                client.post("workspace/create", {"workspaceId": f"k{n}", "owner": "o"})
                for n in range(300)
            ]
            await calls[40]
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
            await client.until_ended()
            answered = {f"k{n}" for n, c in enumerate(calls) if c.done() and not c.cancelled()}
        after = ServerProcess(tmp_path / "s", *given)
        try:
            async with dialled(after.url) as client:
                found = await listed(client)
                assert answered <= found.keys()
                names = {path_of(one["root"]).parent.name for one in found.values()}
                assert set(os.listdir(tmp_path / "d" / "w")) == names
                free = (await client.call("workspace/list"))["share"]["freeWorkspaces"]
                assert free == 1000 - len(found)
        finally:
            after.stop()
            after.close()
