"""Two programs of one user prove to each other that they know the same secret.

Each side sends a nonce; each answers with a keyed hash over its role and both nonces, so neither an
earlier message nor the other side's can be replayed.  Keyed BLAKE2b replaces HMAC: ``hmac`` and
``hashlib`` load OpenSSL, which the keeper has no other use for.

Also returns the kernel's credentials of a socket's peer.
"""

from __future__ import annotations

import os
import socket
import struct

#: Roles, so that an answer cannot be used in the other direction.
KEEPER, SERVER, CLIENT = b"keeper", b"server", b"client"
_CREDENTIALS = struct.Struct("3i")


def nonce() -> bytes:
    """A new random nonce."""
    return os.urandom(16).hex().encode()


def answer(secret: bytes, role: bytes, asked: bytes, own: bytes) -> bytes:
    """The keyed hash over a role and both nonces, which only a holder of the secret can compute.

    ``asked`` is the nonce of the side that connected, ``own`` that of the side that listens.
    """
    from _blake2 import blake2b  # only when a proof is requested

    said = b" ".join((role, asked, own))
    return blake2b(said, key=secret, digest_size=32).hexdigest().encode()


def fits(secret: bytes, role: bytes, asked: bytes, own: bytes, said: bytes) -> bool:
    """Check an answer in constant time."""
    from _operator import _compare_digest

    return _compare_digest(answer(secret, role, asked, own), said)


def peer(sock: socket.socket) -> tuple[int, int]:
    """Process id and user id of the program at the other end of a Unix socket."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


def sandboxed(pid: int) -> bool:
    """Whether a process has a pid namespace below ours, or is none that we can see."""
    return len(_status(pid).get(b"NSpid", ())) != 1


def is_command(pid: int) -> bool:
    """Whether a process is held as sandboxed commands are; a server in a container is not.

    False for one that we cannot see.
    """
    status = _status(pid)
    return len(status.get(b"NSpid", ())) > 1 and status.get(b"NoNewPrivs") == [b"1"]


def _status(pid: int) -> dict[bytes, list[bytes]]:
    """Read ``/proc/PID/status`` by name; empty for a process that we cannot see."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            fields = (line.partition(b":") for line in file)
            return {name: value.split() for name, _, value in fields}
    except OSError:
        return {}


# --- on a stream, before anything else is sent ------------------------------------------------

#: How a client asks a server on a Unix socket for its proof.
ASK = b"handrail-proof "
#: Longest line of a proof.
LONGEST = 256


def ask_line(own: bytes) -> bytes:
    """The client's first line."""
    return ASK + own + b"\n"


def server_line(secret: bytes, asked: bytes, own: bytes) -> bytes:
    """The server's answer to it."""
    return ASK + own + b" " + answer(secret, SERVER, asked, own) + b"\n"


def client_line(secret: bytes, asked: bytes, line: bytes) -> bytes | None:
    """The client's second line, or None: the server has not proved that it knows the secret."""
    words = line.removeprefix(ASK).split()
    if not line.startswith(ASK) or len(words) != 2:
        return None
    if not fits(secret, SERVER, asked, words[0], words[1]):
        return None
    return ASK + answer(secret, CLIENT, asked, words[0]) + b"\n"
