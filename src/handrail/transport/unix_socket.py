"""Unix sockets: only for the owner of the server (and root), from the first instant.

Owns how a safe socket file is made (its directory, its mode, stale ones) and which users connect.
A peer that begins with an HTTP method is served like on TCP, with ``route``; any other sends one
message a line and gets the receiver that ``accept`` returns.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from handrail import private_files, private_places, secret_proof
from handrail.errors import ConnectionLost, UsageError
from handrail.transport import server_proof
from handrail.transport.base import Receiver, Transport
from handrail.transport.connection_limits import Admission, ListenLimits
from handrail.transport.line_framing import LineConnection
from handrail.transport.message_limits import MESSAGE_LIMIT
from handrail.transport.websocket import BACKLOG, WebSocketListener
from handrail.transport.websocket_handshake import HttpHandshake, Route

_METHODS = tuple(
    f"{name} ".encode()
    for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT")
)
#: The kernel's limit for a socket path, without its NUL.
_LONGEST_NAME = 107
_LOCK = "listen.lock"
_LOCK_TRIES = 200
_LOCK_PAUSE = 0.01


#: Given the user id of a peer, as of its connect.
Accept = Callable[[int], Receiver | None]


class UnixConnection(LineConnection):
    kind = "unix"

    __slots__ = ()


class UnixListener(WebSocketListener):
    """A listening Unix socket; closing removes its file."""

    identity: tuple[int, int]

    def leave(self) -> None:
        self.identity = (0, 0)  # matches no file
        self.close()

    def close(self) -> None:
        super().close()
        path = str(self.sockname)
        try:
            info = os.lstat(path)
            # Another server may have put its own socket there since.
            if (info.st_dev, info.st_ino) == self.identity:
                os.unlink(path)
        except FileNotFoundError:
            pass


class _UnixHandshake(HttpHandshake):
    """Decides by the first bytes whether the peer speaks HTTP or lines."""

    def __init__(self, route: Route, admission: Admission, accept: Accept, secret: bytes) -> None:
        super().__init__(route, admission)
        self._accept = accept
        self._secret = secret
        #: The nonces of client and server during the proof.
        self._nonces: tuple[bytes, bytes] | None = None
        self._first = b""
        self._speaks_http = False
        self._uid = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        _, self._uid = secret_proof.peer(transport.get_extra_info("socket"))
        self.peer = f"uid {self._uid}"
        super().connection_made(transport)
        if self._uid not in (os.geteuid(), 0):
            self._admission.warn(f"{self.peer} may not use this socket")
            self.drop()

    def data_received(self, data: bytes) -> None:
        if self._speaks_http or self._answered:
            super().data_received(data)
            return
        self._first = first = self._first + data
        if first.startswith(secret_proof.ASK):
            self._prove(first)
        elif first.startswith(_METHODS):
            self._speaks_http = True
            super().data_received(first)
        elif not any(start.startswith(first) for start in (*_METHODS, secret_proof.ASK)):
            self._speak_lines(first)

    def _prove(self, first: bytes) -> None:
        """Prove to a client that asks that we know our secret, and check that it knows it."""
        line, end, rest = first.partition(b"\n")
        if not end:
            if len(line) > secret_proof.LONGEST:
                self.drop()
            return
        said = line.removeprefix(secret_proof.ASK).strip()
        if not self._secret or not said:
            self.drop()
        elif self._nonces is None:
            self._nonces = said, secret_proof.nonce()
            self._transport.write(secret_proof.server_line(self._secret, *self._nonces))
            self._go_on(rest)
        elif secret_proof.fits(self._secret, secret_proof.CLIENT, *self._nonces, said):
            self._secret = b""  # once is enough
            self._go_on(rest)
        else:
            self._admission.warn(f"{self.peer} does not know the secret of this server")
            self.drop()

    def _go_on(self, rest: bytes) -> None:
        self._first = b""
        if rest:
            self.data_received(rest)

    def _speak_lines(self, first: bytes) -> None:
        # Such a peer does not read HTTP, so it is refused by closing the connection.
        if self._admission.is_full:
            self._admission.warn(f"{self._admission.limits.max_connections} connections are open")
            self.drop()
            return
        receiver = self._ask()
        if receiver is None:
            self.drop()
            return
        self._timer.cancel()
        limits = self._admission.limits
        connection = UnixConnection(
            receiver,
            self.peer,
            limit=limits.message_limit,
            close_timeout=limits.close_timeout,
            on_lost=self._admission.closed,
            message_seconds=limits.message_seconds,
        )
        self._admission.opened(self, connection)
        connection.open(self._transport, first)

    def _ask(self) -> Receiver | None:
        try:
            return self._accept(self._uid)
        except Exception as error:  # noqa: BLE001  the caller's code, like the route
            self._log_failure("accept", error)
            return None


async def listen(
    path: str,
    route: Route,
    *,
    accept: Accept,
    limits: ListenLimits | None = None,
    sock: socket.socket | None = None,
) -> UnixListener:
    """Accept peers of our own user, and root, on a socket at ``path``.

    The parent directory is made (0700) if it is missing.  In a private place of ours we prove to
    clients that we know its secret.  Raises UsageError when the directory is not ours alone to
    write to, when ``path`` is taken, or when it cannot be a socket's name.
    """
    path, parent = _prepare_directory(path)
    admission = Admission(limits or ListenLimits())
    async with _locked():
        secret = server_proof.make_secret(path)
        if sock is None:  # else one that listens there already
            sock = _bind(path, parent)
    try:
        info = os.lstat(path)
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: _UnixHandshake(route, admission, accept, secret), sock=sock, backlog=BACKLOG
        )
    except BaseException:
        sock.close()
        os.unlink(path)
        raise
    listener = UnixListener(server, admission, path)
    listener.identity = (info.st_dev, info.st_ino)
    return listener


async def connect(path: str, receiver: Receiver) -> Transport:
    """Exchange lines with the server at ``path``; raises ConnectionLost when there is none.

    Also when it is in a private place of ours, or has a secret beside it, and does not prove that
    it knows that: nothing was sent to it then.
    """
    loop = asyncio.get_running_loop()
    connection = UnixConnection(receiver, path, limit=MESSAGE_LIMIT)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        while not server_proof.connected(sock, path):  # noqa: ASYNC110 (no event says when)
            await asyncio.sleep(_LOCK_PAUSE)
        talk = server_proof.begin(sock, path)
        if talk is not None:
            await loop.sock_sendall(sock, talk.question)
            line = b""
            while not line.endswith(b"\n") and len(line) < secret_proof.LONGEST:
                more = await loop.sock_recv(sock, secret_proof.LONGEST)
                if not more:
                    break
                line += more
            await loop.sock_sendall(sock, talk.reply(line))
        await loop.create_unix_connection(lambda: connection, sock=sock)
    except OSError as error:
        sock.close()
        raise ConnectionLost(f"cannot connect to {path}: {error.strerror or error}") from error
    except BaseException:
        sock.close()
        raise
    return connection


def _prepare_directory(path: str) -> tuple[str, str]:
    """The full path and its directory, which then exists and is safe."""
    path = os.path.abspath(path)
    parent = os.path.dirname(path)
    short = private_files.socket_address(os.sysconf("SC_OPEN_MAX"), os.path.basename(path))
    if len(os.fsencode(path)) > _LONGEST_NAME < len(os.fsencode(short)):
        raise UsageError(
            f"the socket path {path} is longer than the {_LONGEST_NAME} bytes the kernel takes;"
            " give a shorter one"
        )
    try:
        private_files.make_above(os.fsencode(path))
        info = os.stat(parent)
    except OSError as error:
        raise UsageError(f"cannot use {parent} for a socket: {error.strerror}") from error
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
        raise UsageError(f"{parent} does not belong to this user; choose a directory that does")
    if info.st_mode & 0o022:
        raise UsageError(f"{parent} may be written to by others; use a directory of mode 0700")
    return path, parent


@asynccontextmanager
async def _locked() -> AsyncIterator[None]:
    """Allow one server at a time between the check for a stale socket and listening.

    Without it a second server could take the first one's new socket for a stale one.  The lock is
    in a private place of ours: any command that reads the user's directory could lock that.
    """
    path, fd = private_places.open_lock(_LOCK)
    try:
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_LOCK_PAUSE)
        else:
            raise UsageError(f"{path} stays locked; is another server starting? try again")
        yield
    finally:
        os.close(fd)


def _bind(path: str, parent: str) -> socket.socket:
    directory = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # A mode set after bind() would leave a moment in which any user can connect.
    mask = os.umask(0o177)
    try:
        address = path
        if len(os.fsencode(path)) > _LONGEST_NAME:
            address = private_files.socket_address(directory, os.path.basename(path))
        _remove_stale(path, address)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise UsageError(f"cannot listen at {path}: {error.strerror}") from error
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(mask)
        os.close(directory)
    return sock


def _remove_stale(path: str, address: str) -> None:
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(info.st_mode):
        raise UsageError(f"{path} exists and is not a socket; remove it or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except FileNotFoundError:
            return
        except OSError:
            pass  # a full backlog, or a datagram socket: a server is there
    raise UsageError(f"another server listens at {path}; stop it or choose another path")
