"""Check that the server behind a Unix socket is the user's own, before sending it anything.

A server whose socket is in a private place of ours, as that of ``run --detach`` and ``proxy`` is,
has to prove that it knows the secret beside the socket (``handrail.proof``).  Of another only the
user id is checked: a socket elsewhere was named by the user.
"""

from __future__ import annotations

import os
import socket

from handrail import private_places, proof
from handrail.errors import UsageError

_LONGEST_NAME = 107


class Unproven(ConnectionError):
    """What listens there is not known to be the user's own server; nothing was sent to it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"what listens at {path} is not used: {reason}; if it is a server of an earlier"
            f" version, replace it with `handrail upgrade --state-dir {path}.state`, else remove"
            " the socket"
        )


def make_secret(path: str) -> bytes:
    """The secret the server at a path has to prove; none outside our places.  Raises UsageError.

    Called under a lock.
    """
    if not private_places.contains(path):
        return b""
    parent = os.path.dirname(path)
    directory = private_places.open_directory(parent)
    try:
        return private_places.make_secret(directory)
    except OSError as error:
        raise UsageError(
            f"no secret can be kept in {parent} ({error.strerror}), so clients could not know this"
            " server; make room, or remove the file `secret` there"
        ) from None
    finally:
        os.close(directory)


class Talk:
    """The client's two lines of the proof."""

    def __init__(self, path: str, secret: bytes) -> None:
        self._path = path
        self._secret = secret
        self._nonce = proof.nonce()
        self.question = proof.ask_line(self._nonce)

    def reply(self, line: bytes) -> bytes:
        """The second line, if our own server answered the first; raises Unproven."""
        said = proof.client_line(self._secret, self._nonce, line)
        if said is None:
            raise Unproven(self._path, "it does not prove that it knows the secret of its place")
        return said


def connected(sock: socket.socket, path: str) -> bool:
    """Connect; False if the server's backlog is full just now.  Raises OSError."""
    if len(os.fsencode(path)) <= _LONGEST_NAME:
        return _connected(sock, path)
    parent, name = os.path.split(path)
    directory = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _connected(sock, private_places.socket_address(directory, name))
    finally:
        os.close(directory)


def _connected(sock: socket.socket, address: str) -> bool:
    try:
        sock.connect(address)
    except BlockingIOError:
        return False
    return True


def begin(sock: socket.socket, path: str) -> Talk | None:
    """Start the proof; None if the server has nothing to prove.  Raises Unproven."""
    pid, uid = proof.peer(sock)
    if uid not in (os.geteuid(), 0):
        raise Unproven(path, f"it belongs to user {uid}")
    if not private_places.contains(path):
        return None
    secret = private_places.secret_in(os.path.dirname(path))
    if secret is None:
        raise Unproven(path, "it has no secret by which it could prove that it is ours")
    if uid != os.geteuid() or proof.sandboxed(pid):
        raise Unproven(path, "its process is not one of this user in our pid namespace")
    return Talk(path, secret)


def prove(sock: socket.socket, path: str) -> None:
    """Do the whole proof on a blocking socket; raises OSError, Unproven among them."""
    talk = begin(sock, path)
    if talk is None:
        return
    sock.sendall(talk.question)
    line = b""
    while not line.endswith(b"\n") and len(line) < proof.LONGEST:
        more = sock.recv(proof.LONGEST)
        if not more:
            break
        line += more
    sock.sendall(talk.reply(line))
