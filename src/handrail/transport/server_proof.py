"""Check that the server behind a Unix socket is the user's own, before sending it anything.

A server whose socket is in a place of ours, as that of ``run --detach`` and ``proxy`` is, has to
prove that it knows the secret beside the socket (``handrail.secret_proof``).  So has one at
a path elsewhere if a server of this user has listened there: its secret is in the state home, and
a command that takes the path for itself does not know it.  Of any other only the user id is asked,
and that it is no sandboxed command: a socket elsewhere was named by the user.
"""

from __future__ import annotations

import os
import socket

from handrail import directory_secret, private_files, private_places, secret_proof
from handrail.errors import UsageError

_LONGEST_NAME = 107
#: The file with the path of the socket, beside a secret that is not beside the socket.
_PATH = "path"


class Unproven(ConnectionError):
    """The listener is not known to be the user's own server; nothing was sent to it."""

    def __init__(self, path: str, reason: str, advice: str = "") -> None:
        advice = advice or (
            "if it is a server of an earlier version, replace it with `handrail upgrade"
            f" --state-dir {path}.state`, else remove the socket"
        )
        super().__init__(f"what listens at {path} is not used: {reason}; {advice}")


def make_secret(path: str) -> bytes:
    """Make the secret that the server at a path has to know; empty if nothing can be kept.

    Called under a lock.  Raises UsageError for a path in our places.
    """
    ours = private_places.contains(path)
    try:
        parent = os.path.dirname(path) if ours else _elsewhere(path)
        directory = private_files.open_directory(parent)
    except private_files.NotOurs:
        if ours:
            raise
        return b""
    try:
        if not ours:
            _note(directory, path)
            _forget_gone(os.path.dirname(parent))
        return directory_secret.make_secret(directory)
    except OSError as error:
        raise UsageError(
            f"no secret can be kept in {parent} ({error.strerror}), so clients could not know this"
            " server; make room, or remove the file `secret` there"
        ) from None
    finally:
        os.close(directory)


class Talk:
    """The client's two lines of the proof."""

    def __init__(self, path: str, secret: bytes, advice: str = "") -> None:
        self._path = path
        self._advice = advice
        self._secret = secret
        self._nonce = secret_proof.nonce()
        self.question = secret_proof.ask_line(self._nonce)

    def reply(self, line: bytes) -> bytes:
        """The second line, if our own server answered the first; raises Unproven."""
        said = secret_proof.client_line(self._secret, self._nonce, line)
        if said is None:
            reason = "it does not prove that it knows the secret of its place"
            raise Unproven(self._path, reason, self._advice)
        return said


def connected(sock: socket.socket, path: str) -> bool:
    """Connect; False if the server's backlog is full just now.  Raises OSError."""
    if len(os.fsencode(path)) <= _LONGEST_NAME:
        return _connected(sock, path)
    parent, name = os.path.split(path)
    directory = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _connected(sock, private_files.socket_address(directory, name))
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
    pid, uid = secret_proof.peer(sock)
    if uid not in (os.geteuid(), 0):
        raise Unproven(path, f"it belongs to user {uid}")
    if not private_places.contains(path):
        return _begin_elsewhere(path, pid, uid)
    secret = directory_secret.secret_in(os.path.dirname(path))
    if secret is None:
        raise Unproven(path, "it has no secret by which it could prove that it is ours")
    if uid != os.geteuid() or secret_proof.sandboxed(pid):
        raise Unproven(path, "its process is not one of this user in our pid namespace")
    return Talk(path, secret)


def _begin_elsewhere(path: str, pid: int, uid: int) -> Talk | None:
    if secret_proof.is_command(pid):
        raise Unproven(path, "its process is a sandboxed command", "remove the socket")
    try:
        place = _elsewhere(path)
    except private_files.NotOurs:
        return None
    secret = directory_secret.secret_in(place)
    if secret is None or uid != os.geteuid():  # none of ours was there, or it is root's now
        return None
    return Talk(path, secret, f"if another program is to listen there, remove {place}")


def _elsewhere(path: str) -> str:
    """The directory of the secret of a server outside our places; raises NotOurs."""
    from _blake2 import blake2b

    parent, name = os.path.split(os.path.abspath(path))
    real = os.path.join(os.path.realpath(parent), name)
    known = blake2b(os.fsencode(real), digest_size=16).hexdigest()
    return os.path.join(private_places.state_home(), "sockets", known)


def _note(directory: int, path: str) -> None:
    file = private_files.open_file(directory, _PATH, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.write(file, os.fsencode(os.path.abspath(path)))
    finally:
        os.close(file)


def _forget_gone(place: str) -> None:
    """Remove the secrets of sockets whose directories are gone."""
    for name in os.listdir(place):
        known = os.path.join(place, name)
        try:
            with open(os.path.join(known, _PATH), "rb") as file:
                gone = not os.path.isdir(os.path.dirname(file.read()))
            if gone:
                for inner in os.listdir(known):
                    os.unlink(os.path.join(known, inner))
                os.rmdir(known)
        except OSError:
            pass  # another server is just making it, or removing it


def prove(sock: socket.socket, path: str) -> None:
    """Do the whole proof on a blocking socket; raises OSError, Unproven among them."""
    talk = begin(sock, path)
    if talk is None:
        return
    sock.sendall(talk.question)
    line = b""
    while not line.endswith(b"\n") and len(line) < secret_proof.LONGEST:
        more = sock.recv(secret_proof.LONGEST)
        if not more:
            break
        line += more
    sock.sendall(talk.reply(line))
