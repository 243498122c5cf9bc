"""The counting at the door, without sockets."""

from __future__ import annotations

import asyncio

import pytest

from handrail.transport.connection_limits import Admission, ListenLimits
from tests.support.eventually import LIMIT


class Peer:
    """A handshake that goes when it is told to."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.told = ""
        self.refused = asyncio.Event()

    def refuse(self, sentence: str) -> None:
        self.told = sentence
        self._admission.answered(self)
        self.refused.set()

    def drop(self) -> None:
        self.told = "dropped"
        self._admission.gone(self)


async def test_the_oldest_make_room_and_the_newest_stay() -> None:
    admission = Admission(ListenLimits(max_handshakes=2))
    peers = [Peer(admission) for _ in range(5)]
    assert [admission.enter(peer) for peer in peers] == [None] * 5
    for peer in peers[:3]:
        await asyncio.wait_for(peer.refused.wait(), LIMIT)
        assert "too many" in peer.told
    assert [peer.told for peer in peers[3:]] == ["", ""]
    admission.close()
    await asyncio.wait_for(admission.wait_empty(), LIMIT)
    assert {peer.told for peer in peers} == {"dropped"}


async def test_those_who_finish_in_time_are_not_counted() -> None:
    admission = Admission(ListenLimits(max_handshakes=1))
    peers = [Peer(admission) for _ in range(3)]
    for peer in peers:
        admission.enter(peer)
    admission.gone(peers[0])
    admission.answered(peers[1])
    admission._thin()
    assert [peer.told for peer in peers] == ["", "", ""]
    admission.close()


async def test_at_many_times_the_cap_the_oldest_goes_at_once() -> None:
    admission = Admission(ListenLimits(max_handshakes=2))
    peers = [Peer(admission) for _ in range(33)]
    assert [admission.enter(peer) for peer in peers] == [None] * 33
    assert [bool(peer.told) for peer in peers] == [True] + [False] * 32
    admission.close()


async def test_those_who_have_their_answer_take_no_place() -> None:
    admission = Admission(ListenLimits(max_handshakes=2))
    leaving = [Peer(admission) for _ in range(40)]
    for peer in leaving:
        admission.enter(peer)
        admission.answered(peer)
    assert [peer.told for peer in leaving] == ["dropped"] * 8 + [""] * 32
    late = Peer(admission)
    assert admission.enter(late) is None
    assert late.told == ""
    admission.close()
    await asyncio.wait_for(admission.wait_empty(), LIMIT)


async def test_each_handshake_has_a_moment() -> None:
    """One that came just before the oldest are sent away is not sent with them."""

    admission = Admission(ListenLimits(max_handshakes=1))
    loop = asyncio.get_running_loop()
    first, young, younger = (Peer(admission) for _ in range(3))
    admission.enter(first)
    admission._opening[first] = loop.time() - 1
    admission.enter(young)
    admission.enter(younger)
    admission._thin()
    assert (bool(first.told), young.told, younger.told) == (True, "", "")
    await asyncio.wait_for(young.refused.wait(), LIMIT)
    assert younger.told == ""
    admission.close()


async def test_nobody_enters_after_closing() -> None:
    admission = Admission(ListenLimits())
    admission.close()
    late = Peer(admission)
    assert admission.enter(late) == "this server is closing"
    late.drop()
    await asyncio.wait_for(admission.wait_empty(), LIMIT)


async def test_warnings_are_few_and_count_the_rest(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    admission = Admission(ListenLimits())
    for _ in range(5):
        admission.warn("full")
    assert caplog.messages == ["refusing peers: full"]
    monkeypatch.setattr("handrail.transport.connection_limits._WARN_EVERY", -1.0)
    admission.warn("full")
    assert caplog.messages[1] == "refusing peers: full (4 more since the last such line)"
