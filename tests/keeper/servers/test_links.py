"""A long answer to a server that reads slowly, while the keeper has no descriptor left."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest

from handrail.keeper import messages, own_fds
from handrail.keeper.messages import Outgoing
from handrail.keeper.servers.links import Making, ServerLinks

NUMBER = 2000


def _none_free(fds: Sequence[int]) -> list[int]:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _answer(passed: int, gone: set[int]) -> Iterator[Making]:
    def making(number: int) -> Iterator[Outgoing]:
        if number not in gone:
            yield messages.CHILD, 1, [b"%d" % number, b"x" * 500], [passed]

    for number in range(NUMBER):
        yield lambda number=number: making(number)


@pytest.mark.usefixtures("_nothing_free")
@pytest.mark.parametrize("then", ["it reads", "the keeper is replaced"])
def test_nothing_of_a_long_answer_is_lost(then: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gone: set[int] = set()
    with ExitStack() as stack:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.callback(theirs.close)
        links = ServerLinks(stack.enter_context(select.epoll()))
        links.add(ours)
        fd = ours.fileno()
        stack.callback(links.remove, fd)
        links.pour(fd, _answer(2, gone))
        assert links[fd].untaken is not None, "the socket is full"
        theirs.setblocking(False)
        found = list(_taken(theirs))
        assert 0 < len(found) < NUMBER
        gone.add(len(found))  # forgotten before it could be sent
        if then == "the keeper is replaced":
            with pytest.raises(OSError, match="Too many open files"):
                links.make_all()
            monkeypatch.undo()
            links.make_all()
            assert links[fd].answer is None
        while links[fd].answer is not None or links[fd].waiting:
            links.flush(fd)
            found += _taken(theirs)
        assert found == [number for number in range(NUMBER) if number not in gone]


@pytest.fixture
def _nothing_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_fds, "copies", _none_free)


def _taken(sock: socket.socket) -> Iterator[int]:
    """What can be read now."""
    while True:
        try:
            message = messages.receive(sock)
        except BlockingIOError:
            return
        assert message is not None
        message.close()
        yield int(message.fields[0])


# --- messages of one turn ----------------------------------------------------------------------


@pytest.fixture
def link() -> Iterator[tuple[ServerLinks, int, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    with select.epoll() as poll, theirs:
        links = ServerLinks(poll)
        links.add(ours)
        yield links, ours.fileno(), theirs
        if ours.fileno() >= 0:
            links.remove(ours.fileno())


def _never(error: OSError) -> None:
    raise AssertionError(error)


def _spawned(number: int, *fds: int) -> Outgoing:
    return messages.SPAWNED, number, [b"%d" % number], list(fds)


def _serials(sock: socket.socket) -> list[list[int]]:
    """The serial numbers of all packets that have come."""
    found: list[list[int]] = []
    try:
        while packet := messages.receive_all(sock):
            for message in packet:
                message.close()
            found.append([message.serial for message in packet])
    except BlockingIOError:
        pass
    return found


def test_messages_of_a_turn_go_out_together_and_before_what_is_said_after_them(
    link: tuple[ServerLinks, int, socket.socket],
) -> None:
    links, fd, theirs = link
    links.several = True
    spent = os.dup(2)
    links.gather(fd, _spawned(1, 2, spent), _never, spent=spent)
    links.gather(fd, _spawned(2), _never)
    assert _serials(theirs) == []
    os.fstat(spent)  # until it is sent
    links.say(fd, messages.DONE, 3, [])
    links.gather(fd, _spawned(4), _never)
    links.end_turn()
    links.end_turn()
    assert _serials(theirs) == [[1, 2], [3], [4]]
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(spent)


def test_a_message_of_a_turn_that_has_no_other_goes_out_at_once(
    link: tuple[ServerLinks, int, socket.socket],
) -> None:
    links, fd, theirs = link
    spent = os.dup(2)
    links.gather(fd, _spawned(1, 2, spent), _never, spent=spent)
    assert _serials(theirs) == [[1]]
    assert not links.unsent
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(spent)


def test_more_than_a_packet_holds_do_not_wait_for_the_end_of_the_turn(
    link: tuple[ServerLinks, int, socket.socket],
) -> None:
    links, fd, theirs = link
    links.several = True
    for number in range(100):
        links.gather(fd, _spawned(number), _never)
    links.end_turn()
    found = _serials(theirs)
    assert 1 < len(found) < 50
    assert [serial for packet in found for serial in packet] == list(range(100))


def test_gathered_messages_wait_in_order_for_a_server_that_does_not_read(
    link: tuple[ServerLinks, int, socket.socket],
) -> None:
    links, fd, theirs = link
    links.several = True
    for number in range(5000):
        links.gather(fd, _spawned(number, 2), _never)
    links.end_turn()
    assert links[fd].waiting, "the socket is full"
    found = _serials(theirs)
    while links[fd].waiting:
        links.flush(fd)
        found += _serials(theirs)
    assert [serial for packet in found for serial in packet] == list(range(5000))


@pytest.mark.usefixtures("_nothing_free")
def test_a_gathered_message_that_cannot_wait_is_told(
    link: tuple[ServerLinks, int, socket.socket],
) -> None:
    links, fd, theirs = link
    links.several = True
    failed: list[int] = []
    for number in range(5000):
        links.gather(fd, _spawned(number, 2), lambda _, number=number: failed.append(number))
    links.end_turn()
    sent = [serial for packet in _serials(theirs) for serial in packet]
    assert failed, "the socket is full"
    assert sorted(sent + failed) == list(range(5000))


def test_a_link_that_is_removed_closes_what_was_gathered(
    link: tuple[ServerLinks, int, socket.socket],
) -> None:
    links, fd, _ = link
    links.several = True
    spent = os.dup(2)
    links.gather(fd, _spawned(1, spent), _never, spent=spent)
    links.remove(fd)
    links.end_turn()
    late = os.dup(2)
    links.gather(fd, _spawned(2, late), _never, spent=late)
    for closed in (spent, late):
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(closed)
