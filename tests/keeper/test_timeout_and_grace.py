"""When a child that is to end gets which signal."""

from __future__ import annotations

import signal

from hypothesis import given
from hypothesis import strategies as st

from handrail.keeper.timeout_and_grace import (
    CAUSE_ASKED,
    CAUSE_TIME,
    TIMED_OUT,
    Deadline,
    Deadlines,
)

HUP, TERM, KILL = int(signal.SIGHUP), int(signal.SIGTERM), int(signal.SIGKILL)


class Book:
    """Endings whose signals are written down."""

    def __init__(self, *, deaf: int = 0) -> None:
        self.sent: list[tuple[bytes, int]] = []
        self.deaf = deaf  # so often nobody is there yet
        self.endings = Deadlines(self._send)

    def _send(self, child: bytes, number: int, at: int) -> bool:
        if self.deaf:
            self.deaf -= 1
            return False
        self.sent.append((child, number))
        return True

    def numbers(self) -> list[int]:
        return [number for _, number in self.sent]


def plan(at: int, grace: int, *, cause: bytes = CAUSE_ASKED, terminal: bool = False) -> Deadline:
    return Deadline.plan(cause, at, grace, terminal=terminal)


def test_term_then_kill_each_in_its_time() -> None:
    book = Book()
    book.endings.set(b"1", plan(100, 50))
    assert book.endings.next == 100
    book.endings.run(99)
    assert book.sent == []
    book.endings.run(100)
    assert book.numbers() == [TERM]
    book.endings.run(149)
    assert book.numbers() == [TERM]
    book.endings.run(150)
    assert book.numbers() == [TERM, KILL]
    assert book.endings.next is None


def test_a_terminal_hangs_up_first() -> None:
    book = Book()
    book.endings.set(b"1", plan(0, 4000, terminal=True))
    for now in range(0, 4001, 100):
        book.endings.run(now)
    assert book.numbers() == [HUP, TERM, KILL]
    assert plan(0, 100, terminal=True).steps[1] == (25, TERM)  # a quarter of a short grace


def test_whoever_comes_late_does_everything_at_once_and_in_order() -> None:
    book = Book()
    book.endings.set(b"1", plan(100, 50, terminal=True))
    book.endings.run(10_000)
    assert book.numbers() == [HUP, TERM, KILL]


def test_a_sandbox_that_is_being_set_up_is_waited_for() -> None:
    book = Book(deaf=3)
    book.endings.set(b"1", plan(0, 1000))
    for now in range(0, 1001, 10):
        book.endings.run(now)
    assert book.numbers() == [TERM, KILL]
    book = Book(deaf=99)
    book.endings.set(b"1", plan(0, 200))
    for now in range(0, 201, 10):
        book.endings.run(now)
    assert book.deaf > 80  # not for ever: it is killed all the same
    assert book.endings.next is None


def test_a_leader_that_ends_leaves_its_family_a_second() -> None:
    book = Book()
    book.endings.set(b"1", plan(0, 60_000))
    book.endings.run(0)
    assert book.endings.exited(b"1", 500) == 0
    book.endings.run(1500)
    assert book.numbers() == [TERM, KILL]


def test_the_status_says_that_the_time_was_over() -> None:
    book = Book()
    book.endings.set(b"1", plan(100, 50, cause=CAUSE_TIME))
    book.endings.set(b"2", plan(900, 50, cause=CAUSE_TIME))
    book.endings.run(200)
    assert book.sent == [(b"1", TERM), (b"1", KILL)]
    assert book.endings.exited(b"1", 201) == TIMED_OUT
    assert book.endings.exited(b"2", 201) == 0  # in time: nothing more happens to it
    book.endings.run(10_000)
    assert len(book.sent) == 2


def test_what_was_asked_for_later_comes_instead_and_a_kill_no_later() -> None:
    book = Book()
    book.endings.set(b"1", plan(500, 100, cause=CAUSE_TIME))
    book.endings.set(b"1", plan(100, 9000))
    for now in range(0, 10_000, 50):
        book.endings.run(now)
    assert book.numbers() == [TERM, KILL]
    assert book.endings.exited(b"1", 700) == 0  # asked, not timed out
    book = Book()
    book.endings.set(b"1", plan(0, 50))
    book.endings.run(100)
    book.endings.set(b"1", plan(100, 50))  # all was done already, and is done again
    book.endings.run(200)
    assert book.numbers() == [TERM, KILL, TERM, KILL]


def test_one_that_is_killed_meanwhile_is_not_timed_out() -> None:
    book = Book()
    book.endings.set(b"1", plan(100, 50, cause=CAUSE_TIME))
    book.endings.overtaken(b"1")
    book.endings.run(1000)
    assert book.sent == []
    assert book.endings.exited(b"1", 1000) == 0


def test_another_keeper_goes_on_where_the_first_was() -> None:
    book = Book()
    ending = plan(100, 50, cause=CAUSE_TIME)
    ending.go_on(ending.steps[0][0])
    book.endings.set(b"1", ending)
    book.endings.run(150)
    assert book.numbers() == [KILL]
    assert book.endings.exited(b"1", 151) == TIMED_OUT


def test_those_that_end_in_time_do_not_pile_up() -> None:
    book = Book()
    book.endings.set(b"stays", plan(900, 50, cause=CAUSE_TIME))
    for number in range(10_000):
        book.endings.set(b"%d" % number, plan(1000 + number, 50, cause=CAUSE_TIME))
        book.endings.exited(b"%d" % number, 5)
    assert len(book.endings.due) < 100
    book.endings.run(20_000)
    assert book.sent == [(b"stays", TERM), (b"stays", KILL)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"1", b"2", b"3"]),
            st.integers(0, 50),
            st.integers(0, 50),
            st.sampled_from(["set", "drop", "exit", "kill"]),
        ),
        max_size=20,
    )
)
def test_whatever_happens_nobody_is_signalled_after_a_kill(
    events: list[tuple[bytes, int, int, str]],
) -> None:
    book = Book()
    now = 0
    for child, pause, grace, what in events:
        if what == "set":
            book.endings.set(child, plan(now, grace))
        elif what == "drop":
            book.endings.drop(child)
        elif what == "exit":
            book.endings.exited(child, now)
        else:
            book.endings.overtaken(child)
        now += pause
        book.endings.run(now)
        assert book.endings.next is None or book.endings.next > now
    book.endings.run(now + 5000)
    assert book.endings.next is None
    sets = sum(what == "set" for *_, what in events)
    assert book.numbers().count(KILL) <= sets
    assert book.numbers().count(TERM) <= sets
