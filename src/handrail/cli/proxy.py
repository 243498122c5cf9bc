"""``handrail proxy``: stdin and stdout as a connection to this machine's own server.

What ``ssh://host`` runs at the other end.  Connects to the server of this user by its Unix
socket, starts one if there is none, and copies bytes; it understands none of them.  A session
outlives the proxy, so that the next one can resume it.
"""

from __future__ import annotations

import argparse
import os
import socket
import stat
import sys

from handrail import own_code
from handrail.cli import failure
from handrail.errors import HandrailError, UsageError

_BLOCK = 256 * 1024
#: How long a server may take to start.
_START_SECONDS = 20.0


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "proxy",
        help="bridge stdin and stdout to this machine's server",
        description="Connect stdin and stdout to the exec-server of this user, and start it if"
        " there is none.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--socket",
        metavar="PATH",
        help="the server's socket (default: handrail/server.sock in the user's runtime directory)",
    )
    parser.add_argument("--no-start", action="store_true", help="fail when no server listens there")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Copy until one side ends; 1 when there is no server to be had."""
    try:
        path = os.path.abspath(args.socket) if args.socket else default_socket()
        sock = _connect(path)
        if sock is None:
            if args.no_start:
                raise UsageError(f"no server listens at {path}; start one, or leave --no-start out")
            sock = _start(path)
    except (HandrailError, OSError) as error:
        return failure.tell(error, 1)
    with sock:
        try:
            _copy(sock)
        except KeyboardInterrupt:
            return 130
    return 0


def default_socket() -> str:
    """Where the server of this user listens when nobody says otherwise."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if not runtime or not os.path.isdir(runtime):
        runtime = f"/tmp/handrail-{os.getuid()}"  # noqa: S108 (checked below to be ours alone)
    folder = os.path.join(runtime, "handrail")
    before = os.umask(0o077)
    try:
        os.makedirs(folder, exist_ok=True)
    finally:
        os.umask(before)
    for place in (runtime, folder):
        info = os.lstat(place)
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o022:
            raise UsageError(f"{place} is not a directory of ours alone; give --socket another one")
    return os.path.join(folder, "server.sock")


def _connect(path: str) -> socket.socket | None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        return None
    except OSError:
        sock.close()
        raise
    return sock


def _start(path: str) -> socket.socket:
    """Start a server that outlives us; of several proxies at once one does it."""
    import fcntl

    parent = os.path.dirname(path)
    before = os.umask(0o077)
    try:
        os.makedirs(parent, exist_ok=True)
    finally:
        os.umask(before)
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sock = _connect(path)
        if sock is None:
            _start_server(path)
            sock = _connect(path)
        if sock is None:
            raise UsageError(f"the server that was started does not listen at {path}")
        return sock
    finally:
        os.close(lock)


def _start_server(path: str) -> None:
    import select
    import subprocess  # costs 10 ms, and most proxies find a server

    command = [sys.executable, "-P", "-m", "handrail", "serve", "--listen", f"unix:{path}"]
    with open(f"{path}.log", "ab") as log:
        server = subprocess.Popen(
            [*command, "--state-dir", f"{path}.state"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            env=own_code.environment(),
            start_new_session=True,
        )
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
    server.returncode = 0  # it goes on without us: there is nothing to wait for


def _copy(sock: socket.socket) -> None:
    """Both ways at once, until the server hangs up or nobody reads our stdout.

    In two threads: neither way may wait for the other.
    """
    import threading

    threading.Thread(target=_send_stdin, args=(sock,), daemon=True).start()
    try:
        while data := sock.recv(_BLOCK):
            _write_all(1, data)
    except OSError:
        pass  # one side is gone, and the other learns it by our end


def _send_stdin(sock: socket.socket) -> None:
    try:
        while data := os.read(0, _BLOCK):
            sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # seen by the other thread


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
