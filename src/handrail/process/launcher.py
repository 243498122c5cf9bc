"""The face of the keeper: start one child, signal it, let go of it.

Every child of this package comes from here, and the keeper is its parent.  Questions carry a
serial number and are answered by futures; exits arrive by themselves and go to whoever
``watch``es that child.  What the keeper only has to know sooner or later (streams that ended,
children to forget) is gathered and sent together.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from handrail import faults
from handrail.errors import KeeperLost
from handrail.keeper import link
from handrail.process import lookup
from handrail.process.keeper_program import PROGRAM, KeeperHandle
from handrail.process.spec import ProcessSpec

#: How long housekeeping messages are gathered.
_GATHER_SECONDS = 0.05
_GATHER_MOST = 256
#: First and longest pause between two looks whether the keeper has ended.
_REAP_SECONDS = 0.01
_REAP_SECONDS_MOST = 2.0
#: Starts the keeper is asked for at a time.  It does one after another anyway, and so what has to
#: be with it at once (spools, signals) never waits behind a crowd.
_STARTS_MOST = 32

ExitCallback = Callable[[int, int, int, int], None]


@dataclass(frozen=True, slots=True)
class Found:
    """A child of a server before us; the descriptors are the caller's to close."""

    child: int
    pid: int
    exit: tuple[int, int, int, int] | None  # status, user ms, system ms, max RSS
    note: bytes
    fds: dict[bytes, int]
    cut: bool = False  # there was no descriptor free for them


@dataclass(frozen=True, slots=True)
class Spawned:
    """A child that runs; the descriptors are the caller's to close."""

    child: int
    pid: int
    pidfd: int
    fds: tuple[int, ...]  # stdout, stderr and perhaps stdin; or the terminal alone


@dataclass(frozen=True, slots=True)
class Abilities:
    """How trees are ended here (``cgroup`` or ``walk``), and which limits can be set."""

    trees: str = "walk"
    limits: frozenset[str] = frozenset()


class Launcher:
    """One link to one keeper, on one event loop."""

    def __init__(self, handle: KeeperHandle, loop: asyncio.AbstractEventLoop) -> None:
        self._sock = handle.sock
        self._sock.setblocking(False)
        self._pid = 0 if handle.found else handle.pid
        self._loop = loop
        self._serial = 0
        # Not from 1: a keeper that was found may hold children of a server before us.
        self._children = int.from_bytes(os.urandom(5), "big") << 20
        self._questions: dict[int, asyncio.Future[link.Message]] = {}
        self._watchers: dict[int, ExitCallback] = {}
        #: Children that nobody watches yet, and their exits as far as they are known.
        self._early: dict[int, tuple[int, int, int, int] | None] = {}
        self._listing: tuple[dict[bytes, bytes], list[Found]] = ({}, [])
        self._unsent: deque[tuple[int, int, list[bytes], list[int]]] = deque()
        self._starts: set[int] = set()  # serials of starts under way
        self._later: deque[tuple[int, list[bytes], list[int]]] = deque()
        self._renoted: set[int] = set()
        self._released: list[bytes] = []
        self._forgotten: list[bytes] = []
        self._gathering: asyncio.TimerHandle | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._goodbye: asyncio.Future[link.Message] | None = None  # answered: the keeper ends
        self.alive = True
        self.keeper_pid = handle.pid
        self.mark = 0  # everything the keeper starts has one from here on
        #: When the keeper lost the server before us, on the monotonic clock.
        self.lost_at: float | None = None
        self.abilities = Abilities()
        #: Whether the keeper holds copies of what it is given, for a server after this one.
        self.hands_over = True
        #: Called once when the keeper is gone without having been asked to go.
        self.on_lost: Callable[[], None] | None = None
        loop.add_reader(self._sock.fileno(), self._readable)

    async def hello(self) -> None:
        """Take the lease; raises KeeperLost when it is refused."""
        us = [b"%d" % link.VERSION, b"%d" % os.getpid()]
        answer = await self._ask(link.HELLO, us)
        if answer.op == link.REFUSED and answer.fields[0].startswith(link.OTHER_VERSION):
            # Of another version, with nobody else to serve: have it become one of ours.
            await self.replace_keeper(*PROGRAM)
            answer = await self._ask(link.HELLO, us)
        if answer.op != link.WELCOME:
            raise KeeperLost(answer.fields[0].decode())
        self.keeper_pid = int(answer.fields[1])
        self.mark = int(answer.fields[3])
        if answer.fields[2] != b"-":
            self.lost_at = float(answer.fields[2])
        trees, limits = (await self._ask(link.ABILITIES, [])).fields
        self.abilities = Abilities(trees.decode(), frozenset(limits.decode().split()))

    async def found(self) -> tuple[dict[bytes, bytes], list[Found]]:
        """Notes and children that were there before us."""
        self._listing = ({}, [])
        await self._ask(link.LIST, [])
        listing, self._listing = self._listing, ({}, [])
        return listing

    def note(self, key: bytes, value: bytes | None) -> None:
        """Leave something for the next server, or take it back."""
        self._tell(link.NOTE, 0, [key] if value is None else [key, value], [])

    def renote(self, child: int, value: bytes) -> None:
        """Leave word of a change to what the note of a child says; gone when it is forgotten."""
        self._renoted.add(child)
        self.note(b"child/%d" % child, value)

    def adopt(
        self, child: int, pid: int, status: int | None, note: bytes, fds: dict[bytes, int]
    ) -> None:
        """Give a new keeper what we have of a child whose keeper is gone."""
        known = b"-" if status is None else b"%d" % status
        fields = [b"%d" % child, b"%d" % pid, known, note, *fds]
        self._tell(link.ADOPT, 0, fields, list(fds.values()))

    async def replace_keeper(self, python: str, program: str) -> None:
        """Have the keeper become that program; raises KeeperLost when it refuses."""
        answer = await self._ask(link.REEXEC, [os.fsencode(python), os.fsencode(program)])
        if answer.op != link.DONE:
            raise KeeperLost(answer.fields[0].decode())

    def spawn(self, spec: ProcessSpec, note: bytes = b"") -> Coroutine[Any, Any, Spawned]:
        """Start one child.  Raises SpawnFailed, or KeeperLost.

        ``note``: what the next server has to know of it; holds no NUL.  The keeper is asked
        before this returns, or in its turn; the coroutine waits for the answer.
        """
        cwd = lookup.open_cwd(spec.cwd)
        try:
            program = lookup.find_program(spec.argv[0], spec.env, cwd)
            self._children += 1
            child = self._children
            mode = (
                (link.MODE_PTY if spec.containment is None else link.MODE_PTY_LOOSE)
                if spec.tty
                else link.MODE_STDIN
                if spec.pipe_stdin
                else link.MODE_PIPES
            )
            limits = spec.limits.for_keeper()
            argv = spec.argv if spec.arg0 is None else (spec.arg0, *spec.argv[1:])
            fields = [
                b"%d" % child,
                b" ".join((mode, *(b"%b=%d" % (n.encode(), v) for n, v in limits.items()))),
                b"%d" % spec.rows,
                b"%d" % spec.cols,
                b",".join(b"%d" % number for number, _ in spec.passed),
                program,
                b"%d %b" % (len(argv), note) if note else b"%d" % len(argv),
                *argv,
            ]
            fields += [b"%b=%b" % pair for pair in spec.env.items()]
            question = self._ask_spawn(fields, [cwd, *(fd for _, fd in spec.passed)])
        except (OSError, ValueError) as error:
            # No descriptor free to send it with, or a NUL where none can be.
            number = error.errno if isinstance(error, OSError) else None
            raise lookup.spawn_failed(spec.argv[0], number or errno.EINVAL) from None
        finally:
            os.close(cwd)
        return self._spawned(spec, child, question)

    async def _spawned(
        self, spec: ProcessSpec, child: int, question: asyncio.Future[link.Message]
    ) -> Spawned:
        try:
            answer = await question
        except OSError as error:
            raise lookup.spawn_failed(spec.argv[0], error.errno or 0) from None
        except asyncio.CancelledError:
            # The answer may have come in the same turn of the loop.
            if not question.cancelled() and question.exception() is None:
                self._unwanted(question.result())
            raise
        if answer.op == link.FAILED:
            raise lookup.spawn_failed(spec.argv[0], int(answer.fields[0]))
        if answer.op != link.SPAWNED:
            raise KeeperLost(answer.fields[0].decode())
        if answer.cut:
            self._unwanted(answer)
            raise lookup.spawn_failed(spec.argv[0], errno.EMFILE)
        if faults.armed:
            faults.point("spawn.answered")
        *fds, pidfd = answer.fds
        answer.fds = []
        return Spawned(child, int(answer.fields[1]), pidfd, tuple(fds))

    def watch(self, child: int, callback: ExitCallback) -> None:
        """Be told (status, user ms, system ms, max RSS) when the child exits."""
        early = self._early.pop(child, None)
        if early is not None:
            self._loop.call_soon(callback, *early)
        else:
            self._watchers[child] = callback

    def signal(self, child: int, number: int, scope: bytes) -> asyncio.Future[link.Message]:
        """Signal the leader, its group or its whole tree."""
        return self._ask(link.SIGNAL, [b"%d" % child, b"%d" % number, scope])

    def kill(self, child: int) -> None:
        """SIGKILL to the whole tree, without waiting for the answer."""
        self.signal(child, 9, link.SCOPE_TREE).add_done_callback(_seen)

    async def orphans(self) -> dict[int, int]:
        """How many descendants have outlived their parents, by child."""
        fields = (await self._ask(link.ORPHANS, [])).fields
        return dict(zip(map(int, fields[::2]), map(int, fields[1::2]), strict=True))

    def keep(self, child: int, name: bytes, fd: int) -> None:
        """Give the keeper a copy of a descriptor to hold for the next server.

        It has it when this returns, whatever becomes of us; raises OSError when it is too busy.
        """
        if self.alive and self.hands_over:
            if self._unsent:
                raise BlockingIOError(errno.EAGAIN, "the keeper is busy")
            try:
                link.send(self._sock, link.KEEP, 0, [b"%d" % child, name], [fd])
            except ConnectionError:
                pass  # seen by the reader

    def drop(self, child: int, name: bytes) -> None:
        """Have the keeper close its copy too: only then does the child see an end of file."""
        self._tell(link.DROP, 0, [b"%d" % child, name], [])

    def release(self, child: int) -> None:
        """The streams of this child have ended."""
        self._released.append(b"%d" % child)
        self._gather()

    def forget(self, child: int) -> None:
        """Nothing more is wanted of this child."""
        self._watchers.pop(child, None)
        self._early.pop(child, None)
        if child in self._renoted:
            self._renoted.discard(child)
            self.note(b"child/%d" % child, None)
        self._forgotten.append(b"%d" % child)
        self._gather()

    def discard(self, child: int, *, running: bool) -> None:
        """End what is left of a child nobody wants, and forget it."""
        self.signal(child, 9, link.SCOPE_TREE).add_done_callback(_seen)
        if running:
            self.watch(child, lambda *_: self.forget(child))
        else:
            self.forget(child)

    @property
    def ended(self) -> bool:
        """Whether the keeper has ended because we asked it to."""
        said = self._goodbye
        return said is not None and said.done() and not said.cancelled() and not said.exception()

    async def stop(self) -> None:
        """End every child and the keeper."""
        if self.alive:
            self._send_gathered()
            self.on_lost = None
            self._stopped = self._loop.create_future()
            self._goodbye = self._ask(link.STOP, [])
            with contextlib.suppress(KeeperLost):
                await self._goodbye
            if self.alive:
                await self._stopped
        self.close()

    def close(self) -> None:
        """Let go of the link.  An embedded keeper then ends its children and itself."""
        self._send_gathered()
        self._tell(link.BYE, 0, [], [])
        self.on_lost = None
        self._lost()

    # --- the link --------------------------------------------------------------------------

    def _ask(
        self, op: int, fields: list[bytes], fds: list[int] | None = None
    ) -> asyncio.Future[link.Message]:
        future: asyncio.Future[link.Message] = self._loop.create_future()
        if not self.alive:
            future.set_exception(_gone())
            return future
        self._serial = serial = self._serial % 0xFFFFFFFF + 1
        self._tell(op, serial, fields, fds or [])
        self._questions[serial] = future
        return future

    def _ask_spawn(self, fields: list[bytes], fds: list[int]) -> asyncio.Future[link.Message]:
        if len(self._starts) < _STARTS_MOST or not self.alive:
            question = self._ask(link.SPAWN, fields, fds)
            self._starts.add(self._serial)
            return question
        copies = [os.dup(fd) for fd in fds]
        self._serial = serial = self._serial % 0xFFFFFFFF + 1
        self._later.append((serial, fields, copies))
        question = self._questions[serial] = self._loop.create_future()
        return question

    def _start_next(self) -> None:
        while self._later and len(self._starts) < _STARTS_MOST:
            serial, fields, fds = self._later.popleft()
            question = self._questions[serial]
            try:
                if not question.done():
                    self._tell(link.SPAWN, serial, fields, fds)
                    self._starts.add(serial)
            except (OSError, ValueError) as error:
                del self._questions[serial]
                question.set_exception(
                    error if isinstance(error, OSError) else OSError(errno.EINVAL, str(error))
                )
            finally:
                for fd in fds:
                    os.close(fd)

    def _tell(self, op: int, serial: int, fields: list[bytes], fds: list[int]) -> None:
        if not self.alive:
            return
        if not self._unsent:
            try:
                link.send(self._sock, op, serial, fields, fds)
                return
            except BlockingIOError:
                self._loop.add_writer(self._sock.fileno(), self._writable)
            except ConnectionError:
                return  # seen by the reader
        self._unsent.append((op, serial, fields, [os.dup(fd) for fd in fds]))

    def _writable(self) -> None:
        while self._unsent:
            op, serial, fields, fds = self._unsent[0]
            try:
                link.send(self._sock, op, serial, fields, fds)
            except BlockingIOError:
                return
            except ConnectionError:
                break  # seen by the reader
            except OSError as error:  # no descriptor free for its body
                question = self._questions.pop(serial, None)
                if question is not None and not question.done():
                    question.set_exception(error)
            self._unsent.popleft()
            for fd in fds:
                os.close(fd)
        self._loop.remove_writer(self._sock.fileno())

    def _readable(self) -> None:
        # A few at a time: a burst of exits must not hold up the streams.
        for _ in range(16):
            try:
                message = link.receive(self._sock)
            except BlockingIOError:
                return
            except OSError:
                message = None
            if message is None:
                self._lost()
                return
            if message.op == link.EXITED:
                self._exited(message.fields)
                continue
            if message.op in (link.CHILD, link.NOTED, link.ASKED):
                self._told(message)
                continue
            future = self._questions.pop(message.serial, None)
            if message.serial in self._starts:
                self._starts.discard(message.serial)
                self._start_next()
            if message.op == link.SPAWNED:
                self._early[int(message.fields[0])] = None
            if future is None or future.done():
                self._unwanted(message)
            else:
                future.set_result(message)

    def _exited(self, fields: list[bytes]) -> None:
        child, status, user, system, rss = map(int, fields)
        callback = self._watchers.pop(child, None)
        if callback is not None:
            callback(status, user, system, rss)
        elif child in self._early:
            self._early[child] = (status, user, system, rss)

    def _told(self, message: link.Message) -> None:
        """Part of a list, or somebody wants to know whether we are alive."""
        fields = message.fields
        if message.op == link.ASKED:
            self._tell(link.ALIVE, 0, [], [])
        elif message.op == link.NOTED:
            self._listing[0][fields[0]] = fields[1]
            if fields[0].startswith(b"child/"):
                self._renoted.add(int(fields[0][6:]))
        else:
            note = fields.pop()[1:] if fields[-1].startswith(b"=") else b""
            names = fields[6:] if not message.cut else []
            fds, message.fds = dict(zip(names, message.fds, strict=True)), []
            known = None if fields[2] == b"-" else (int(fields[2]), *map(int, fields[3:6]))
            self._early[int(fields[0])] = known  # type: ignore[assignment]
            self._listing[1].append(
                Found(int(fields[0]), int(fields[1]), known, note, fds, message.cut)  # type: ignore[arg-type]
            )

    def _unwanted(self, message: link.Message) -> None:
        """Nobody waits for this answer any more; a child that came of it must not live on."""
        if message.op == link.SPAWNED:
            self.discard(int(message.fields[0]), running=True)
        message.close()

    def _gather(self) -> None:
        if len(self._released) + len(self._forgotten) >= _GATHER_MOST:
            self._send_gathered()
        elif self._gathering is None:
            self._gathering = self._loop.call_later(_GATHER_SECONDS, self._send_gathered)

    def _send_gathered(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        if self._released:
            self._tell(link.RELEASE, 0, self._released, [])
            self._released = []
        if self._forgotten:
            self._tell(link.FORGET, 0, self._forgotten, [])
            self._forgotten = []

    def _lost(self) -> None:
        if not self.alive:
            return
        self.alive = False
        if self._gathering is not None:
            self._gathering.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        for _, _, _, fds in self._unsent:
            for fd in fds:
                os.close(fd)
        self._unsent.clear()
        for _, _, fds in self._later:
            for fd in fds:
                os.close(fd)
        self._later.clear()
        for future in self._questions.values():
            if not future.done():
                future.set_exception(_gone())
        self._questions.clear()
        self._reap_keeper(self._pid, _REAP_SECONDS)
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)
        if self.on_lost is not None:
            self.on_lost()

    def relink(self, handle: KeeperHandle) -> None:
        """Go on with another keeper; what was asked of the one before has failed."""
        self._sock = handle.sock
        self._sock.setblocking(False)
        self._pid = 0 if handle.found else handle.pid
        self._watchers.clear()
        self._early.clear()
        self._starts.clear()
        self._released.clear()
        self._forgotten.clear()
        self._gathering = None
        self.alive = True
        self._loop.add_reader(self._sock.fileno(), self._readable)

    def _reap_keeper(self, pid: int, pause: float) -> None:
        """Take the status of a keeper that is our child, now or when it has ended.

        After STOP it closes the link as its last act, so this does not take long; one that
        ends its children first, or dies, may still be on its way.
        """
        if not pid:
            return
        try:
            # Waiting is right only for a keeper that has confirmed its end by itself.
            wait = 0 if self.ended else os.WNOHANG
            ended, _ = os.waitpid(pid, wait)
        except ChildProcessError:
            ended = pid
        if ended:
            if self._pid == pid:
                self._pid = 0
        else:
            later = min(2 * pause, _REAP_SECONDS_MOST)
            self._loop.call_later(pause, self._reap_keeper, pid, later)


def _seen(future: asyncio.Future[link.Message]) -> None:
    """Nobody minds how this question was answered."""
    if not future.cancelled():
        future.exception()


def _gone() -> KeeperLost:
    return KeeperLost("the keeper is gone, so nothing can be started or signalled now; try again")
