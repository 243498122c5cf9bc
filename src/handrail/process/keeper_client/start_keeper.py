"""Start the keeper, as the first thing a server does.

Apart from ``spawn_children.py`` so that the program can be started before asyncio is imported: both
then get ready at the same time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
from typing import NamedTuple

from handrail import memory_file, own_code
from handrail.errors import UsageError
from handrail.keeper import hardening, messages
from handrail.keeper.restart import save as reexec_save
from handrail.process import required_syscalls


class KeeperHandle(NamedTuple):
    """A running keeper to which nothing was sent yet."""

    sock: socket.socket
    pid: int
    found: bool = False  # it was there already, and is no child of ours
    secret: bytes = b""  # what servers that find it by its socket have to know


class KeeperSilent(UsageError):
    """A keeper exists and does not answer."""


#: Python and the keeper's program, as this server has them.
PROGRAM = (sys.executable, os.path.join(os.path.dirname(messages.__file__), "__main__.py"))
#: How long a keeper may take to say that it can take over.
_CHECK_SECONDS = 20.0
#: The keeper gives a holder three seconds to answer, and a dying one some more.
_CLAIM_SECONDS = 10.0


def find_keeper(
    path: str, secret: bytes | None = None, *, report: bool = True, wait: bool = False
) -> KeeperHandle | None:
    """The keeper that listens there, if there is one and it proves that it is the user's own.

    ``secret``: of the directory it listens in; None if that has none yet, as earlier versions left
    it.  ``report``: log why one is not used.  One that does not answer is waited for, and named in
    the log, if ``wait`` says so; else KeeperSilent is raised.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setblocking(False)
    connected = True
    try:
        sock.connect(path)
    except BlockingIOError:
        connected = False  # it listens, and has not accepted those that came before
    except OSError:
        sock.close()
        return None
    sock.setblocking(True)
    from handrail.process.keeper_client import keeper_proof, silent_keeper  # if something listens

    try:
        with silent_keeper.reported_by_thread(sock) if wait else contextlib.nullcontext():
            if not connected:
                if not wait:
                    raise TimeoutError
                sock.connect(path)
            reason = keeper_proof.doubt(sock, secret, None if wait else keeper_proof.SECONDS)
    except ConnectionRefusedError:
        sock.close()
        return None  # it has ended meanwhile
    except TimeoutError:
        said = silent_keeper.describe(sock)
        sock.close()
        raise KeeperSilent(f"{path}: {said}; then start again") from None
    except BaseException:
        sock.close()
        raise
    if reason is not None:
        sock.close()
        if report:
            keeper_proof.report(path, reason)
        return None
    sock.settimeout(None)
    return KeeperHandle(sock, 0, found=True, secret=secret or b"")


def claim_lease(handle: KeeperHandle) -> str | None:
    """Take the lease from a server that does not answer; the reason when it is refused."""
    from handrail.process.keeper_client import silent_keeper  # only for a directory that is in use

    fields = messages.Hello(messages.VERSION, os.getpid(), claim=True).pack()
    answer = None
    if not silent_keeper.is_stopped(handle.sock):
        answer = ask_keeper(handle, messages.HELLO, fields, _CLAIM_SECONDS)
    if answer is None:
        return silent_keeper.describe(handle.sock)
    return None if answer.op == messages.WELCOME else answer.fields[0].decode()


def holder_of(handle: KeeperHandle) -> int:
    """The pid of the server that holds the lease, or 0."""
    answer = ask_keeper(handle, messages.WHO, [], _CLAIM_SECONDS)
    if answer is None or answer.op != messages.DONE:
        return 0
    return messages.Count.unpack(answer.fields).number


def check_keeper() -> str | None:
    """Whether the keeper's program can take over from a running one; returns the reason if not."""
    import subprocess  # only for an upgrade

    python, main = PROGRAM
    try:
        asked = subprocess.run(
            [python, "-s", "-P", "-S", main, "--check", reexec_save.FORM.decode()],
            stdin=subprocess.DEVNULL,
            env=_environment(),
            capture_output=True,
            timeout=_CHECK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"the new one does not start: {error}"
    if asked.returncode == 0:
        return None
    return "the new one cannot take over: " + asked.stderr.decode("utf-8", "replace")[-400:]


def ask_keeper(
    handle: KeeperHandle, op: int, fields: list[bytes], seconds: float
) -> messages.Message | None:
    """Send one request without an event loop; None when no answer came."""
    handle.sock.settimeout(seconds)
    try:
        messages.send(handle.sock, op, 1, fields)
        return messages.receive(handle.sock)
    except OSError:
        return None


def become_private() -> None:
    """Hide this process from children as its keeper is hidden."""
    hardening.become_private()


def start_keeper(
    *,
    listener: socket.socket | None = None,
    orphan_ttl: float = 600.0,
    log: int | None = None,
    secret: bytes = b"",
) -> KeeperHandle:
    """Start the program.  Without ``listener`` it ends when our end of the link closes.

    ``log``: a descriptor for what it says.  ``secret``: what servers must know that find it.
    Called before the event loop is made, so that it starts while we still import.  Raises
    UsageError, and starts nothing, where a system call is refused that nothing can replace.
    """
    required_syscalls.check()
    ours, theirs = messages.pair()
    main = PROGRAM[1]
    # Out of the way of the numbers the keeper will find them under.
    first = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 16)
    second = fcntl.fcntl(listener, fcntl.F_DUPFD_CLOEXEC, 16) if listener else -1
    third = _in_memory(secret) if secret else -1
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0)
        if log is None
        else (os.POSIX_SPAWN_DUP2, log, 2),
        (os.POSIX_SPAWN_DUP2, first, 3),
    ]
    if listener is not None:
        actions.append((os.POSIX_SPAWN_DUP2, second, 4))
    if secret:
        actions.append((os.POSIX_SPAWN_DUP2, third, 5))
    # -I without -E: the environment is ours, and one of its variables is for the interpreter.
    argv = [sys.executable, "-s", "-P", "-S", main]
    argv += ["3", "4" if listener else "-", "5" if secret else "-", str(orphan_ttl)]
    try:
        pid = os.posix_spawn(
            sys.executable, argv, _environment(), file_actions=actions, setsid=True, setsigmask=()
        )
    except OSError as error:
        ours.close()
        required_syscalls.check_start(sys.executable, error)
        raise
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        for copy in (first, second, third):
            if copy >= 0:
                os.close(copy)
    return KeeperHandle(ours, pid, secret=secret)


def _in_memory(text: bytes) -> int:
    """An fd of the program text in memory, above the keeper's fds."""
    made = memory_file.of("handrail-secret", text)
    try:
        return fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, 16)
    finally:
        os.close(made)


def _environment() -> dict[str, str]:
    """The keeper's environment: not this process's, which may hold secrets and would outlive it.

    Python's own allocator never gave back what ten thousand children had taken (3 MiB of 11);
    the C library's does, and a keeper allocates too little for its speed to matter.
    """
    return {**hardening.for_keeper(own_code.environment()), "PYTHONMALLOC": "malloc"}
