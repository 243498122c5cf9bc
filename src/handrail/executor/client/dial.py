"""Dialers to an exec-server: WebSocket, Unix socket, a program's stdio, ssh.

A dialer opens one connection at a time and says whether dialing again can reach the same
sessions: a listening server keeps them, a program that is its own server takes them along.  The
connection itself, with TLS, is in ``transport/websocket.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from handrail import memory_file, own_code, secret_variables
from handrail.errors import (
    AuthenticationFailed,
    ConnectionLost,
    ExecutorTransportFailed,
    UsageError,
)
from handrail.transport.base import Receiver, Transport

if TYPE_CHECKING:
    import ssl as ssl_module

#: How long a program may take to end by itself when its stdin has ended.
_END_SECONDS = 5.0
#: The same for a program that never sent anything and got SIGTERM.
_SILENT_SECONDS = 0.5


class Dialer(Protocol):
    """Opens connections to one server."""

    #: The address, for messages.
    where: str
    #: Whether a session can be resumed by dialing again.
    reconnects: bool

    async def dial(self, receiver: Receiver, timeout: float | None) -> Transport:
        """Open one connection; raises ConnectionLost when a retry may help, else other errors.

        ``timeout`` is in seconds, None for no limit.  The caller enforces it as well, by a
        cancellation.
        """

    async def close(self) -> None:
        """Release everything; ``dial`` is not called again."""


class WebSocketDialer:
    """Dials ``ws://`` and ``wss://``."""

    reconnects = True

    def __init__(
        self, url: str, token: str | None = None, ssl: ssl_module.SSLContext | None = None
    ) -> None:
        self.where = url
        self._headers = [("Authorization", f"Bearer {token}")] if token is not None else []
        self._ssl = ssl

    async def dial(self, receiver: Receiver, timeout: float | None) -> Transport:
        from handrail.transport import websocket

        return await websocket.connect(
            self.where, receiver, headers=self._headers, open_timeout=timeout, ssl=self._ssl
        )

    async def close(self) -> None:
        pass


class UnixDialer:
    """Dials ``unix:/path``: one message per line."""

    reconnects = True

    def __init__(self, path: str) -> None:
        self.where = f"unix:{path}"
        self._path = path

    async def dial(self, receiver: Receiver, timeout: float | None) -> Transport:
        from handrail.transport import unix_socket

        try:
            async with asyncio.timeout(timeout):
                return await unix_socket.connect(self._path, receiver)
        except TimeoutError:
            raise ConnectionLost(f"{self.where} did not answer within {timeout:g} s") from None

    async def close(self) -> None:
        pass


class ProgramDialer:
    """Starts a program that speaks the wire on its stdin and stdout."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        where: str | None = None,
        reconnects: bool = False,
        keep_stderr: bool = False,
    ) -> None:
        if not argv:
            raise UsageError("a program to connect to needs a name")
        self.where = where or shlex.join(argv)
        self.reconnects = reconnects
        self._argv = list(argv)
        self._keep_stderr = keep_stderr
        self._started: list[_Program] = []

    async def dial(self, receiver: Receiver, timeout: float | None) -> Transport:
        from handrail.transport import stdio

        await self._tidy()
        program = _Program(self._argv, keep_stderr=self._keep_stderr)
        self._started.append(program)
        process = program.process
        assert process.stdin is not None  # noqa: S101 (pipes were asked for)
        assert process.stdout is not None  # noqa: S101
        return await stdio.open_stdio(
            _Watched(receiver, program),
            stdin_fd=process.stdout.fileno(),
            stdout_fd=process.stdin.fileno(),
        )

    async def _tidy(self) -> None:
        """End what an earlier connection has left; if cancelled, it can be called again."""
        while self._started:
            await self._started[-1].end()
            self._started.pop()

    async def close(self) -> None:
        await self._tidy()


class _Program:
    """One run of the program."""

    def __init__(self, argv: list[str], *, keep_stderr: bool) -> None:
        #: Whether it has sent anything: if not, it has no session of ours.
        self.spoke = False
        self.stderr = memory_file.create("stderr") if keep_stderr else -1
        try:
            self.process = subprocess.Popen(
                argv,
                executable=_located(argv[0]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.stderr if keep_stderr else None,
                env=secret_variables.without(os.environ),
                bufsize=0,
                start_new_session=True,  # a Ctrl-C at our terminal must not reach it
            )
        except OSError as error:
            self._close_stderr()
            raise UsageError(f"cannot start {argv[0]}: {error.strerror or error}") from error

    def words(self) -> str:
        """The end of its stderr, in one line."""
        if self.stderr < 0:
            return ""
        size = os.fstat(self.stderr).st_size
        text = os.pread(self.stderr, 2000, max(0, size - 2000)).decode("utf-8", "replace")
        return "; ".join(line.strip() for line in text.splitlines() if line.strip())

    async def end(self) -> None:
        """Close its stdin and wait; a program that does not end is killed.

        One that never sent anything also gets SIGTERM: an ssh that waits for a host does not read
        its stdin, and the caller has waited long enough.
        """
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass  # nothing is buffered, so nothing is lost
        if not self.spoke:
            self._signal(signal.SIGTERM)
        try:
            patience = _END_SECONDS if self.spoke else _SILENT_SECONDS
            await asyncio.to_thread(self.process.wait, patience)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            await asyncio.to_thread(self.process.wait)
        self._close_stderr()

    def _signal(self, number: int) -> None:
        """Signal it and its session; it was not reaped, so the pid is its own."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def _close_stderr(self) -> None:
        if self.stderr >= 0:
            os.close(self.stderr)
            self.stderr = -1


class _Watched:
    """Passes everything on, and adds the program's stderr to the reason of the end."""

    def __init__(self, receiver: Receiver, program: _Program) -> None:
        self._program = program
        self._receiver = receiver
        self.connected = receiver.connected
        self.pause_writing = receiver.pause_writing
        self.resume_writing = receiver.resume_writing

    def message(self, data: str | bytes | bytearray) -> None:
        self._program.spoke = True
        self._receiver.message(data)

    def disconnected(self, why: str) -> None:
        words = self._program.words()
        self._receiver.disconnected(f"{why}; {words}" if words else why)


class MemoryDialer:
    """Connects to a server in this process: ``accept`` gives the receiver of its end."""

    reconnects = True
    where = "memory"

    def __init__(self, accept: Callable[[], Receiver]) -> None:
        self._accept = accept

    async def dial(self, receiver: Receiver, timeout: float | None) -> Transport:
        from handrail.transport.memory import memory_pair

        return memory_pair(receiver, self._accept())[0]

    async def close(self) -> None:
        pass


def _located(program: str) -> str:
    """The program to start, not one of that name that a sandboxed command has left in the PATH."""
    if "/" in program:
        return program
    found = own_code.find_program(program)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "it is in no directory of PATH that is not writable")
    return found


def ssh_dialer(
    url: str,
    *,
    ssh: Sequence[str] = ("ssh",),
    command: str = "handrail proxy",
) -> ProgramDialer:
    """Dials ``ssh://[user@]host[:port]``: plain ssh, with ``command`` as the bridge on the host."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"the ssh URL does not parse: {error}") from None
    if parts.scheme != "ssh" or not host or parts.path.strip("/") or parts.query:
        raise UsageError(f"an ssh URL looks like ssh://user@host:port, not {url}")
    if parts.password is not None:
        raise UsageError("an ssh URL holds no password; use a key or an agent")
    user = unquote(parts.username) if parts.username else None
    if host.startswith("-") or (user is not None and user.startswith("-")):
        raise UsageError(f"{url} names a host or user that ssh would take for an option")
    argv = [
        *ssh,
        "-T",
        # No terminal for a question of ssh, and a dead connection has to be noticed.
        *("-o", "BatchMode=yes", "-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=2"),
        *(("-p", str(port)) if port else ()),
        *(("-l", user) if user else ()),
        "--",
        host,
        command,
    ]
    return ProgramDialer(argv, where=url, reconnects=True, keep_stderr=True)


def dialer_for(
    where: str | Sequence[str],
    *,
    token: str | None = None,
    ssl: ssl_module.SSLContext | None = None,
    ssh: Sequence[str] = ("ssh",),
    ssh_command: str = "handrail proxy",
) -> Dialer:
    """The dialer for ``ws://``, ``wss://``, ``unix:/path``, ``ssh://host``, or a program's stdio.

    A program is given as its argument list.
    """
    if not isinstance(where, str):
        return ProgramDialer(where)
    if where.startswith(("ws://", "wss://")):
        return WebSocketDialer(where, token, ssl)
    if token is not None and where.startswith(("unix:", "ssh://")):
        raise UsageError(
            "a token is for ws:// and wss:// only: a Unix socket and ssh tell who connects"
        )
    if where.startswith("unix:"):
        path = where[5:].removeprefix("//")
        if not path.startswith("/"):
            raise UsageError(f"a Unix socket is named unix:/ABSOLUTE/PATH, not {where}")
        return UnixDialer(path)
    if where.startswith("ssh://"):
        return ssh_dialer(where, ssh=ssh, command=ssh_command)
    raise UsageError(
        f"cannot connect to {where!r}; give ws://host:port, wss://host, unix:/path, ssh://host,"
        " or the argument list of a program"
    )


def transport_failed(text: str, error: BaseException) -> ExecutorTransportFailed:
    """The error for a caller when no session could be had, with the reason."""
    if getattr(error, "status", None) == 401:  # a HandshakeError
        return AuthenticationFailed(
            f"{text}: {error}; give the server's token by --token-file or HANDRAIL_TOKEN, in Python"
            " by token="
        )
    advice = ""
    if "cannot connect" in str(error):
        advice = "; is `handrail serve` running there, and is the address right?"
    return ExecutorTransportFailed(f"{text}: {error}{advice}")
