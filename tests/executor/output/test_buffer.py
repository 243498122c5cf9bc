"""The output that is kept, and those who read it at their own pace."""

from __future__ import annotations

import asyncio
import os

import pytest

from handrail.errors import ExecutorTransportFailed
from handrail.executor.base import OutputEvent, OutputKind
from handrail.executor.output import spill as output_spill
from handrail.executor.output.buffer import MEMORY_BYTES, Follower, OutputBuffer
from handrail.process.output.output_log import RETENTION_CHUNKS

OUT, ERR = OutputKind.STDOUT, OutputKind.STDERR


async def everything(follower: Follower) -> list[OutputEvent]:
    return [event async for event in follower]


def test_a_reader_that_lags_is_told_what_it_missed() -> None:
    async def main() -> None:
        history = OutputBuffer(limit=100)
        late, quick = history.follow(), history.follow()
        seen = 0
        for seq in range(1, 51):
            history.add(OUT, b"0123456789", seq)
            event = await anext(quick)
            assert (event.seq, event.omitted) == (seq, 0)
            seen += len(event.data)
        history.end()
        assert seen == 500
        events = await everything(late)
        assert events[0].omitted == 400
        assert sum(len(e.data) + e.omitted for e in events) == 500
        assert (await everything(history.follow()))[0].omitted == 400

    asyncio.run(main())


def test_what_never_arrived_is_told_too() -> None:
    async def main() -> None:
        history = OutputBuffer(limit=100)
        follower = history.follow()
        history.add(OUT, b"a" * 60, 1)
        history.add(OUT, b"", 5, omitted=1000)
        history.add(OUT, b"b" * 10, 6)
        history.end()
        events = await everything(follower)
        assert sum(len(e.data) + e.omitted for e in events) == history.total == 1070
        assert history.since(0) == (1060, b"b" * 10)

    asyncio.run(main())


def test_one_piece_is_kept_however_large() -> None:
    async def main() -> None:
        history = OutputBuffer(limit=10)
        history.add(OUT, b"x" * 50, 1)
        history.end()
        assert (await everything(history.follow()))[0].data == b"x" * 50

    asyncio.run(main())


def test_readers_wait_and_hear_of_the_end() -> None:
    async def main() -> None:
        history = OutputBuffer()
        readers = [asyncio.ensure_future(everything(history.follow())) for _ in range(3)]
        await asyncio.sleep(0)
        history.add(OUT, b"one", 1)
        await asyncio.sleep(0)
        history.end()
        assert [[e.data for e in events] for events in await asyncio.gather(*readers)] == [
            [b"one"]
        ] * 3

    asyncio.run(main())


def test_a_failure_comes_after_what_there_was() -> None:
    async def main() -> None:
        history = OutputBuffer()
        history.add(OUT, b"one", 1)
        history.fail(ExecutorTransportFailed("gone"))
        follower = history.follow()
        assert (await anext(follower)).data == b"one"
        with pytest.raises(ExecutorTransportFailed, match="gone"):
            await anext(follower)

    asyncio.run(main())


def test_output_since_a_position() -> None:
    history = OutputBuffer()
    for seq, data in enumerate((b"abc", b"def", b"ghi"), 1):
        history.add(OUT, data, seq)
    assert history.since(0) == (0, b"abcdefghi")
    assert history.since(4) == (4, b"efghi")
    assert history.since(9) == (9, b"")


def test_a_paced_reader_holds_the_output_back() -> None:
    async def main() -> None:
        moves: list[bool] = []
        history = OutputBuffer(limit=100, gate=moves.append)
        quick, paced = history.follow(), history.follow(paced=True)
        for seq in range(1, 41):  # whoever fills it does not obey: nothing is lost all the same
            history.add(OUT, b"0123456789", seq)
            await anext(quick)
        assert moves == [True]
        for seq in range(1, 35):
            event = await anext(paced)
            assert (event.seq, event.omitted) == (seq, 0)
        assert moves == [True]
        await anext(paced)
        assert moves == [True, False]
        assert history.total - history.dropped == 100

    asyncio.run(main())


def test_a_paced_reader_that_goes_holds_nothing() -> None:
    async def main() -> None:
        moves: list[bool] = []
        history = OutputBuffer(limit=100, gate=moves.append)
        paced = history.follow(paced=True)
        for seq in range(1, 21):
            history.add(OUT, b"0123456789", seq)
        paced.close()
        assert moves == [True, False]
        assert (await anext(paced)).omitted == 100

    asyncio.run(main())


MIB = 1024 * 1024


def pieces(count: int, size: int) -> list[tuple[OutputKind, bytes, int]]:
    return [
        (ERR if seq % 3 == 0 else OUT, b"%09d:" % seq * (size // 10), seq)
        for seq in range(1, count + 1)
    ]


def descriptors() -> int:
    return sum("handrail-output" in os.readlink(f"/proc/self/fd/{fd}") for fd in open_fds())


def open_fds() -> list[str]:
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]


@pytest.mark.parametrize(("count", "size"), [(200, 65_530), (120_000, 10), (3, 5 * MIB // 10 * 10)])
def test_what_is_too_much_for_memory_is_kept_in_a_file(count: int, size: int) -> None:
    async def main() -> None:
        history = OutputBuffer(limit=64 * MIB)
        early = history.follow()
        given = pieces(count, size)
        for piece in given:
            history.add(*piece)
        history.end()
        assert history.dropped == 0
        assert history._in_memory <= max(MEMORY_BYTES, size)
        assert len(history._events) <= RETENTION_CHUNKS
        assert descriptors() == 1
        for reader in (early, history.follow()):
            assert [(e.kind, e.data, e.seq) for e in await everything(reader)] == given

    asyncio.run(main())
    assert descriptors() == 0


def test_beyond_the_limit_the_oldest_output_goes() -> None:
    async def main() -> None:
        history = OutputBuffer(limit=8 * MIB)
        given = pieces(3000, 10_000)
        for piece in given:
            history.add(*piece)
        history.end()
        first, *rest = await everything(history.follow())
        kept = [first, *rest]
        assert [e.data for e in kept] == [data for _, data, _ in given[-len(kept) :]]
        assert first.omitted == history.dropped == (3000 - len(kept)) * 10_000
        assert 6 * MIB < len(kept) * 10_000 <= 8 * MIB
        assert not any(e.omitted for e in rest)

    asyncio.run(main())


def test_a_slow_reader_reads_a_batch_to_its_end_though_it_is_dropped() -> None:
    async def main() -> None:
        history = OutputBuffer(limit=4 * MIB)
        reader = history.follow()
        given = iter(pieces(3000, 10_000))
        for _ in range(300):
            history.add(*next(given))
        got = [(await anext(reader)).seq]
        for piece in given:
            history.add(*piece)
        history.end()
        missed = 0
        async for event in reader:
            got.append(event.seq)
            missed += event.omitted
        assert missed == (3000 - len(got)) * 10_000 > 0
        assert got[:50] == list(range(1, 51))

    asyncio.run(main())


@pytest.mark.parametrize(("count", "size"), [(3000, 10_000), (400_000, 10)])
def test_a_paced_reader_bounds_memory_and_file(count: int, size: int) -> None:
    async def main() -> None:
        shut = [False]
        history = OutputBuffer(limit=8 * MIB, gate=lambda back: shut.__setitem__(0, back))
        paced = history.follow(paced=True)
        got: list[int] = []
        for piece in pieces(count, size):
            history.add(*piece)
            assert history._in_memory <= MEMORY_BYTES + size
            assert len(history._events) <= RETENTION_CHUNKS + 1
            while shut[0]:
                event = await anext(paced)
                assert event.omitted == 0
                got.append(event.seq)
        history.end()
        got += [event.seq for event in await everything(paced)]
        assert got == list(range(1, count + 1))

    asyncio.run(main())


def test_a_full_disk_leaves_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output_spill.os, "pwrite", full)
    monkeypatch.setattr(output_spill.os, "pwritev", full)

    async def main() -> None:
        shut = [False]
        history = OutputBuffer(gate=lambda back: shut.__setitem__(0, back))
        for piece in pieces(1000, 10_000):
            history.add(*piece)
        assert not shut[0]
        kept = history.total - history.dropped
        assert MIB < kept <= MEMORY_BYTES
        paced = history.follow(paced=True)
        for piece in pieces(100, 10_000):
            history.add(*piece)
        assert shut[0]
        assert (await anext(paced)).omitted == 10_000_000 - kept

    asyncio.run(main())


def test_a_batch_that_is_written_in_two_steps_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    monkeypatch.setattr(
        output_spill.os, "pwritev", lambda fd, parts, at: real(fd, parts[: len(parts) // 2], at)
    )

    async def main() -> None:
        history = OutputBuffer()
        given = pieces(1000, 10_000)
        for piece in given:
            history.add(*piece)
        history.end()
        got = [(event.kind, event.data, event.seq) for event in await everything(history.follow())]
        assert got == given

    asyncio.run(main())


def test_the_limit_can_be_changed() -> None:
    async def main() -> None:
        history = OutputBuffer(limit=4 * MIB)
        given = pieces(300, 10_000)
        for piece in given:
            history.add(*piece)
        history.keep(16 * MIB)
        for piece in given * 3:
            history.add(*piece)
        assert history.dropped == 0
        history.keep(MIB)
        assert history.total - history.dropped <= MIB

    asyncio.run(main())


def test_the_end_opens_the_gate() -> None:
    moves: list[bool] = []
    history = OutputBuffer(limit=10, gate=moves.append)
    history.follow(paced=True)
    history.add(OUT, b"x" * 50, 1)
    history.end()
    assert moves == [True, False]
