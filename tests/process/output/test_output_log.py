"""Numbers, retention and what a read returns."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from handrail.process.output import output_log
from handrail.process.output.output_log import OutputLog, RetainedBytes


def _four() -> OutputLog:
    """The worked example of the wire: chunks of 4 bytes, 1 to 4, exit 5, close 6."""
    log = OutputLog()
    for number in range(4):
        assert log.append(0, number * 4, 4).seq == number + 1
    assert log.exited() == 5
    assert log.closed() == 6
    return log


@pytest.mark.parametrize(
    ("most", "seqs", "next_seq"),
    [
        (7, [1], 2),
        (8, [1, 2], 3),
        (100, [1, 2, 3, 4], 5),
        (None, [1, 2, 3, 4], 7),
        (0, [1], 2),
        (1, [1], 2),
        (4, [1], 2),
        (16, [1, 2, 3, 4], 5),
    ],
)
def test_worked_example(most: int | None, seqs: list[int], next_seq: int) -> None:
    page = _four().read(0, most)
    assert [chunk.seq for chunk in page.chunks] == seqs
    assert page.next_seq == next_seq


@pytest.mark.parametrize("most", [None, 0, 5])
@pytest.mark.parametrize("after", [4, 5, 6, 7, 2**64 - 1])
def test_beyond_the_last_chunk_nothing_is_found(after: int, most: int | None) -> None:
    page = _four().read(after, most)
    assert page.chunks == []
    assert page.next_seq == 7


def test_going_on_from_next_seq_reads_everything_once() -> None:
    log = _four()
    seen: list[int] = []
    after = 0
    while True:
        page = log.read(after, 5)
        after = page.next_seq - 1
        if not page.chunks:
            break
        seen += [chunk.seq for chunk in page.chunks]
    assert seen == [1, 2, 3, 4]
    assert after == 6


def test_a_chunk_larger_than_the_retention_is_kept_alone() -> None:
    log = OutputLog(limit_bytes=10)
    log.append(0, 0, 4)
    log.append(0, 4, 25)
    assert [c.size for c in log.read(0, None).chunks] == [25]
    assert log.omitted(0) == (4, 1)
    log.append(1, 0, 1)
    assert [c.size for c in log.read(0, None).chunks] == [1]
    assert log.omitted(0) == (29, 2)


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 9)), max_size=12),
    st.integers(0, 12),
    st.integers(1, 40),
)
def test_a_settled_log_says_the_same(
    chunks: list[tuple[int, int]], before_exit: int, limit: int
) -> None:
    """The exit may have a number between those of chunks."""
    logs = [OutputLog(limit_bytes=limit) for _ in range(2)]
    for log in logs:
        starts = [0, 0]
        for number, (stream, size) in enumerate([*chunks, (0, 0)]):
            if number == min(before_exit, len(chunks)):
                log.exited()
            if size:
                log.append(stream, starts[stream], size)
                starts[stream] += size
        log.closed()
    plain, settled = logs[0], logs[1].settled()
    for after in range(plain.next_seq + 2):
        for most in (None, 0, 7):
            pages = [log.read(after, most) for log in (plain, settled)]
            assert pages[0].next_seq == pages[1].next_seq
            told = [
                [(one.seq, one.stream, one.start, one.size) for one in page.chunks]
                for page in pages
            ]
            assert told[0] == told[1]
        assert plain.omitted(after) == settled.omitted(after)
        if after < plain.next_seq:
            assert plain.since(after) == settled.since(after)


def test_the_wires_retention() -> None:
    """A 3 MB producer in chunks of 8192: newest MiB, whole chunks."""
    log = OutputLog()
    for number in range(367):
        log.append(0, number * 8192, 8192)
    assert log.retained == sum(c.size for c in log.read(0, None).chunks) == 1_048_576
    small = OutputLog()
    for number in range(50_003):
        small.append(0, number, 1)
    assert len(small.read(0, None).chunks) == 50_000
    assert small.omitted(0) == (3, 3)
    assert small.omitted(2) == (1, 1)


def test_numbers_forgotten_by_the_history_are_counted_from_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The memory for exact counts is bounded too; what is older is never under-reported."""
    monkeypatch.setattr(output_log, "_HISTORY", 64)
    log = OutputLog(limit_bytes=10)
    for number in range(500):
        log.append(0, number, 1)
    assert len(log._ends or ()) <= 64
    assert log.omitted(0) == (490, 490)
    assert log.omitted(480) == (10, 10)
    lost, chunks = log.omitted(5)
    assert chunks == 485
    assert lost >= 485


class LogMachine(RuleBasedStateMachine):
    """The log beside a list that forgets nothing."""

    @initialize(limit=st.integers(1, 60), chunks=st.integers(1, 12), history=st.booleans())
    def begin(self, limit: int, chunks: int, history: bool) -> None:
        self.limit, self.chunks = limit, chunks
        self.log = OutputLog(limit, chunks)
        self.owner: RetainedBytes | None = None
        self.all: list[tuple[int, int, int]] = []  # seq, stream, size; -1 for exit and close
        self.ends = [0, 0]

    def _next(self) -> int:
        return len(self.all) + 1

    @precondition(lambda self: self.log.closed_seq is None)
    @rule(stream=st.integers(0, 1), size=st.integers(1, 30))
    def append(self, stream: int, size: int) -> None:
        chunk = self.log.append(stream, self.ends[stream], size)
        assert chunk.seq == self._next()
        assert (chunk.stream, chunk.start, chunk.size) == (stream, self.ends[stream], size)
        self.ends[stream] += size
        self.all.append((chunk.seq, stream, size))

    @precondition(lambda self: self.log.exit_seq is None)
    @rule()
    def exited(self) -> None:
        assert self.log.exited() == self._next()
        self.all.append((self._next(), -1, 0))

    @precondition(lambda self: self.log.exit_seq is not None and self.log.closed_seq is None)
    @rule()
    def closed(self) -> None:
        assert self.log.closed() == self._next()
        self.all.append((self._next(), -1, 0))

    @rule(owned=st.booleans())
    def counted(self, owned: bool) -> None:
        before, self.owner = self.owner, RetainedBytes() if owned else None
        self.log.count_in(self.owner)
        assert before is None or before.count == 0

    def _retained(self) -> list[tuple[int, int, int]]:
        kept: list[tuple[int, int, int]] = []
        total = 0
        for entry in reversed([e for e in self.all if e[1] >= 0]):
            if kept and (total + entry[2] > self.limit or len(kept) == self.chunks):
                break
            kept.append(entry)
            total += entry[2]
        return kept[::-1]

    @rule(after=st.integers(0, 60), most=st.none() | st.integers(0, 80))
    def read(self, after: int, most: int | None) -> None:
        page = self.log.read(after, most)
        wanted: list[tuple[int, int, int]] = []
        total = 0
        for entry in self._retained():
            if entry[0] <= after:
                continue
            if most is not None and wanted and total + entry[2] > most:
                break
            wanted.append(entry)
            total += entry[2]
            if most is not None and total >= most:
                break
        assert [(c.seq, c.stream, c.size) for c in page.chunks] == wanted
        if most is None or not wanted:
            assert page.next_seq == self._next()
        else:
            assert page.next_seq == wanted[-1][0] + 1

    @rule(after=st.integers(0, 60))
    def omitted(self, after: int) -> None:
        kept = {entry[0] for entry in self._retained()}
        gone = [e for e in self.all if e[1] >= 0 and e[0] > after and e[0] not in kept]
        assert self.log.omitted(after) == (sum(e[2] for e in gone), len(gone))

    @invariant()
    def bounded(self) -> None:
        if hasattr(self, "log"):
            kept = self._retained()
            assert self.log.retained == sum(e[2] for e in kept)
            assert self.owner is None or self.owner.count == self.log.retained
            assert self.log.retained <= self.limit or len(kept) == 1
            assert self.log.bytes_total == sum(e[2] for e in self.all)
            assert self.log.bytes_dropped == self.log.bytes_total - self.log.retained
            assert self.log.next_seq == self._next()


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
