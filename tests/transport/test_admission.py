"""The counting at the door, without sockets."""

from __future__ import annotations

import asyncio

import pytest
from transport_kit import WAIT, Run

from handrail.transport.admission import Admission, ListenLimits


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


def test_the_oldest_make_room_and_the_newest_stay(run: Run) -> None:
    async def main() -> None:
        admission = Admission(ListenLimits(max_handshakes=2))
        peers = [Peer(admission) for _ in range(5)]
        assert [admission.enter(peer) for peer in peers] == [None] * 5
        for peer in peers[:3]:
            await asyncio.wait_for(peer.refused.wait(), WAIT)
            assert "too many" in peer.told
        assert [peer.told for peer in peers[3:]] == ["", ""]
        admission.close()
        await asyncio.wait_for(admission.wait_empty(), WAIT)
        assert {peer.told for peer in peers} == {"dropped"}

    run(main())


def test_those_who_finish_in_time_are_not_counted(run: Run) -> None:
    async def main() -> None:
        admission = Admission(ListenLimits(max_handshakes=1))
        peers = [Peer(admission) for _ in range(3)]
        for peer in peers:
            admission.enter(peer)
        admission.gone(peers[0])
        admission.answered(peers[1])
        admission._thin()
        assert [peer.told for peer in peers] == ["", "", ""]
        admission.close()

    run(main())


def test_many_times_the_cap_is_refused_at_once(run: Run) -> None:
    async def main() -> None:
        admission = Admission(ListenLimits(max_handshakes=2))
        answers = [admission.enter(Peer(admission)) for _ in range(33)]
        assert answers[:32] == [None] * 32
        assert answers[32] is not None
        admission.close()

    run(main())


def test_nobody_enters_after_closing(run: Run) -> None:
    async def main() -> None:
        admission = Admission(ListenLimits())
        admission.close()
        late = Peer(admission)
        assert admission.enter(late) == "this server is closing"
        late.drop()
        await asyncio.wait_for(admission.wait_empty(), WAIT)

    run(main())


def test_warnings_are_few_and_count_the_rest(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        admission = Admission(ListenLimits())
        for _ in range(5):
            admission.warn("full")
        assert caplog.messages == ["refusing peers: full"]
        monkeypatch.setattr("handrail.transport.admission._WARN_EVERY", -1.0)
        admission.warn("full")
        assert caplog.messages[1] == "refusing peers: full (4 more since the last such line)"

    run(main())
