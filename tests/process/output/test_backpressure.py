"""A reader that lags: the child waits for it, or goes on and the gap is told."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.process.child import Child
from handrail.process.output.backpressure import Window
from handrail.process.output.output_log import RETENTION_BYTES, RETENTION_CHUNKS, Chunk, OutputLog
from handrail.process.output.spool import STEP
from handrail.process.spec import OnLag
from tests.process.workshop import Recorder, Workshop, python, sh, spec
from tests.support.processes import status

BOTH = pytest.mark.parametrize("tty", [False, True], ids=["pipes", "tty"])


def _numbers(last: int, end: bytes = b"\n") -> bytes:
    return b"".join(b"%d%b" % (n, end) for n in range(1, last + 1))


# --- the window ----------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, STEP), st.integers(0, 40)), max_size=200))
def test_a_window_never_lets_unacknowledged_output_be_dropped(
    steps: list[tuple[int, int]],
) -> None:
    log = OutputLog()
    window = Window(log)
    at = 0
    for size, ack in steps:
        if window.open:
            log.append(0, at, size)
            at += size
        assert log.dropped_seq <= window.acknowledged
        window.acknowledge(1, window.acknowledged + ack)
        assert window.acknowledged < log.next_seq


@given(st.permutations([(1, 3), (4, 4), (5, 9), (6, 12), (10, 10), (13, 20)]))
def test_what_arrived_counts_when_nothing_before_it_is_missing(
    parts: list[tuple[int, int]],
) -> None:
    log = OutputLog()
    for _ in range(20):
        log.append(0, log.bytes_total, 1)
    window = Window(log)
    seen: set[int] = set()
    for first, last in parts:
        window.acknowledge(first, last)
        seen |= set(range(first, last + 1))
        assert window.acknowledged == next(n for n in range(21) if n + 1 not in seen)


def test_a_window_counts_chunks_too() -> None:
    log = OutputLog()
    window = Window(log)
    while window.open:
        log.append(0, log.bytes_total, 1)
    assert log.dropped_seq == 0
    assert log.next_seq > RETENTION_CHUNKS - 100
    assert window.acknowledge(1, 100)


# --- block ---------------------------------------------------------------------------------------


@BOTH
@pytest.mark.both_loops
async def test_block_waits_without_anybody_attached(shop: Workshop, tty: bool) -> None:
    """Acknowledged bit by bit, everything comes, and nothing is ever omitted."""

    last = 400_000
    child = await shop.start(spec("seq", "1", str(last), tty=tty, on_lag=OnLag.BLOCK))
    got = b""
    after = 0
    while True:
        await shop.until(lambda: child.output.blocked or child.closed, "it waits")
        assert child.output.log.retained <= RETENTION_BYTES
        assert child.output.log.omitted(after) == (0, 0)
        page = child.output.log.read(after, 200_000)
        got += b"".join(child.output.read_chunk(chunk) for chunk in page.chunks)
        after = page.next_seq - 1
        if child.closed and after == child.output.log.next_seq - 1:
            break
        assert child.output.unread
        child.output.acknowledge(1, after)
    assert got == _numbers(last, b"\r\n" if tty else b"\n")
    assert len(got) > 2 * RETENTION_BYTES
    child.output.acknowledge(1, after)
    assert not child.output.unread


async def test_block_stops_the_child_itself(shop: Workshop) -> None:
    child = await shop.start(spec("yes", on_lag=OnLag.BLOCK))
    await shop.until(lambda: child.output.blocked, "the window is full")
    await shop.until(lambda: status(child.pid)["State"][0] == "S", "the child waits")
    taken = child.output.log.bytes_total
    assert RETENTION_BYTES - 2 * STEP < taken <= RETENTION_BYTES
    # Others are not held up, and an end of the sink changes nothing.
    _, other = await shop.done(sh("echo other"))
    assert other.out == b"other\n"
    child.output.resume()
    await shop.until(lambda: child.output.blocked, "still full")
    assert child.output.log.bytes_total == taken
    # What was acknowledged is room for as much.
    child.output.acknowledge(1, child.output.log.next_seq - 1)
    await shop.until(lambda: child.output.blocked, "full again")
    assert child.output.log.bytes_total > taken + RETENTION_BYTES - 2 * STEP
    await child.ending.kill()
    await shop.exited(child)


async def test_block_takes_what_is_left_after_the_exit(shop: Workshop) -> None:
    script = "import os; os.write(1, bytes(%d)); os.write(2, b'end')"
    # Window full when it exits: the rest of the pipe is numbered after the exit.
    size = RETENTION_BYTES + 40_000
    child = await shop.start(python(script % size, on_lag=OnLag.BLOCK))
    await shop.exited(child)
    assert not child.closed
    seen = 0
    after = 0
    while not child.closed:
        page = child.output.log.read(after, None)
        seen += sum(chunk.size for chunk in page.chunks)
        after = page.next_seq - 1
        child.output.acknowledge(1, after)
        if not child.closed:
            await child.changed(1.0)
    seen += sum(chunk.size for chunk in child.output.log.read(after, None).chunks)
    assert seen == size + 3
    assert child.output.log.omitted(0)[0] <= size


async def test_a_closed_process_that_waits_stays_until_it_is_read(shop: Workshop) -> None:
    shop.table._retention = 0.02
    kept = await shop.start(sh("echo kept", on_lag=OnLag.BLOCK))
    gone = await shop.start(sh("echo gone"))
    await shop.finished(kept)
    await shop.finished(gone)
    await shop.until(lambda: shop.table.get(gone.key) is None, "one is forgotten")
    assert shop.table.get(kept.key) is kept
    kept.output.acknowledge(1, kept.output.log.next_seq - 1)
    await shop.until(lambda: shop.table.get(kept.key) is None, "now the other too")


# --- drop ----------------------------------------------------------------------------------------


@dataclass
class Gapped(Recorder):
    """A sink that is told of gaps, and takes ``room`` chunks before it is not ready."""

    room: int = 10**9
    lost: int = 0
    lost_chunks: int = 0
    last: int = 0

    def output(self, child: Child, chunk: Chunk) -> None:
        assert self.ready
        if child.output.gap is not None:
            size, chunks = child.output.gap
            assert size > 0 < chunks
            self.lost += size
            self.lost_chunks += chunks
            self.last += chunks
        self.data["stdout"] += child.output.read_chunk(chunk)
        self._number(chunk.seq, "output")
        self.room -= 1
        self.ready = self.room > 0

    def _number(self, seq: int, what: str) -> None:
        self.last += 1
        assert seq == self.last, "a gap that was not told"
        self.events.append((seq, what))


@pytest.mark.both_loops
async def test_drop_never_waits_and_tells_the_gap(shop: Workshop) -> None:
    sink = Gapped(room=3)
    child = await shop.start(spec("seq", "1", "1000000", on_lag=OnLag.DROP), sink)
    await shop.finished(child)
    assert not child.output.blocked
    assert len(sink.events) == 3
    wanted = _numbers(1_000_000)
    assert child.output.log.bytes_total == len(wanted)
    while "closed" not in sink.kinds:
        assert sink.stalled
        sink.room = 2
        sink.resume()
    assert sink.lost > 4_000_000
    assert sink.lost + len(sink.out) == len(wanted)
    # The start, a hole of the size that was told, and the end.
    head = sink.out[: len(sink.out) - child.output.log.retained]
    assert wanted.startswith(head)
    assert wanted.endswith(sink.out[len(head) :])
    assert sink.kinds[-2:] == ["exited", "closed"]


async def test_drop_with_a_sink_that_comes_and_goes(shop: Workshop) -> None:
    seed = random.randrange(2**32)
    choose = random.Random(seed)
    sink = Gapped(room=2)
    child = await shop.start(spec("seq", "1", "2000000", on_lag=OnLag.DROP), sink)
    while "closed" not in sink.kinds:
        if sink.stalled:
            sink.room = choose.randrange(1, 12)
            sink.resume()
        await asyncio.sleep(0)
    assert sink.lost + len(sink.out) == len(_numbers(2_000_000)), seed
    assert sink.kinds.count("exited") == 1
    assert child.closed


async def test_drop_without_a_sink_forgets_that_it_was_behind(shop: Workshop) -> None:
    sink = Gapped(room=1)
    child = await shop.start(
        python(
            "import sys; sys.stdout.write('x' * 9000000); input()",
            on_lag=OnLag.DROP,
            pipe_stdin=True,
        ),
        sink,
    )
    await shop.until(lambda: child.output.log.bytes_total > 8_000_000, "it went on")
    child.sink = None
    child.output.resume()
    late = Recorder()
    await shop.until(lambda: child.output.log.bytes_total == 9_000_000, "all of it")
    child.sink = late
    late.events = [(0, "")] * (child.output.log.next_seq - 1)
    child.stdin.write(b"\n", lambda: True)
    await shop.finished(child)
    assert late.kinds[-2:] == ["exited", "closed"]
    assert late.out == b""
