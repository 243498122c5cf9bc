"""Lines that break, stall and stutter: every byte arrives once, no call outlives its deadline.

``HANDRAIL_CHAOS_SECONDS`` (default 4) and ``HANDRAIL_CHAOS_SEED`` say how long and which.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from handrail.errors import ExecutorTransportFailed, TerminateFailed
from handrail.executor.base import OutputKind, SpawnRequest, WaitReason
from handrail.executor.client.session import ExecServerClient
from handrail.executor.remote import RemoteExecutor
from handrail.process.exit_status import ExitKind
from tests.executor.chaos import ChaosProxy, Mood, chaos
from tests.executor.places import (
    ENV,
    LIMIT,
    Room,
    codex_server,
    collect,
    find_codex,
    remote,
    said,
    serving,
)
from tests.support.eventually import eventually_so

SECONDS = float(os.environ.get("HANDRAIL_CHAOS_SECONDS", "4"))
SEED = int(os.environ.get("HANDRAIL_CHAOS_SEED", "20"))
#: What a call may take, and what a busy machine may add to that.
DEADLINE, SLACK = 20.0, 10.0

Test = Callable[[Room, ChaosProxy], Awaitable[None]]


def run(
    base: Path,
    main: Test,
    mood: Mood | None = None,
    *,
    limit: float = LIMIT,
    seed: int = SEED,
    server: tuple[str, ...] = (),
    **how: Any,
) -> None:
    """A remote executor behind a proxy."""

    async def inside() -> None:
        async with serving(base, *server) as url, chaos(url, seed, Mood()) as proxy:
            executor = await RemoteExecutor.connect(proxy.url, **how)
            proxy.mood = mood or Mood()
            try:
                async with asyncio.timeout(limit):
                    await main(Room(executor, "websocket", base), proxy)
            finally:
                proxy.mood = Mood()
                proxy.open.set()
                await executor.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(inside())


_SEQUENCE = hashlib.sha256(b"".join(b"%d\n" % n for n in range(1, 400_001))).hexdigest()


class Load:
    """Work whose every byte is known beforehand, until the time is up."""

    def __init__(self, room: Room, until: float) -> None:
        self.room = room
        self.until = until
        self.done = 0
        self.longest = 0.0

    async def timed(self, work: Awaitable[Any]) -> Any:
        began = time.monotonic()
        async with asyncio.timeout(DEADLINE + SLACK):
            result = await work
        self.longest = max(self.longest, time.monotonic() - began)
        return result

    async def talkers(self, number: int) -> None:
        """Programs that write on both streams, less than the retention."""
        while time.monotonic() < self.until:
            lines = 1000 + 500 * number
            script = (
                f"i=0; while [ $i -lt {lines} ]; do echo {number}-$i-xxxxxxxxxxxxxxxxxxxxxxxxxxxx;"
                " i=$((i+1)); done; echo over >&2; exit 7"
            )
            session = await self.timed(self.room.sh(script))
            out, err = await self.timed(collect(session))
            expected = b"".join(b"%d-%d-" % (number, i) + b"x" * 28 + b"\n" for i in range(lines))
            assert out == expected
            assert err == b"over\n"
            assert (await self.timed(session.wait())).code == 7
            self.done += 1

    async def floods(self) -> None:
        """Programs that write far more than the retention, on a server that has them wait."""
        while time.monotonic() < self.until:
            session = await self.timed(self.room.sh("seq 400000"))
            out, _ = await self.timed(collect(session))
            assert hashlib.sha256(out).hexdigest() == _SEQUENCE
            self.done += 1

    async def dialogue(self, number: int) -> None:
        """A program that says back what it hears; each line once."""
        session = await self.timed(self.room.sh("cat"))
        replies = aiter(session.subscribe_output())
        heard = sent = b""
        count = 0
        while time.monotonic() < self.until:
            line = b"%d says %d\n" % (number, count)
            await self.timed(session.write(line))
            sent += line
            count += 1
            while len(heard) < len(sent):
                event = await self.timed(anext(replies))
                assert event.omitted == 0
                heard += event.data
            assert heard == sent
            self.done += 1
        await self.timed(session.terminate())
        assert (await self.timed(session.wait())).kind is ExitKind.TERMINATED

    async def waiters(self, number: int) -> None:
        """The same by waiting for each line, which says what came and where."""
        session = await self.timed(self.room.sh("cat"))
        count = position = 0
        while time.monotonic() < self.until:
            line = b"%d waits for %d\n" % (number, count)
            await self.timed(session.write(line))
            found = await self.timed(
                session.wait_for("never", rf"waits for {count}$", timeout=DEADLINE, start=position)
            )
            assert (found.reason, found.pattern) == (WaitReason.PATTERN, 1)
            assert found.match == b"waits for %d" % count
            assert found.position == position + len(line) - (1 if count == 0 else 0)
            position = found.position
            count += 1
            self.done += 1
        quiet = await self.timed(session.wait_for("never", idle=0.05, timeout=DEADLINE))
        assert quiet.reason is WaitReason.IDLE
        await self.timed(session.terminate())

    async def files(self, number: int) -> None:
        """Files that are written and read back."""
        files, path = self.room.executor.files, f"{self.room.base}/file-{number}"
        count = 0
        while time.monotonic() < self.until:
            data = (b"%d:%d " % (number, count)) * 20_000
            await self.timed(files.write(path, data))
            assert await self.timed(files.read(path)) == data
            count += 1
            self.done += 1


@pytest.mark.timeout(SECONDS + 120)
def test_every_byte_arrives_once_through_a_bad_line(tmp_path: Path) -> None:
    async def main(room: Room, proxy: ChaosProxy) -> None:
        load = Load(room, time.monotonic() + SECONDS)
        await asyncio.gather(
            *(load.talkers(n) for n in range(4)),
            *(load.dialogue(n) for n in range(4)),
            *(load.waiters(n) for n in range(3)),
            *(load.files(n) for n in range(2)),
            *([load.floods()] if "onLag" in room.executor.client.extensions else []),  # type: ignore[attr-defined]
        )
        resumed = room.executor.client.resumed  # type: ignore[attr-defined]
        print(
            f"seed {SEED}: {load.done} pieces of work, {proxy.cuts} cuts, {resumed} resumes,"
            f" longest call {load.longest:.2f} s"
        )
        assert proxy.cuts > 0
        assert resumed > 0

    run(
        tmp_path,
        main,
        Mood(cut=0.03, stall=0.01, split=0.05, delay=0.1),
        limit=SECONDS + 2 * (DEADLINE + SLACK),
        request_timeout=DEADLINE,
    )


def test_a_line_that_stands_still_does_not_hold_a_call(tmp_path: Path) -> None:
    async def main(room: Room, proxy: ChaosProxy) -> None:
        session = await room.sh("echo ready; cat")
        await said(session, b"ready")
        proxy.open.clear()
        with pytest.raises(TerminateFailed, match=r"no answer to process/terminate within 1 s"):
            await session.terminate()
        with pytest.raises(ExecutorTransportFailed, match="for fs/getMetadata within"):
            await room.executor.files.read("/etc/hostname")
        proxy.open.set()
        assert (await session.wait()).code == 137  # it was sent again

    run(tmp_path, main, request_timeout=1)


def test_output_that_came_while_nobody_was_connected(tmp_path: Path) -> None:
    async def main(room: Room, proxy: ChaosProxy) -> None:
        script = "mkfifo a; echo one; read x <a; echo two; echo err >&2; touch written; exit 3"
        session = await room.sh(script)
        await said(session, b"one")
        proxy.refusing = True
        proxy.cut_all()
        (room.base / "a").write_text("\n")
        await eventually_so((room.base / "written").exists, "the file is there")
        proxy.refusing = False
        assert await collect(session) == (b"one\ntwo\n", b"err\n")
        assert (await session.wait()).code == 3

    run(tmp_path, main)


def test_what_the_retention_dropped_is_told(tmp_path: Path) -> None:
    async def main(room: Room, proxy: ChaosProxy) -> None:
        session = await room.sh(
            "mkfifo a; echo one; read x <a; head -c 5000000 /dev/zero; touch written; cat",
            on_lag="drop",
        )
        await said(session, b"one")
        proxy.refusing = True
        proxy.cut_all()
        (room.base / "a").write_text("\n")
        await eventually_so((room.base / "written").exists, "the file is there")
        proxy.refusing = False
        await session.write(b"end")
        total = omitted = 0
        async for event in session.subscribe_output():
            total += len(event.data)
            omitted += event.omitted
            if event.data.endswith(b"end"):
                break
        assert omitted > 0
        assert total + omitted == 4 + 5_000_000 + 3
        await session.terminate()

    run(tmp_path, main)


def test_a_write_that_was_cut_is_written_once(tmp_path: Path) -> None:
    async def main(room: Room, proxy: ChaosProxy) -> None:
        session = await room.sh("cat")
        for number in range(20):
            writing = asyncio.ensure_future(session.write(b"%d\n" % number))
            await asyncio.sleep(0)
            proxy.cut_all()
            await writing
        await said(session, b"19\n")
        await session.close_stdin()
        out, _ = await collect(session)
        assert out == b"".join(b"%d\n" % n for n in range(20))

    run(tmp_path, main)


def test_a_start_that_was_cut_happens_once(tmp_path: Path) -> None:
    async def main(room: Room, proxy: ChaosProxy) -> None:
        for number in range(10):
            starting = asyncio.ensure_future(room.sh(f"echo {number} >>starts; echo {number}"))
            await asyncio.sleep(0.001 * number)
            proxy.cut_all()
            session = await starting
            assert await collect(session) == (b"%d\n" % number, b"")
        starts = (room.base / "starts").read_text().split()
        assert starts == [str(n) for n in range(10)]

    run(tmp_path, main)


def test_no_way_back(tmp_path: Path) -> None:
    async def main(room: Room, proxy: ChaosProxy) -> None:
        session = await room.sh("echo ready; cat")
        await said(session, b"ready")
        proxy.refusing = True
        proxy.cut_all()
        with pytest.raises(ExecutorTransportFailed, match=r"^executor transport failure: "):
            await session.wait()
        with pytest.raises(ExecutorTransportFailed, match="could not be taken up again"):
            await collect(session)
        with pytest.raises(ExecutorTransportFailed):
            await room.executor.files.list("/")

    run(tmp_path, main, recovery_window=0.5, server=("--detach-ttl", "2"))


def test_a_session_that_was_ended_meanwhile(tmp_path: Path) -> None:
    async def main(room: Room, proxy: ChaosProxy) -> None:
        session = await room.sh("echo $$ > pid; echo ready; exec cat")
        await said(session, b"ready")
        pid = (room.base / "pid").read_text().strip()
        proxy.refusing = True
        proxy.cut_all()
        # It ends after its session.
        await eventually_so(lambda: not os.path.exists(f"/proc/{pid}"), "the process ends")
        proxy.refusing = False
        with pytest.raises(ExecutorTransportFailed, match="unknown session id"):
            await session.wait()

    run(tmp_path, main, server=("--detach-ttl", "0.1"))


def test_two_clients_and_one_session(tmp_path: Path) -> None:
    async def main(room: Room, proxy: ChaosProxy) -> None:
        session = await room.sh("echo before; cat", process_id="mine")
        await said(session, b"before")
        executor = room.executor
        assert isinstance(executor, RemoteExecutor)
        session_id, secret = await executor.detach()
        client = await ExecServerClient.connect(
            proxy.url, session_id=session_id, resume_secret=secret
        )
        other = RemoteExecutor(client)
        try:
            again = await other.attach("mine")
            await again.write(b"after\n")
            await said(again, b"after")
            events = [(e.kind, e.data) for e in [await anext(again.subscribe_output())]]
            assert events == [(OutputKind.STDOUT, b"before\n")]
            request = SpawnRequest("another", ("/bin/true",), "/", ENV)
            assert (await (await other.spawn(request)).wait()).code == 0
        finally:
            await other.close()

    run(tmp_path, main)


@pytest.mark.skipif(find_codex() is None, reason="no Codex here; set $CODEX")
def test_a_session_of_the_released_server_is_taken_up_again(tmp_path: Path) -> None:
    async def inside() -> None:
        async with (
            codex_server(tmp_path) as url,
            chaos(url, SEED) as proxy,
            remote(proxy.url) as far,
        ):
            room = Room(far, "codex", tmp_path)
            session = await room.sh("cat")
            for number in range(10):
                writing = asyncio.ensure_future(session.write(b"%d\n" % number))
                await asyncio.sleep(0)
                proxy.cut_all()
                await writing
                await said(session, b"%d\n" % number)
            assert far.client.resumed > 0
            await session.terminate()
            assert (await collect(session))[0] == b"".join(b"%d\n" % n for n in range(10))

    async def main() -> None:
        async with asyncio.timeout(LIMIT):
            await inside()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@pytest.mark.skipif(find_codex() is None, reason="no Codex here; set $CODEX")
def test_what_the_released_server_has_dropped_fails_that_process_alone(tmp_path: Path) -> None:
    async def inside() -> None:
        async with (
            codex_server(tmp_path) as url,
            chaos(url, SEED) as proxy,
            remote(proxy.url) as far,
        ):
            room = Room(far, "codex", tmp_path)
            other = await room.sh("cat")
            session = await room.sh(
                "mkfifo a; echo one; read x <a; head -c 5000000 /dev/zero; touch written; cat"
            )
            await said(session, b"one")
            proxy.refusing = True
            proxy.cut_all()
            (tmp_path / "a").write_text("\n")
            await eventually_so((tmp_path / "written").exists, "the file is there")
            proxy.refusing = False
            with pytest.raises(
                ExecutorTransportFailed, match="no longer retained while recovering"
            ):
                await session.wait()
            await other.write(b"still here")
            await said(other, b"still here")
            await other.terminate()

    async def main() -> None:
        async with asyncio.timeout(LIMIT):
            await inside()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
