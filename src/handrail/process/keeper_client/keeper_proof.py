"""Check that a process that listens as a keeper is the user's own, before sending it anything.

A keeper and a server share the secret of their directory (``handrail.secret_proof``).  Besides, the
kernel shows that what listens has our user id, and that the process which answers is in our own pid
namespace: every sandboxed command is in one below.

A keeper of a version that knew no secret cannot prove anything, and its directory has none.  It is
used if the kernel has no objection, then replaced and given a secret (``Launcher.hello``).
"""

from __future__ import annotations

import array
import os
import socket
import struct

from handrail import secret_proof
from handrail.keeper import messages

#: How long what listens may take for each answer.
SECONDS = 4.0
_CREDENTIALS = struct.Struct("3i")


def doubt(sock: socket.socket, secret: bytes | None, seconds: float | None) -> str | None:
    """Why the other end must not be used; None if it may be.

    ``seconds``: for each answer, None for any time.  Raises TimeoutError.
    """
    pid, uid = secret_proof.peer(sock)
    if uid != os.geteuid():
        return f"it belongs to user {uid}"
    if pid == 0:
        return "its process is in no pid namespace that is ours"
    sock.settimeout(seconds)
    try:
        reason = None if secret is None else _doubt(sock, secret)
        return reason or _doubt_process(sock)
    except TimeoutError:
        raise
    except (OSError, ValueError, IndexError) as error:
        return f"it does not answer as a keeper does ({error})"


def report(path: str, reason: str) -> None:
    """Log that a socket is left alone."""
    import logging

    logging.getLogger(__name__).error("%s is not used as a keeper: %s", path, reason)


def _doubt(sock: socket.socket, secret: bytes) -> str | None:
    asked = secret_proof.nonce()
    messages.send(sock, messages.PROVE, 1, [asked])
    said = _received(sock)
    if said is None or said.op != messages.PROOF:
        return "it does not prove that it knows the secret of its directory"
    own, answer = said.fields
    if not secret_proof.fits(secret, secret_proof.KEEPER, asked, own, answer):
        return "what it says is no proof that it knows the secret of its directory"
    messages.send(
        sock, messages.PROVE, 2, [secret_proof.answer(secret, secret_proof.SERVER, asked, own)]
    )
    said = _received(sock)
    if said is None or said.op != messages.PROOF:
        return "it does not take our proof"
    return None


def _received(sock: socket.socket) -> messages.Message | None:
    said = messages.receive(sock)
    if said is not None:
        said.close()  # none of ours sends descriptors here
    return said


def _doubt_process(sock: socket.socket) -> str | None:
    """Ask twice: a process that answers before and after its check is the checked one."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    try:
        before = _answering(sock)
        if secret_proof.sandboxed(before):
            return f"process {before}, which answers, is in a sandbox"
        if _answering(sock) != before:
            return "several processes answer"
        return None
    finally:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)


def _answering(sock: socket.socket) -> int:
    """The pid of the process that answers a harmless question, from the kernel."""
    messages.send(sock, messages.WHO, 1, [])
    space = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(16)
    _, ancillary, _, _ = sock.recvmsg(4096, space, socket.MSG_CMSG_CLOEXEC)
    found = 0
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            passed = array.array("i")
            passed.frombytes(data[: len(data) - len(data) % passed.itemsize])
            for fd in passed:
                os.close(fd)
        elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            found, uid, _ = _CREDENTIALS.unpack(data)
            if uid != os.geteuid():
                raise ValueError(f"user {uid} answers")
    if not found:
        raise ValueError("the kernel names no process")
    return found
