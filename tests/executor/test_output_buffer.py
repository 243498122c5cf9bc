"""The output that is kept, and those who read it at their own pace."""

from __future__ import annotations

import asyncio

import pytest

from handrail.errors import ExecutorTransportFailed
from handrail.executor.base import OutputEvent, OutputKind
from handrail.executor.output_buffer import Follower, OutputBuffer

OUT = OutputKind.STDOUT


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
        for seq in range(1, 38):
            event = await anext(paced)
            assert (event.seq, event.omitted) == (seq, 0)
        assert moves == [True]
        await anext(paced)
        assert moves == [True, False]
        assert len(history.retained()) == 10

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
