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
from handrail.keeper.servers.links import Making, Outgoing, ServerLinks

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
