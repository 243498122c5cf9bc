"""Streams that always have output share the event loop with everything else, and fairly."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import Any, cast

from handrail.process.output import read_scheduler
from handrail.process.output.read_scheduler import ReadScheduler
from tests.support.eventually import eventually_so


class Endless:
    """A stream that has output whenever the loop looks."""

    def __init__(self, turns: ReadScheduler, took: Counter[int], number: int) -> None:
        self.turns, self.took, self.number = turns, took, number
        self.queued = False

    def readable(self) -> None:
        if self.turns.grant(cast("Any", self)):
            self.take_turn()

    def take_turn(self) -> None:
        self.took[self.number] += 1


async def test_each_stream_has_its_turn_and_the_loop_goes_on(monkeypatch: Any) -> None:
    clock = iter(range(1_000_000))  # each look at it is later than the end of a turn
    monkeypatch.setattr(read_scheduler, "perf_counter", lambda: next(clock))
    took: Counter[int] = Counter()
    turns = ReadScheduler(asyncio.get_running_loop())
    streams = [Endless(turns, took, number) for number in range(20)]
    most = 0
    for _ in range(100):
        before = took.total()
        for stream in streams:
            stream.readable()
        await asyncio.sleep(0)  # one turn of the loop
        most = max(most, took.total() - before)
    assert most <= 2 * read_scheduler._STEPS
    assert len(took) == 20
    assert max(took.values()) <= min(took.values()) + 2


async def test_few_steps_are_never_put_off() -> None:
    took: Counter[int] = Counter()
    stream = Endless(ReadScheduler(asyncio.get_running_loop()), took, 0)
    for _ in range(50):
        stream.readable()
        await asyncio.sleep(0)
    assert took[0] == 50


class Failing(Endless):
    """A stream that cannot be read."""

    def take_turn(self) -> None:
        raise MemoryError


async def test_a_stream_that_fails_stops_no_other(monkeypatch: Any) -> None:
    clock = iter(range(1_000_000))
    monkeypatch.setattr(read_scheduler, "perf_counter", lambda: next(clock))
    loop = asyncio.get_running_loop()
    failures: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: failures.append(context))
    took: Counter[int] = Counter()
    turns = ReadScheduler(loop)
    granted = [Endless(turns, took, number) for number in range(read_scheduler._STEPS)]
    waiting = [Failing(turns, took, 100), Endless(turns, took, 101)]
    for stream in (*granted, *waiting):
        stream.readable()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(failures) == 1
    assert took[101] == 1


class Piped:
    """A stream at the reading end of a pipe."""

    def __init__(self, turns: ReadScheduler, fails: bool = False) -> None:
        self.fd, self.far = os.pipe()
        self.turns, self.fails = turns, fails
        self.reading, self.hung_up = True, False
        self.took: list[bytes] = []
        self.after: list[Piped] = []

    def readable(self) -> None:
        if self.fails:
            self.fails = False
            raise MemoryError
        self.took.append(os.read(self.fd, 100))
        for other in self.after:
            other.end()
        if self.hung_up:
            self.end()

    def end(self) -> None:
        if self.reading:
            self.reading = False
            self.turns.unwatch(cast("Any", self))
            os.close(self.fd)


async def test_descriptor_is_open_only_while_there_are_children() -> None:
    """A server at rest has none; one whose child has no stream yet keeps it: all may be in use."""
    children = False
    before = len(os.listdir("/proc/self/fd"))
    turns = ReadScheduler(asyncio.get_running_loop(), lambda: children)
    assert len(os.listdir("/proc/self/fd")) == before
    for _ in range(2):  # also after it was closed
        children = True
        opened = turns.open()
        turns._is_idle()
        turns._is_idle()
        assert not opened.closed
        stream = Piped(turns)
        turns.watch(cast("Any", stream))
        assert turns.open() is opened
        os.write(stream.far, b"x")
        await eventually_so(lambda stream=stream: stream.took == [b"x"])
        children = False
        turns._is_idle()
        assert not opened.closed  # it is watched
        stream.end()
        os.close(stream.far)
        await eventually_so(lambda opened=opened: opened.closed)
        assert len(os.listdir("/proc/self/fd")) == before
    turns.close()


async def test_stream_that_alone_has_output_is_watched_by_the_loop() -> None:
    loop = asyncio.get_running_loop()
    turns = ReadScheduler(loop)
    alone, other = Piped(turns), Piped(turns)
    for stream in (alone, other):
        turns.watch(cast("Any", stream))
    steps = read_scheduler._ALONE_TURNS
    for count in range(1, 3 * steps):
        os.write(alone.far, b"x")
        await eventually_so(lambda count=count: len(alone.took) == count)
        if count == steps:
            assert turns._by_loop == set()
    assert turns._by_loop == {alone.fd}
    os.write(other.far, b"y")
    await eventually_so(lambda: other.took == [b"y"])
    alone.end()  # as when its client does not read, and it is watched again
    assert turns._by_loop == set()
    other.end()
    turns.close()
    for fd in (alone.far, other.far):
        os.close(fd)


async def test_streams_are_watched_until_they_end_whatever_others_do() -> None:
    loop = asyncio.get_running_loop()
    failures: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: failures.append(context))
    turns = ReadScheduler(loop)
    failing, first, ended, last = (Piped(turns, number == 0) for number in range(4))
    for stream in (failing, first, ended, last):
        turns.watch(cast("Any", stream))
        os.write(stream.far, b"x")
    first.after = [ended]  # in the same turn, when there is something to read from both
    await eventually_so(lambda: bool(last.took and failing.took))
    assert ended.took == []
    assert len(failures) == 1
    os.close(last.far)
    await eventually_so(lambda: not last.reading)
    assert last.took == [b"x", b""]
    assert last.hung_up
    turns.close()  # some are still read
    os.write(first.far, b"y")
    await eventually_so(lambda: len(first.took) == 2)
    failing.end()
    first.end()
    turns.close()
    for fd in (failing.far, first.far, ended.far):
        os.close(fd)
