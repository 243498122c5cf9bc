"""``handrail proxy``: connect stdin and stdout to this machine's own server.

``ssh://host`` runs it on the host.  It connects to this user's server by its Unix socket,
starts one if there is none, and copies bytes without reading them.  A session
outlives the proxy, so that the next one can resume it.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys

from handrail import own_code, private_files, private_places
from handrail.cli import error_output
from handrail.errors import HandrailError, UsageError

_BLOCK = 256 * 1024
#: How long a server may take to start.
_START_SECONDS = 20.0
#: How long a server may take to prove that it is ours.
_ANSWER_SECONDS = 20.0
_LOCK = "start.lock"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Connect stdin and stdout to the exec-server of this user, and start it if there is none."
    )
    parser.add_argument(
        "--socket",
        metavar="PATH",
        help="the server's socket (default: handrail/server.sock in the user's runtime directory)",
    )
    parser.add_argument("--no-start", action="store_true", help="fail when no server listens there")


def run(args: argparse.Namespace) -> int:
    """Copy until one side ends; returns 1 when no server can be reached or started."""
    try:
        path = os.path.abspath(args.socket) if args.socket else default_socket()
        sock = connect(path)
        if sock is None:
            if args.no_start:
                raise UsageError(f"no server listens at {path}; start one, or leave --no-start out")
            sock = start(path)
    except (HandrailError, OSError) as error:
        return error_output.tell(error, 1)
    with sock:
        try:
            _copy(sock)
        except KeyboardInterrupt:
            return 130
    return 0


def default_socket() -> str:
    """The default socket of this user's server; raises UsageError."""
    return os.path.join(private_places.runtime_directory(), "server.sock")


def connect(path: str) -> socket.socket | None:
    """Connect to the server there and check that it is the user's own; None if none listens.

    Raises OSError when it is not, or cannot be connected to.
    """
    from handrail.transport import server_proof

    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(_ANSWER_SECONDS)
    try:
        server_proof.connected(sock, path)
        server_proof.prove(sock, path)
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        return None
    except TimeoutError:
        sock.close()
        raise UsageError(
            f"the server at {path} does not answer; if it is stopped (SIGSTOP), send it SIGCONT"
        ) from None
    except OSError:
        sock.close()
        raise
    sock.settimeout(None)
    return sock


def start(path: str) -> socket.socket:
    """Start a server that outlives this process; of several proxies at once one does it."""
    import fcntl

    _, lock = private_places.open_lock(_LOCK)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sock = connect(path)
        if sock is None:
            _start_server(path)
            sock = connect(path)
        if sock is None:
            raise UsageError(
                f"the server that was started does not listen at {path}; {path}.log says why"
            )
        return sock
    finally:
        os.close(lock)


def _open_log(path: str) -> int:
    """Open the log of a server started here, beside its socket, in a private directory."""
    private_files.make_above(os.fsencode(path))
    above = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return private_files.open_file(above, os.path.basename(path), flags)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be used as a log ({error.strerror}); remove it and try again"
        ) from None
    finally:
        os.close(above)


def _workspaces(path: str) -> str:
    """The directory of the workspaces of the server at this socket.

    In the state home: the runtime directory, where the socket is, may be of memory.
    """
    from _blake2 import blake2b

    name = blake2b(os.fsencode(path), digest_size=8).hexdigest()
    return os.path.join(private_places.state_home(), "workspaces", name)


def _start_server(path: str) -> None:
    import select
    import subprocess  # costs 10 ms, and most proxies find a server

    command = [sys.executable, "-P", "-m", "handrail", "serve", "--listen", f"unix:{path}"]
    log = _open_log(f"{path}.log")
    try:
        server = subprocess.Popen(
            [*command, "--state-dir", f"{path}.state", "--workspaces", _workspaces(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            env=own_code.environment(),
            start_new_session=True,
        )
    finally:
        os.close(log)
    if server.stdout is None:
        return
    with server.stdout as out:
        # Its first line says that it listens; nothing else is ever written there.
        ready, _, _ = select.select([out], [], [], _START_SECONDS)
        line = out.readline() if ready else b""
    if not line:
        server.kill()
        server.wait()
        raise UsageError(f"no server could be started here; {path}.log says why")
    server.returncode = 0  # it runs on without us: there is nothing to wait for


def _copy(sock: socket.socket) -> None:
    """Copy both ways at once, until the server hangs up or the reader of our stdout is gone.

    In two threads: neither direction may wait for the other.
    """
    import threading

    threading.Thread(target=_send_stdin, args=(sock,), daemon=True).start()
    try:
        while data := sock.recv(_BLOCK):
            _write_all(1, data)
    except OSError:
        pass  # one side is gone, and the other sees our end


def _send_stdin(sock: socket.socket) -> None:
    try:
        while data := os.read(0, _BLOCK):
            sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the other thread handles it


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
