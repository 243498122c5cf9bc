"""A server reduced to its link: says what it is told to say, blocking, and keeps every answer."""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from handrail.keeper import messages
from handrail.process.keeper_client.start_keeper import KeeperHandle, start_keeper
from tests.support.eventually import LIMIT, eventually
from tests.support.processes import descriptors, reaped

PYTHON = sys.executable
#: For children whose program is looked up by nobody.
PATH = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}


class Refused(Exception):
    """The keeper said no."""


class Failed(Exception):
    """A spawn failed, with this errno."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.errno = number


@dataclass
class Held:
    """A child of the keeper and our copies of its descriptors."""

    name: bytes
    pid: int
    pidfd: int
    fds: list[int]

    @property
    def out(self) -> int:
        return self.fds[0]

    @property
    def err(self) -> int:
        return self.fds[1]

    @property
    def inp(self) -> int:
        return self.fds[2]


@dataclass
class Peer:
    """One end of a link."""

    sock: socket.socket
    keeper: int
    exits: dict[bytes, messages.Exited] = field(default_factory=dict)
    _serial: int = 0
    _spawned: int = 0
    _fds: list[int] = field(default_factory=list)
    _heard: list[messages.Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sock.settimeout(LIMIT)

    # --- asking ----------------------------------------------------------------------------------

    def say(self, op: int, *fields: bytes, fds: tuple[int, ...] = ()) -> int:
        """Send without waiting; the serial number."""
        self._serial += 1
        messages.send(self.sock, op, self._serial, fields, fds)
        return self._serial

    def take(self) -> messages.Message | None:
        """The next message that is not an exit; None when the keeper is gone."""
        while True:
            try:
                self._heard = self._heard or messages.receive_all(self.sock)
            except ConnectionResetError:  # gone, and something of ours was not read
                return None
            if not self._heard:
                return None
            message = self._heard.pop(0)
            self._fds += message.fds
            if message.op != messages.EXITED:
                return message
            self._exited(message)

    def ask(self, op: int, *fields: bytes, fds: tuple[int, ...] = ()) -> messages.Message:
        serial = self.say(op, *fields, fds=fds)
        message = self.take()
        assert message is not None, "the keeper went away"
        assert message.serial == serial
        return message

    # --- what a server does ----------------------------------------------------------------------

    def hello(self, version: int = messages.VERSION) -> Peer:
        answer = self.ask(messages.HELLO, *messages.Hello(version, os.getpid()).pack())
        if answer.op == messages.REFUSED:
            raise Refused(answer.fields[0].decode())
        assert answer.op == messages.WELCOME
        welcome = messages.Welcome.unpack(answer.fields)
        assert (welcome.version, welcome.pid) == (messages.VERSION, self.keeper)
        return self

    def say_spawn(
        self,
        argv: list[str | bytes],
        *,
        mode: bytes = messages.MODE_PIPES,
        env: dict[str, str] | None = None,
        cwd: str = "/",
        size: tuple[int, int] = (24, 80),
        name: bytes | None = None,
        passed: dict[int, int] | None = None,
        program: bytes | None = None,
        limits: dict[bytes, int] | None = None,
    ) -> bytes:
        """Ask for a child without waiting; the name it will have."""
        passed = passed or {}
        self._spawned += 1
        name = name or b"%d" % self._spawned
        words = [os.fsencode(word) for word in argv]
        asked = messages.Spawn(
            name,
            mode,
            *size,
            program or words[0],
            b"",
            False,
            words,
            {os.fsencode(k): os.fsencode(v) for k, v in (PATH if env is None else env).items()},
            list(passed),
            limits or {},
        )
        directory = os.open(cwd, os.O_PATH | os.O_DIRECTORY)
        try:
            self.say(messages.SPAWN, *asked.pack(), fds=(directory, *passed.values()))
        finally:
            os.close(directory)
        return name

    def spawned(self) -> Held:
        """The answer to the oldest spawn."""
        answer = self.take()
        assert answer is not None
        if answer.op == messages.FAILED:
            raise Failed(messages.Count.unpack(answer.fields).number)
        assert answer.op == messages.SPAWNED
        *fds, pidfd = answer.fds
        spawned = messages.Spawned.unpack(answer.fields)
        return Held(spawned.child, spawned.pid, pidfd, fds)

    def spawn(self, argv: list[str | bytes], **how: object) -> Held:
        self.say_spawn(argv, **how)  # type: ignore[arg-type]
        return self.spawned()

    def sh(self, script: str, **how: object) -> Held:
        return self.spawn(["/bin/sh", "-c", script], **how)

    def python(self, script: str, *words: str, **how: object) -> Held:
        return self.spawn([PYTHON, "-I", "-S", "-c", script, *words], **how)

    def signal(self, child: Held, number: int, scope: bytes) -> int:
        answer = self.ask(messages.SIGNAL, *messages.Signal(child.name, number, scope).pack())
        return messages.Count.unpack(answer.fields).number

    def orphans(self) -> dict[bytes, int]:
        return messages.Orphans.unpack(self.ask(messages.ORPHANS).fields).counts

    def listing(self) -> dict[bytes, tuple[int, int | None, dict[bytes, int]]]:
        """What LIST tells: pid, status and descriptors by name, of each child."""
        self.say(messages.LIST)
        found = {}
        while (message := self.take()) and message.op in (messages.NOTED, messages.CHILD):
            if message.op == messages.NOTED:
                continue
            state = messages.ChildState.unpack(message.fields)
            fds = dict(zip(state.names, message.fds, strict=True))
            found[state.child] = (state.pid, state.status, fds)
        assert message is not None
        assert message.op == messages.DONE
        assert messages.Count.unpack(message.fields).number == len(found)
        return found

    def exit(self, child: Held) -> messages.Exited:
        """Wait for the exit of one child."""
        while child.name not in self.exits:
            # Anything else that comes is not an answer anybody waits for.
            self._heard = self._heard or messages.receive_all(self.sock)
            assert self._heard, "the keeper went away"
            message = self._heard.pop(0)
            if message.op != messages.BEGUN:
                assert message.op == messages.EXITED, "an answer to no question"
                self._exited(message)
        return self.exits[child.name]

    def _exited(self, message: messages.Message) -> None:
        exited = messages.Exited.unpack(message.fields)
        assert exited.child not in self.exits, "an exit came twice"
        self.exits[exited.child] = exited

    def settle(self) -> None:
        """Everything that was said is done."""
        self.ask(messages.SIGNAL, b"nobody", b"0", messages.SCOPE_LEADER)

    def held_open(self) -> dict[int, str]:
        """The keeper's descriptors, when it has nothing in hand."""
        self.settle()
        return descriptors(self.keeper)

    # --- the end ---------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Close our copies of all descriptors."""
        for fd in self._fds:
            try:
                os.close(fd)
            except OSError:
                pass  # closed by the test
        self._fds = []

    def close(self) -> None:
        self.let_go()
        self.sock.close()


def _read(fd: int, most: int) -> bytes:
    """Some bytes, waiting for them; none at the end of a pipe or terminal."""
    readable = select.poll()  # its number may be beyond what select takes
    readable.register(fd, select.POLLIN)
    assert readable.poll(LIMIT * 1000), "nothing came"
    try:
        return os.read(fd, most)
    except OSError as error:
        if error.errno != errno.EIO:  # a terminal that nobody has open any more
            raise
        return b""


def read_all(fd: int) -> bytes:
    """Everything up to the end."""
    return b"".join(iter(lambda: _read(fd, 1 << 16), b""))


def read_line(fd: int) -> bytes:
    """One line, byte by byte, so that nothing behind it is taken."""
    line = b""
    while not line.endswith(b"\n"):
        part = _read(fd, 1)
        assert part, f"ended after {line!r}"
        line += part
    return line.rstrip(b"\r\n")


@contextmanager
def embedded(*, hello: bool = True) -> Iterator[Peer]:
    """A keeper without a listener, and its owner."""
    with held_by(start_keeper(), hello=hello) as peer:
        yield peer


@contextmanager
def held_by(handle: KeeperHandle, *, hello: bool = True) -> Iterator[Peer]:
    """The owner of this keeper; both are gone afterwards."""
    peer = Peer(handle.sock, handle.pid)
    try:
        yield peer.hello() if hello else peer
    finally:
        peer.close()
        eventually(lambda: reaped(handle.pid), "the keeper ends with its owner")


class Lodge:
    """A keeper with a listener, where servers come and go."""

    def __init__(self, directory: Path, orphan_ttl: float = 600.0) -> None:
        self.path = str(directory / "keeper.sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self.path)
            listener.listen(8)
            handle = start_keeper(listener=listener, orphan_ttl=orphan_ttl)
        self.keeper = handle.pid
        self.first = Peer(handle.sock, handle.pid)

    def connect(self) -> Peer:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(self.path)
        except OSError:
            sock.close()
            raise
        return Peer(sock, self.keeper)


@contextmanager
def lodge(directory: Path, orphan_ttl: float = 600.0) -> Iterator[Lodge]:
    """A keeper with a listener; ended by a signal of ours when the test has not done it."""
    keeper = Lodge(directory, orphan_ttl)
    try:
        yield keeper
    finally:
        keeper.first.close()
        if not reaped(keeper.keeper):
            os.kill(keeper.keeper, 15)
        eventually(lambda: reaped(keeper.keeper), "the keeper ends by SIGTERM")
