"""Readers of stored output, alone or in the place of live output that is no longer in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace

from handrail.executor.base import OutputEvent, OutputKind
from handrail.executor.output.buffer import OutputBuffer
from handrail.executor.stored.source import Result
from handrail.results.record import Decoder, Record

_KINDS = (OutputKind.STDOUT, OutputKind.STDERR, OutputKind.STDOUT)


class ResultReader:
    """The output of a stored result, as a ``Subscription``."""

    def __init__(self, result: Result) -> None:
        self._result = result
        self._decoder = Decoder()
        self._offset = 0
        self._records: deque[Record] = deque()
        self._told_end = False
        self.last = 0  # everything up to this number was read

    def __aiter__(self) -> ResultReader:
        return self

    async def __anext__(self) -> OutputEvent:
        record = await self.next_record()
        if record is not None:
            return _event(record)
        if self._told_end or not self._result.about.omitted:
            raise StopAsyncIteration
        self._told_end = True
        return OutputEvent(
            OutputKind.STDOUT, b"", self.last + 1, omitted=self._result.about.omitted
        )

    async def next_record(self, before: int | None = None) -> Record | None:
        """The next record; None at the end, or when it is not of a number below ``before``."""
        while not self._records:
            data = await self._result.read(self._offset)
            if not data:
                return None
            self._offset += len(data)
            try:
                self._records.extend(self._decoder.feed(data))
            except ValueError:
                return None  # the machine went down while it was written
        record = self._records[0]
        # Records that belong together are read together.
        if before is not None and record.first >= before and record.first > self.last:
            return None
        self.last = max(self.last, record.last)
        return self._records.popleft()

    def close(self) -> None:
        """Do nothing: no process waits for this reader."""


def _event(record: Record) -> OutputEvent:
    return OutputEvent(_KINDS[record.stream], record.data, record.first, omitted=record.omitted)


class PastReader:
    """Live output, with stored output in the place of what is no longer in memory.

    How it works.  A live event that follows a gap is held back while the gap is filled from the
    stored result, as far as that goes.  No process waits for this reader before it has caught up:
    the connection that a waiting reader holds up is the one by which the result is read.
    """

    def __init__(
        self,
        history: OutputBuffer,
        find: Callable[[], Awaitable[Result | None]],
        *,
        paced: bool,
    ) -> None:
        self._history = history
        self._find = find
        self._live = history.follow()
        self._paced = paced
        self._stored: ResultReader | None = None
        self._behind: OutputEvent | None = None  # the live event behind the gap that is filled
        self._filled = 0  # bytes of that gap
        self._caught_up = False
        self._last = 0  # the last number that was given out

    def __aiter__(self) -> PastReader:
        return self

    async def __anext__(self) -> OutputEvent:
        while True:
            event = self._behind
            if event is None:
                event = await anext(self._live)
                if event.omitted and not self._caught_up:
                    await self._begin(event)
                    continue
                self._catch_up()
            else:
                record = await self._fill(event)
                if record is not None:
                    self._last = max(self._last, record.last)
                    return _event(record)
                event = self._after_gap(event)
            if event.omitted or event.seq > self._last:
                self._last = max(self._last, event.seq)
                return event

    async def _begin(self, event: OutputEvent) -> None:
        """Begin to fill the gap before a live event."""
        self._behind, self._filled = event, 0
        if self._stored is None:
            result = await self._find()
            self._stored = None if result is None else ResultReader(result)

    async def _fill(self, event: OutputEvent) -> Record | None:
        """The next record of the gap before this event."""
        before = event.seq if event.data else event.seq + 1
        while self._stored is not None:
            record = await self._stored.next_record(before)
            if record is None:
                break
            if record.first > self._last:
                if record.first < before:
                    self._filled += record.size + record.omitted
                return record
        return None

    def _after_gap(self, event: OutputEvent) -> OutputEvent:
        """The live event behind a gap that was filled, with what is still missing."""
        self._behind = None
        if not self._filled:
            self._catch_up()  # there is nothing stored: what is missing now is gone
        data = event.data if event.seq > self._last else b""
        return replace(event, data=data, omitted=max(0, event.omitted - self._filled))

    def _catch_up(self) -> None:
        if not self._caught_up:
            self._caught_up = True
            if self._paced:
                self._history.pace(self._live)

    def close(self) -> None:
        """Have nothing wait for this reader any more."""
        self._live.close()


async def first_after(result: Result, at: float) -> int:
    """The sequence number of the first stored output of this time or later; behind all: one more
    than the last."""
    reader = ResultReader(result)
    while (record := await reader.next_record()) is not None:
        if record.at >= at:
            return record.first
    return reader.last + 1
