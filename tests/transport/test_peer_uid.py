"""Which user has the other end: every family, ends that are gone, and the tables in /proc."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from handrail.transport import peer_uid
from handrail.transport.peer_uid import PeerUids, UnknownOwner, is_loopback
from tests.transport.local_client import STRANGER, LocalClient

USERS = [0, STRANGER, 65_534] if os.getuid() == 0 else [os.getuid()]
WAYS = [
    ("127.0.0.1", "127.0.0.1"),
    ("::1", "::1"),
    ("::", "127.0.0.1"),
    ("127.0.0.1", "::ffff:127.0.0.1"),
    ("0.0.0.0", "127.4.5.6"),
]


def open_listener(host: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.settimeout(30)
    if host == "::":
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    sock.bind((host, 0))
    sock.listen()
    return sock


class _NoNetlink(PeerUids):
    def _ask(self, family: int, ends: object) -> None:
        raise PermissionError(1, "no netlink here")


class _NoModule(PeerUids):
    """The kernel says so of every socket when it has no ``sock_diag`` for TCP."""

    def _ask(self, family: int, ends: object) -> None:
        return None


@pytest.fixture(params=[PeerUids, _NoNetlink, _NoModule])
def owners(request: pytest.FixtureRequest) -> Iterator[PeerUids]:
    made = request.param()
    yield made
    made.close()


@pytest.mark.parametrize("uid", USERS)
@pytest.mark.parametrize(("host", "target"), WAYS)
def test_the_user_is_told(owners: PeerUids, host: str, target: str, uid: int) -> None:
    with open_listener(host) as listener:
        port = listener.getsockname()[1]
        with LocalClient(target, port, uid=uid) as client, listener.accept()[0] as conn:
            assert is_loopback(conn)
            assert owners.uid(conn) == uid
            client.tell("half")
            assert owners.uid(conn) == uid


def test_a_socket_that_is_bound_to_the_device_is_found(owners: PeerUids) -> None:
    with open_listener("127.0.0.1") as listener:
        port = listener.getsockname()[1]
        with LocalClient("127.0.0.1", port, device="lo"), listener.accept()[0] as conn:
            assert owners.uid(conn) == os.getuid()


@pytest.mark.parametrize("uid", USERS)
@pytest.mark.parametrize("end", ["close", "reset"])
def test_an_end_that_is_gone_has_no_owner(owners: PeerUids, end: str, uid: int) -> None:
    """After a while the kernel shows every closed socket as root's."""
    with open_listener("127.0.0.1") as listener:
        port = listener.getsockname()[1]
        with LocalClient("127.0.0.1", port, uid=uid) as client, listener.accept()[0] as conn:
            client.tell(end)
            # Its end has arrived, and so has been acknowledged.
            poll = select.poll()
            poll.register(conn, select.POLLRDHUP)
            assert poll.poll(30_000)
            with pytest.raises(UnknownOwner):
                owners.uid(conn)


def test_a_process_that_has_ended_has_no_socket(owners: PeerUids) -> None:
    with open_listener("127.0.0.1") as listener:
        with LocalClient("127.0.0.1", listener.getsockname()[1]):
            pass
        with listener.accept()[0] as conn, pytest.raises(UnknownOwner):
            owners.uid(conn)


def test_a_listener_on_the_port_of_the_peer_is_not_the_peer() -> None:
    """The kernel offers one where it finds no connection with these addresses."""
    with open_listener("127.0.0.1") as listener, closing(PeerUids()) as owners:
        host, port = listener.getsockname()
        here = peer_uid._packed(host)
        ends = peer_uid._Ends(here, port, here, 9)
        assert owners._diag(ends) is None


def test_an_answer_for_another_connection_does_not_count() -> None:
    """The addresses of a connection that was reset may be those of the next."""

    class Late(PeerUids):
        def _look(self, ends: peer_uid._Ends) -> peer_uid._Found | None:
            found = super()._look(ends)
            client.tell("reset")
            poll = select.poll()
            poll.register(conn, select.POLLRDHUP)
            assert poll.poll(30_000)
            return found

    with open_listener("127.0.0.1") as listener:
        port = listener.getsockname()[1]
        with LocalClient("127.0.0.1", port) as client, listener.accept()[0] as conn:
            with closing(Late()) as owners, pytest.raises(UnknownOwner):
                owners.uid(conn)
