"""``detach`` of process/start: a process that outlives its session, and is found again."""

from __future__ import annotations

from tests.support.clients import chunks_of
from tests.support.eventually import spin
from tests.support.processes import alive, until_ended
from tests.support.servers import serving


async def test_a_detached_process_outlives_its_session() -> None:
    async with serving() as served:
        client = await served.client()
        script = "echo before; read l; echo $l; exit 6"
        await client.shell("keep", script, detach=True, pipeStdin=True)
        await client.start("end", "sleep", "600")
        await client.until_output("keep", b"before")
        rows = (await client.call("process/list"))["processes"]
        assert [row["detached"] for row in rows] == [False, False]
        pids = {row["processId"]: row["pid"] for row in rows}
        await client.call("session/close")
        await until_ended(pids["end"])
        assert alive(pids["keep"])
        # Another session of the same client lists it, and has it once it names it.
        other = await served.client()
        (row,) = (await other.call("process/list"))["processes"]
        assert (row["processId"], row["pid"], row["detached"]) == ("keep", pids["keep"], True)
        assert chunks_of(await other.read("keep")) == b"before\n"
        (row,) = (await other.call("process/list"))["processes"]
        assert row["detached"] is False
        # From then on it is told of what happens.
        await other.write("keep", b"after\n", "1")
        await other.until(lambda: other._event("keep", "closed"))
        assert other.output("keep") == b"after\n"
        assert other._event("keep", "exited")["exitCode"] == 6  # type: ignore[index]


async def test_nobody_else_finds_it() -> None:
    async with serving() as served:
        client = await served.client("mine")
        await client.start("p", "sleep", "600", detach=True)
        await client.call("session/close")
        other = await served.client("theirs")
        assert (await other.call("process/list"))["processes"] == []
        assert (await other.refused("process/read", processId="p"))[0] == -32600
        assert await other.call("process/terminate", processId="p") == {"running": False}
        again = await served.client("mine")
        assert await again.call("process/terminate", processId="p") == {"running": True}
        await again.until_exited("p")


async def test_two_of_one_name_are_both_kept() -> None:
    async with serving() as served:
        for _ in range(2):
            client = await served.client()
            await client.start("p", "sleep", "600", detach=True)
            await client.call("session/close")
        client = await served.client()
        rows = (await client.call("process/list"))["processes"]
        assert [row["processId"] for row in rows] == ["p", "p (2)"]
        # An id of one's own comes first.
        await client.start("p", "true")
        await client.until_closed("p")
        await client.call("process/terminate", processId="p (2)")
        await client.until_exited("p (2)")


async def test_one_that_has_ended_is_forgotten_in_time() -> None:
    async with serving(retention=0.02) as served:
        client = await served.client()
        await client.shell("p", "read l", detach=True, pipeStdin=True)
        (child,) = served.server.sessions.children()
        await client.call("session/close")
        assert served.server.sessions.children() == [child]
        await child.ending.kill()
        await spin(lambda: served.server.sessions.children() == [])
        # One that had closed goes with its session.
        other = await served.client()
        await other.start("q", "true", detach=True)
        await other.until_closed("q")
        await other.call("session/close")
        assert served.server.sessions.children() == []


async def test_it_ends_with_the_server() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "sleep", "600", detach=True)
        (child,) = served.server.sessions.children()
        pid = child.pid
        await client.call("session/close")
        assert alive(pid)
    assert not alive(pid)


async def test_its_orphans_are_listed_after_it_was_forgotten() -> None:
    """Who outlives a leader that nobody remembers is still listed, and can still be ended."""
    async with serving(retention=0.02) as served:
        client = await served.client()
        await client.shell("p", "setsid sleep 600 >/dev/null 2>&1 & echo $!")
        await client.until_closed("p")
        (session,) = served.server.sessions._sessions.values()
        await spin(session.table.left_behind)
        (row,) = (await client.call("process/list"))["processes"]
        assert (row["processId"], row["state"], row["orphans"]) == ("p", "closed", 1)
        job = int(client.output("p"))
        answer = await client.call("process/terminate", processId="p", tree=True)
        assert answer == {"running": False}
        await until_ended(job)
        assert (await client.call("process/list"))["processes"] == []
