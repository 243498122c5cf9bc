"""One end of a call stream, as a machine that is driven at random beside a simple model."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from handrail.errors import RemoteProtocolError
from handrail.protocol.envelope import ErrorResponse, Response
from handrail.protocol.peer import Peer


def answer(number: int | str, *, well: bool) -> Response | ErrorResponse:
    return Response(number, None) if well else ErrorResponse(number, -1, "no")


class Calls(RuleBasedStateMachine):
    """Open calls are answered once; what is over stays over; what never was ends the line."""

    def __init__(self) -> None:
        super().__init__()
        self.peer: Peer[str] = Peer()
        self.issued = 0
        self.open: dict[int, str] = {}

    pending = Bundle("pending")
    over = Bundle("over")

    @rule(target=pending)
    def call(self) -> int:
        self.issued += 1
        waiter = f"waiter {self.issued}"
        assert self.peer.call(waiter) == self.issued
        self.open[self.issued] = waiter
        return self.issued

    @rule(target=over, number=consumes(pending), well=st.booleans())
    def reply(self, number: int, well: bool) -> int:
        assert self.peer.reply(answer(number, well=well)) == self.open.pop(number, None)
        return number

    @rule(target=over, number=consumes(pending))
    def give_up(self, number: int) -> int:
        assert self.peer.give_up(number) == self.open.pop(number, None)
        return number

    @rule(number=over, well=st.booleans())
    def reply_late_or_twice(self, number: int, well: bool) -> None:
        assert self.peer.reply(answer(number, well=well)) is None

    @rule(number=over)
    def give_up_late(self, number: int) -> None:
        assert self.peer.give_up(number) is None

    @rule(number=st.integers(-(2**63), 0) | st.text(), well=st.booleans())
    def reply_to_nothing(self, number: int | str, well: bool) -> None:
        with pytest.raises(RemoteProtocolError):
            self.peer.reply(answer(number, well=well))

    @rule(ahead=st.integers(1, 2**40), well=st.booleans())
    def reply_too_early(self, ahead: int, well: bool) -> None:
        with pytest.raises(RemoteProtocolError):
            self.peer.reply(answer(self.issued + ahead, well=well))

    @rule()
    def reply_with_the_number_as_text(self) -> None:
        with pytest.raises(RemoteProtocolError):
            self.peer.reply(Response("1", None))

    @rule()
    def lose_the_line(self) -> None:
        assert self.peer.abandon() == list(self.open.values())
        self.open.clear()

    @invariant()
    def counts_what_is_open(self) -> None:
        assert self.peer.pending == len(self.open)


TestCalls = Calls.TestCase
TestCalls.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_numbers_begin_with_one() -> None:
    peer: Peer[None] = Peer()
    assert [peer.call(None), peer.call(None)] == [1, 2]


def test_a_long_id_of_the_peer_is_cut_in_the_sentence() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        Peer[None]().reply(Response("\x1b" * 1_000_000, None))
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()
