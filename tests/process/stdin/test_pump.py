"""Bytes into a pipe: in order, in their turn, never blocking."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from handrail.errors import StdinClosed
from handrail.process.stdin.log import StdinLog
from handrail.process.stdin.pump import QUEUE_BYTES, QUEUE_CHUNKS, StdinPump
from tests.support.coroutines import run
from tests.support.eventually import LIMIT, eventually_so


class Bench:
    """A pump on a pipe, and who reads the other end."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.read, self.write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.closed = 0
        self.pump = StdinPump(self.write, self.loop, self._on_close)
        self.accepted: list[bytes] = []

    def _on_close(self, fd: int) -> None:
        assert fd == self.write
        self.closed += 1
        os.close(fd)

    def put(self, data: bytes, yes: bool = True) -> asyncio.Future[None] | None:
        def accept() -> bool:
            self.accepted.append(data)
            return yes

        return self.pump.put(data, accept)

    def fill(self) -> bytes:
        """Fill the pipe and the queue, so that the next one has to wait; what was put."""
        put = b""
        for number in range(QUEUE_CHUNKS + 1):
            data = b"%07d\n" % number * (8192 if number == 0 else 1)
            assert self.put(data) is None
            put += data
        assert self.pump.full
        return put

    def take(self, most: int = 1 << 20) -> bytes:
        try:
            return os.read(self.read, most)
        except BlockingIOError:
            return b""

    async def take_all(self, size: int) -> bytes:
        got = b""
        async with asyncio.timeout(LIMIT):
            while len(got) < size:
                got += self.take()
                await asyncio.sleep(0)
        return got

    async def take_to_the_end(self) -> bytes:
        got = b""
        async with asyncio.timeout(LIMIT):
            while True:
                try:
                    part = os.read(self.read, 1 << 20)
                except BlockingIOError:
                    await asyncio.sleep(0)
                    continue
                if not part:
                    return got
                got += part

    def end(self) -> None:
        self.pump.close()
        if self.read >= 0:
            os.close(self.read)
        assert self.closed == 1

    def hang_up(self) -> None:
        os.close(self.read)
        self.read = -1


Run = Callable[[Callable[[Bench], Any]], None]


@pytest.fixture(params=["uvloop", "asyncio"])
def bench(request: pytest.FixtureRequest) -> Iterator[Run]:
    def runner(main: Callable[[Bench], Any]) -> None:
        async def work() -> None:
            bench = Bench()
            try:
                await main(bench)
            finally:
                bench.end()
            await asyncio.sleep(0)

        run(work(), request.param)

    return runner


def test_small_writes_go_at_once(bench: Run) -> None:
    async def main(b: Bench) -> None:
        assert b.put(b"one") is None
        assert b.put(b"two") is None
        assert b.put(b"") is None
        assert b.take() == b"onetwo"

    bench(main)


def test_what_is_not_accepted_is_not_written(bench: Run) -> None:
    async def main(b: Bench) -> None:
        b.put(b"one", yes=False)
        b.put(b"two")
        assert b.take() == b"two"
        assert b.accepted == [b"one", b"two"]

    bench(main)


def test_order_over_many_megabytes_with_a_slow_reader(bench: Run) -> None:
    async def main(b: Bench) -> None:
        rng = random.Random(5)
        pieces = [os.urandom(rng.choice([1, 100, 70_000, 400_000])) for _ in range(60)]

        async def write() -> None:
            for piece in pieces:
                turn = b.put(piece)
                if turn is not None:
                    await turn

        task = asyncio.create_task(write())
        wanted = b"".join(pieces)
        assert await b.take_all(len(wanted)) == wanted
        await task
        assert b.accepted == pieces

    bench(main)


def test_a_full_queue_makes_the_next_wait_and_then_go_in_turn(bench: Run) -> None:
    async def main(b: Bench) -> None:
        put = b.fill()
        turns = [b.put(b"turn%d;" % n) for n in range(5)]
        assert all(turn is not None and not turn.done() for turn in turns)
        assert len(b.accepted) == QUEUE_CHUNKS + 1
        last = b"turn0;turn1;turn2;turn3;turn4;"
        got = await b.take_all(len(put) + len(last))
        assert got == put + last
        async with asyncio.timeout(LIMIT):
            await asyncio.gather(*filter(None, turns))
        assert b.accepted[-5:] == [b"turn%d;" % n for n in range(5)]

    bench(main)


def test_queue_is_bounded_in_bytes_too(bench: Run) -> None:
    async def main(b: Bench) -> None:
        big = os.urandom(QUEUE_BYTES + 100_000)
        assert b.put(big) is None
        turn = b.put(b"next")
        assert turn is not None
        assert await b.take_all(len(big) + 4) == big + b"next"
        await turn

    bench(main)


def test_one_who_left_before_the_turn_leaves_no_trace(bench: Run) -> None:
    async def main(b: Bench) -> None:
        put = b.fill()
        turns = [b.put(b"turn%d;" % n) for n in range(4)]
        for turn in (turns[0], turns[2]):
            assert turn is not None
            turn.cancel()
        wanted = put + b"turn1;turn3;"
        assert await b.take_all(len(wanted)) == wanted
        assert b.accepted[-2:] == [b"turn1;", b"turn3;"]
        assert b"turn0;" not in b.accepted
        b.put(b"after")
        assert await b.take_all(5) == b"after"

    bench(main)


def test_a_waiting_one_that_is_known_by_then_is_not_written(bench: Run) -> None:
    async def main(b: Bench) -> None:
        put = b.fill()
        refused = b.put(b"again", yes=False)
        then = b.put(b"then")
        assert await b.take_all(len(put) + 4) == put + b"then"
        assert refused is not None
        assert then is not None
        await refused
        await then

    bench(main)


def test_finish_closes_after_what_is_queued(bench: Run) -> None:
    async def main(b: Bench) -> None:
        put = b.fill()
        b.pump.finish()
        assert b.pump.closed
        with pytest.raises(StdinClosed):
            b.put(b"too late")
        assert b.closed == 0
        assert await b.take_to_the_end() == put
        assert b.closed == 1

    bench(main)


def test_finish_closes_after_those_that_waited_before_it(bench: Run) -> None:
    async def main(b: Bench) -> None:
        put = b.fill()
        turns = [b.put(b"turn%d;" % n) for n in range(3)]
        b.pump.finish()
        assert await b.take_to_the_end() == put + b"turn0;turn1;turn2;"
        for turn in turns:
            assert turn is not None
            await turn

    bench(main)


def test_finish_with_nothing_queued_closes_at_once(bench: Run) -> None:
    async def main(b: Bench) -> None:
        b.put(b"last")
        b.pump.finish()
        assert b.closed == 1
        b.pump.finish()
        assert await b.take_to_the_end() == b"last"

    bench(main)


def test_close_drops_the_queue_and_tells_those_who_wait(bench: Run) -> None:
    async def main(b: Bench) -> None:
        b.fill()
        turn = b.put(b"turn")
        b.pump.close()
        assert turn is not None
        with pytest.raises(StdinClosed):
            await turn
        assert b.pump.closed
        with pytest.raises(StdinClosed):
            b.put(b"more")
        assert b.accepted[-1] != b"turn"

    bench(main)


def test_a_broken_pipe_swallows_everything_and_keeps_nobody_waiting(bench: Run) -> None:
    async def main(b: Bench) -> None:
        b.fill()
        turns = [b.put(b"turn%d" % n) for n in range(3)]
        b.hang_up()
        async with asyncio.timeout(LIMIT):
            await asyncio.gather(*filter(None, turns))
        assert b.pump.broken
        assert not b.pump.closed
        assert b.put(b"more") is None
        assert not b.pump.full

    bench(main)


def test_a_pipe_broken_from_the_start(bench: Run) -> None:
    async def main(b: Bench) -> None:
        b.hang_up()
        assert b.put(b"one") is None
        assert b.pump.broken
        assert b.put(b"two") is None
        b.pump.finish()
        assert b.closed == 1

    bench(main)


def test_a_pipe_that_breaks_after_finish_is_closed(bench: Run) -> None:
    async def main(b: Bench) -> None:
        b.fill()
        b.pump.finish()
        b.hang_up()
        await eventually_so(lambda: b.closed, "it lets go of the descriptor")

    bench(main)


def test_abandon_accepts_and_writes_nothing(bench: Run) -> None:
    async def main(b: Bench) -> None:
        b.fill()
        turn = b.put(b"turn")
        b.pump.abandon()
        assert turn is not None
        async with asyncio.timeout(LIMIT):
            await turn
        assert b.put(b"vanishes") is None
        b.pump.abandon()
        while b.take():
            pass
        assert b.put(b"still nothing") is None
        assert b.take() == b""

    bench(main)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_busy_keeper_delays_and_reorders_nothing(loop: str) -> None:
    """Until somebody else has the log, nothing is accepted; then all is, in order."""

    async def main() -> None:
        bench = Bench()
        tries = 0

        def open_log() -> StdinLog:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise BlockingIOError(errno.EAGAIN, "busy")
            return StdinLog()

        bench.pump = StdinPump(bench.write, bench.loop, bench._on_close, open_log)
        turns = [bench.put(word) for word in (b"one ", b"two ", b"three")]
        assert all(turn is not None and not turn.done() for turn in turns)
        bench.pump.finish()
        async with asyncio.timeout(LIMIT):
            await asyncio.gather(*(turn for turn in turns if turn is not None))
        assert await bench.take_all(13) == b"one two three"
        assert bench.closed == 1
        os.close(bench.read)

    run(main(), loop)


def test_what_was_left_for_a_closed_stdin_is_let_go(bench: Run) -> None:
    async def main(b: Bench) -> None:
        log = StdinLog()
        b.pump.close()
        b.pump.revive(log)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(log.fd)

    bench(main)


def test_input_waits_where_there_is_no_memory(bench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sendfile: Callable[..., int] = os.sendfile
    left = 3

    def scarce(*args: Any) -> int:
        nonlocal left
        left -= 1
        if left >= 0:
            raise OSError(errno.ENOMEM, "no memory")
        return sendfile(*args)

    async def main(b: Bench) -> None:
        monkeypatch.setattr(os, "sendfile", scarce)
        assert b.put(b"one") is None
        assert b.put(b"two") is None
        b.pump.finish()
        assert await b.take_to_the_end() == b"onetwo"
        assert not b.pump.broken

    bench(main)
