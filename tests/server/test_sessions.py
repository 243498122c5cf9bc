"""Sessions: resume, take-over, detach, expiry and end (exec-server.md 3, B1 and B2)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from handrail.server import sessions
from handrail.server_settings import Listen
from tests.support.clients import MemoryClient, Refused, b64, chunks_of
from tests.support.eventually import spin
from tests.support.gates import gate
from tests.support.processes import children, until_ended
from tests.support.servers import Served, serving

LONG = 3_600_000


async def lose(client: MemoryClient) -> str:
    """Drop the line; the id of the session it had."""
    client.abort()
    await client.until_ended()
    return client.session


async def pid_of(client: MemoryClient, process_id: str = "p") -> int:
    rows = (await client.call("process/list"))["processes"]
    return next(int(row["pid"]) for row in rows if row["processId"] == process_id)


# --- resume -----------------------------------------------------------------------------------


async def test_a_session_outlives_its_connection() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "cat", pipeStdin=True)
        await client.write("p", b"before ", "1")
        await client.until_output("p", b"before ")
        session = await lose(client)
        again = await served.client(resumeSessionId=session)
        assert again.session == session
        assert await again.write("p", b"after", "2") == "accepted"
        # Notifications go on where the processes are, and what came before can be read.
        await again.until_output("p", b"after")
        assert again.output("p") == b"after"
        assert chunks_of(await again.read("p")) == b"before after"


async def test_a_session_is_resumed_again_and_again() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "cat", pipeStdin=True)
        for number in range(10):
            session = await lose(client)
            client = await served.client(resumeSessionId=session)
            await client.write("p", b"%d" % number, str(number))
            await client.until_output("p", b"%d" % number)
        assert chunks_of(await client.read("p")) == b"0123456789"
        assert len(served.server.sessions) == 1


async def test_a_close_with_a_goodbye_detaches_too() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "sleep", "600")
        await client.close()
        again = await served.client(resumeSessionId=client.session)
        assert (await again.read("p"))["exited"] is False


async def test_catching_up_has_no_gap(tmp_path: Path) -> None:
    """Counters, a cut in the middle, and both halves together are the whole."""
    with gate(tmp_path / "gate") as held:
        async with serving() as served:
            client = await served.client()
            wait = f"read l < {held.path}"
            script = f"seq 1 20000; {wait}; seq 20001 40000; {wait}; seq 40001 60000"
            await client.shell("p", script)
            await client.until_output("p", b"\n1000\n")
            await spin(lambda: client.output("p").count(b"\n") >= 1000)
            session = await lose(client)
            events = client.events("p")
            last = events[-1]["seq"]
            assert [event["seq"] for event in events] == list(range(1, last + 1))
            held.open()  # produced while nobody is there
            again = await served.client(resumeSessionId=session)
            held.open()
            data = client.output("p") + await again.read_to_close("p", last)
            assert data == b"".join(b"%d\n" % number for number in range(1, 60_001))
            # What was notified on the new connection fits into what was read.
            notified = {e["seq"]: e for e in again.events("p")}
            assert again._event("p", "closed") is not None
            assert set(notified) == set(range(min(notified), max(notified) + 1))


async def test_an_exit_while_nobody_is_there_is_not_lost(tmp_path: Path) -> None:
    with gate(tmp_path / "gate") as held:
        async with serving() as served:
            client = await served.client()
            await client.shell("p", f"read l < {held.path}; echo out; exit 9")
            session = await lose(client)
            held.open()
            (child,) = served.server.sessions.children()
            await spin(lambda: child.closed)
            again = await served.client(resumeSessionId=session)
            page = await again.read("p")
            assert (page["exited"], page["exitCode"], page["closed"]) == (True, 9, True)
            assert chunks_of(page) == b"out\n"
            assert again.events("p") == []


async def test_a_child_that_waited_for_a_slow_client_goes_on_without_it() -> None:
    async with serving() as served:
        client = await served.client()
        await client.shell("p", "head -c 5000000 /dev/zero; echo done")
        client.transport.pause_reading()
        (child,) = served.server.sessions.children()
        await spin(lambda: child.output.blocked)
        session = await lose(client)
        again = await served.client(resumeSessionId=session)
        while not (page := await again.read("p", afterSeq=2**64 - 1, waitMs=LONG))["closed"]:
            pass
        page = await again.read("p")
        assert chunks_of(page).endswith(b"done\n")
        assert page["omitted"]["bytes"] + len(chunks_of(page)) == 5_000_005


async def test_long_polls_of_the_dead_do_not_delay_a_resume() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "sleep", "600")
        for _ in range(10):
            client.post("process/read", processId="p", waitMs=LONG)
        await client.call("environment/status")
        again = await served.client(resumeSessionId=await lose(client))
        assert (await again.read("p"))["exited"] is False


# --- who may not --------------------------------------------------------------------------------


async def test_an_unknown_session() -> None:
    async with serving() as served:
        client = served.dial()
        for session in ("nosuch", "", "00000000-0000-4000-8000-000000000000", "ü\n"):
            answer = await client.refused("initialize", clientName="x", resumeSessionId=session)
            assert answer == (-32600, f"unknown session id {session}")


async def test_a_session_that_is_attached() -> None:
    async with serving() as served:
        first = await served.client()
        await first.start("p", "cat", pipeStdin=True)
        second = served.dial()
        attached = (-32010, f"session {first.session} is already attached to another connection")
        params = {"clientName": "x", "resumeSessionId": first.session}
        assert await second.refused("initialize", params) == attached
        # Nor with a secret, when the first never asked for one.
        for secret in (None, "", "guess", "ü"):
            answer = await second.refused("initialize", {**params, "resumeSecret": secret})
            assert answer == attached
        # The first is untouched.
        await first.write("p", b"mine", "1")
        await first.until_output("p", b"mine")
        await lose(first)
        assert (await second.call("initialize", params))["sessionId"] == first.session


async def test_somebody_elses_session() -> None:
    async with serving() as served:
        mine = await served.client("alice", resumeSecret=None)
        for state in ("attached", "detached"):
            theirs = served.dial("mallory")
            answer = await theirs.refused(
                "initialize",
                clientName="x",
                resumeSessionId=mine.session,
                resumeSecret=mine.secret,
            )
            # As if it were not there.
            assert answer == (-32600, f"unknown session id {mine.session}"), state
            if state == "attached":
                await lose(mine)
        again = await served.client("alice", resumeSessionId=mine.session)
        assert again.session == mine.session


async def test_twenty_race_and_one_wins() -> None:
    async with serving() as served:
        session = await lose(await served.client())
        racers = [served.dial() for _ in range(20)]
        answers = await asyncio.gather(
            *(r.post("initialize", clientName="x", resumeSessionId=session) for r in racers),
            return_exceptions=True,
        )
        won = [a for a in answers if not isinstance(a, BaseException)]
        assert [result["sessionId"] for result in won] == [session]
        assert {str(a) for a in answers if isinstance(a, BaseException)} == {
            f"-32010 session {session} is already attached to another connection"
        }


# --- take-over ----------------------------------------------------------------------------------


async def test_the_secret_takes_a_session_over() -> None:
    async with serving() as served:
        first = await served.client(resumeSecret=None)
        await first.start("p", "cat", pipeStdin=True)
        await first.write("p", b"first ", "1")
        await first.until_output("p", b"first ")
        poll = first.post("process/read", processId="p", afterSeq=1, waitMs=LONG)
        await first.call("environment/status")
        second = await served.client(resumeSessionId=first.session, resumeSecret=first.secret)
        assert second.session == first.session
        # The one who had it is told why it has to go.
        end = await first.until_ended()
        assert "1008" in end
        assert "taken over" in end
        assert poll.cancelled()
        # The stream has moved.
        await second.write("p", b"second", "2")
        await second.until_output("p", b"second")
        assert first.output("p") == b"first "
        assert chunks_of(await second.read("p")) == b"first second"


async def test_the_secret_changes_at_each_resume() -> None:
    async with serving() as served:
        first = await served.client(resumeSecret=None)
        second = await served.client(resumeSessionId=first.session, resumeSecret=first.secret)
        assert second.secret
        assert second.secret != first.secret
        # The old one is worth nothing any more.
        third = served.dial()
        params = {"clientName": "x", "resumeSessionId": first.session}
        code, _ = await third.refused("initialize", {**params, "resumeSecret": first.secret})
        assert code == -32010
        await third.handshake(resumeSessionId=first.session, resumeSecret=second.secret)
        assert third.secret not in (first.secret, second.secret)
        assert await third.call("environment/status") == {"status": "ready"}


async def test_a_detached_session_needs_no_secret() -> None:
    async with serving() as served:
        first = await served.client(resumeSecret=None)
        session = await lose(first)
        again = await served.client(resumeSessionId=session)
        assert "resumeSecret" not in again.messages[0]["result"]


async def test_a_taken_over_connection_cannot_reach_the_session() -> None:
    async with serving() as served:
        first = await served.client(resumeSecret=None)
        await first.start("p", "sleep", "600")
        side = served.connection(first)
        second = await served.client(resumeSessionId=first.session, resumeSecret=first.secret)
        sent: list[bytes] = []
        side.transport.send = lambda *parts: sent.append(b"".join(parts))  # type: ignore[method-assign]
        side.message('{"id":7,"method":"process/terminate","params":{"processId":"p"}}')
        assert b"-32600" in sent[0]
        assert (await second.read("p"))["exited"] is False


async def test_a_child_blocked_by_the_old_client_runs_for_the_new_one() -> None:
    async with serving() as served:
        first = await served.client(resumeSecret=None)
        await first.shell("p", "head -c 5000000 /dev/zero; echo done")
        first.transport.pause_reading()
        (child,) = served.server.sessions.children()
        await spin(lambda: child.output.blocked)
        second = await served.client(resumeSessionId=first.session, resumeSecret=first.secret)
        await second.until_output("p", b"done\n")
        first.transport.resume_reading()
        await second.until(lambda: second._event("p", "closed"))


# --- the end ------------------------------------------------------------------------------------


async def test_a_detached_session_ends_with_its_time() -> None:
    async with serving(detach_ttl=0.05) as served:
        client = await served.client()
        await client.shell("p", "setsid sleep 600 & echo $!; exec sleep 600")
        await client.until_output("p", b"\n")
        family = [await pid_of(client), int(client.output("p"))]
        session = await lose(client)
        for pid in family:
            await until_ended(pid)
        late = served.dial()
        answer = await late.refused("initialize", clientName="x", resumeSessionId=session)
        assert answer == (-32600, f"unknown session id {session}")
        assert len(served.server.sessions) == 0


async def test_an_attached_session_does_not_end() -> None:
    async with serving(detach_ttl=0.0) as served:
        other = await served.client()
        client = await served.client()
        await client.start("p", "sleep", "600")
        await lose(other)  # ends at once, and nobody else with it
        await spin(lambda: len(served.server.sessions) == 1)
        assert (await client.read("p"))["exited"] is False


async def test_the_time_begins_anew_with_each_detach() -> None:
    async with serving() as served:
        client = await served.client()
        session = await lose(client)
        (kept,) = served.server.sessions._sessions.values()
        first = kept.timer
        assert first is not None
        client = await served.client(resumeSessionId=session)
        assert kept.timer is None
        assert first.cancelled()
        await lose(client)
        assert kept.timer is not None
        assert kept.timer.when() - asyncio.get_running_loop().time() > 20


async def test_a_client_may_ask_for_another_time() -> None:
    async with serving(detach_ttl=0.05) as served:
        patient = await served.client(detachTtlMs=LONG)
        hasty = await served.client(detachTtlMs=0)
        for client in (patient, hasty):
            await client.start("p", "sleep", "600")
        pid = await pid_of(hasty)
        await lose(hasty)
        await lose(patient)
        await until_ended(pid)
        again = await served.client(resumeSessionId=patient.session)
        assert (await again.read("p"))["exited"] is False
        for wish in (10**15, 2**64 - 1):
            client = await served.client(detachTtlMs=wish)
            assert served.connection(client).session is not None
            assert served.connection(client).session.ttl == sessions.LONGEST_TTL  # type: ignore[union-attr]


async def ended_session(served: Served, client: MemoryClient) -> None:
    late = served.dial()
    code, _ = await late.refused("initialize", clientName="x", resumeSessionId=client.session)
    assert code == -32600


async def test_closing_a_session() -> None:
    async with serving() as served:
        client = await served.client()
        await client.shell("p", "setsid sleep 600 & echo $!; exec sleep 600")
        await client.start("q", "sleep", "600", tty=True)
        await client.until_output("p", b"\n")
        family = [await pid_of(client), await pid_of(client, "q"), int(client.output("p"))]
        poll = client.post("process/read", processId="q", waitMs=LONG)
        assert await client.call("session/close") == {}
        for pid in family:
            await until_ended(pid)
        # Whoever waited is answered, and nothing else is to be had.
        done, _ = await asyncio.wait([poll], timeout=30)
        assert done
        for method, params in (
            ("process/list", {}),
            ("process/read", {"processId": "p"}),
            ("process/start", client.start_params("r", "true")),
            ("session/close", {}),
        ):
            code, text = await client.refused(method, params)
            assert code == -32600
            assert "closed" in text
        await ended_session(served, client)
        assert len(served.server.sessions) == 0


async def test_a_poll_is_answered_though_the_exit_never_becomes_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "sleep", "600")
        monkeypatch.setattr(served.server.launcher, "_exited", lambda _: None)
        poll = client.post("process/read", processId="p", waitMs=LONG)
        assert await client.call("session/close") == {}
        with pytest.raises(Refused, match="closed") as caught:
            await asyncio.wait_for(poll, 30)
        assert caught.value.code == -32600


async def test_a_client_that_closes_its_session_and_goes_is_obeyed() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "sleep", "600")
        pid = await pid_of(client)
        side = served.connection(client)
        side.message('{"id":77,"method":"session/close"}')
        client.abort()
        await until_ended(pid)
        await ended_session(served, client)


async def test_a_start_under_way_does_not_outlive_its_session() -> None:
    async with serving() as served:
        client = await served.client()
        params = client.start_params("p", "sleep", "600")
        starts = [client.post("process/start", {**params, "processId": str(n)}) for n in range(10)]
        close = client.post("session/close")
        await asyncio.wait([*starts, close], timeout=30)
        assert close.result() == {}
        listing = await served.server.launcher.orphans()
        assert listing == {}
        keeper = served.server.launcher.link._pid
        await spin(lambda: not children(keeper))


@pytest.mark.parametrize("kind", ["unix", "stdio"])
async def test_stopping_gives_grace_where_there_is_time(kind: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    async with serving(listen=Listen(kind)) as served:
        client = await served.client()
        script = f"trap 'echo bye > {mark}; exit 0' TERM; echo ready; while :; do sleep 0.01; done"
        await client.shell("p", script)
        await client.until_output("p", b"ready")
    # The parent of a server on stdio is gone already.
    assert mark.exists() is (kind == "unix")


@pytest.mark.parametrize("size", [0, 1, 100_000])
async def test_a_write_and_a_disconnect_at_once(size: int) -> None:
    """The message is either applied whole or not at all."""
    async with serving() as served:
        client = await served.client()
        await client.start("p", "cat", pipeStdin=True)
        client.post("process/write", processId="p", chunk=b64(b"x" * size), writeId="1")
        again = await served.client(resumeSessionId=await lose(client))
        assert await again.write("p", b"x" * size, "1") == "accepted"
        await again.call("process/closeStdin", processId="p")
        assert await again.read_to_close("p") == b"x" * size


async def test_a_secret_is_good_until_the_next_has_arrived() -> None:
    """The answer that brings it may be lost with the line, again and again."""
    async with serving() as served:
        first = await served.client(resumeSecret=None)
        session = await lose(first)
        params = {"clientName": "x", "resumeSessionId": session, "resumeSecret": first.secret}
        lost = served.dial()
        await lost.call("initialize", **params)
        for _ in range(2):  # the line before is still there, for all we know
            again = served.dial()
            last = await again.call("initialize", **params)
        again.notify("initialized", {})
        assert await again.call("environment/status") == {"status": "ready"}
        late = served.dial()
        assert (await late.refused("initialize", params))[0] == -32010
        await late.call("initialize", **{**params, "resumeSecret": last["resumeSecret"]})
