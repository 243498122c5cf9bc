"""The face of the keeper: start one child, signal it, let go of it.

Every child of this package comes from here, and the keeper is its parent.  Exits arrive by
themselves and go to whoever ``watch``es that child.  How it travels is ``link.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from handrail import fault_points
from handrail.errors import KeeperLost
from handrail.keeper import messages
from handrail.keeper.deadlines import CAUSE_ASKED
from handrail.process import fd_reserve, find_program, graceful_end
from handrail.process.keeper_client.link import KeeperLink
from handrail.process.keeper_client.start import PROGRAM, KeeperHandle
from handrail.process.spec import ProcessSpec, Usage

#: Starts the keeper is asked for at a time.  It does one after another anyway, and so what has to
#: be with it at once (spools, signals) never waits behind a crowd.
_STARTS_MOST = 32

#: Descriptors that come with a child: three streams, a listener and itself.
_EACH = 5

#: Other threads may be looking for room at the same time, or were when we were forked.
_OTHERS = 16

#: Status, and if they are known user ms, system ms, max RSS.
ExitCallback = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Found:
    """A child of a server before us; the descriptors are the caller's to close."""

    child: int
    pid: int
    exit: tuple[int, ...] | None  # status, and if they are known user ms, system ms, max RSS
    note: bytes
    fds: dict[bytes, int]
    ended: float | None = None  # when, on the monotonic clock
    killed: bool = False  # with its whole tree, on somebody's wish
    asked: graceful_end.Due | None = None  # to end, and the keeper sees to it
    cut: bool = False  # there was no descriptor free for them


@dataclass(frozen=True, slots=True)
class Spawned:
    """A child that runs; the descriptors are the caller's to close."""

    child: int
    pid: int
    pidfd: int
    fds: tuple[int, ...]  # stdout, stderr and perhaps stdin; or the terminal alone
    listener: int = -1  # of one whose calls are announced


@dataclass(frozen=True, slots=True)
class Abilities:
    """How trees are ended here (``cgroup`` or ``walk``), and which limits can be set."""

    trees: str = "walk"
    limits: frozenset[str] = frozenset()


class Launcher(KeeperLink):
    """What one keeper can be asked."""

    def __init__(self, handle: KeeperHandle, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(handle, loop)
        # Not from 1: a keeper that was found may hold children of a server before us.
        self._children = int.from_bytes(os.urandom(5), "big") << 20
        self._watchers: dict[int, ExitCallback] = {}
        #: Children that nobody watches yet, and their exits as far as they are known.
        self._early: dict[int, tuple[int, ...] | None] = {}
        #: Ends by the clock that have begun, up to when, of children that are not forgotten.
        self._begun: dict[int, int] = {}
        #: While we list: when a child ended, whether it was killed, and whether asked to end.
        self._ends: dict[int, tuple[float | None, bool, graceful_end.Due | None]] = {}
        self._listing: tuple[dict[bytes, bytes], list[Found]] = ({}, [])
        self._starts: set[int] = set()  # serials of starts under way
        self._later: deque[tuple[int, list[bytes], list[int]]] = deque()
        self._renoted: set[int] = set()
        self.keeper_pid = handle.pid
        self._secret = handle.secret
        self.mark = 0  # everything the keeper starts has one from here on
        #: Of the families of children that are not forgotten, by child.
        self.marks: dict[int, int] = {}
        #: When the keeper lost the server before us, on the monotonic clock.
        self.lost_at: float | None = None
        self.abilities = Abilities()
        #: Whether the keeper holds copies of what it is given, for a server after this one.
        self.hands_over = True

    async def hello(self, meanwhile: Callable[[], None] | None = None) -> None:
        """Take the lease; raises KeeperLost when it is refused.

        ``meanwhile`` is called when it has been asked for, before the keeper has answered.
        """
        us = [b"%d" % messages.VERSION, b"%d" % os.getpid()]
        question = self._ask(messages.HELLO, us)
        if meanwhile is not None:
            meanwhile()
        answer = await question
        if answer.op == messages.REFUSED and answer.fields[0].startswith(messages.OTHER_VERSION):
            # Of another version, with nobody else to serve: have it become one of ours.
            await self.replace_keeper(*PROGRAM)
            answer = await self._ask(messages.HELLO, us)
        if answer.op != messages.WELCOME:
            raise KeeperLost(answer.fields[0].decode())
        self.keeper_pid = int(answer.fields[1])
        self.mark = int(answer.fields[3])
        if self._secret:  # one of an earlier version has none yet
            self._tell(messages.SECRET, 0, [self._secret], [])
        if answer.fields[2] != b"-":
            self.lost_at = float(answer.fields[2])
        trees, limits = (await self._ask(messages.ABILITIES, [])).fields
        self.abilities = Abilities(trees.decode(), frozenset(limits.decode().split()))

    async def found(self) -> tuple[dict[bytes, bytes], list[Found]]:
        """Notes and children that were there before us."""
        self._listing = ({}, [])
        await self._ask(messages.LIST, [])
        listing, self._listing = self._listing, ({}, [])
        self._ends.clear()
        return listing

    def note(self, key: bytes, value: bytes | None) -> None:
        """Leave something for the next server, or take it back."""
        self._tell(messages.NOTE, 0, [key] if value is None else [key, value], [])

    def renote(self, child: int, value: bytes) -> None:
        """Leave word of a change to what the note of a child says; gone when it is forgotten."""
        self._renoted.add(child)
        self.note(b"child/%d" % child, value)

    def adopt(
        self,
        child: int,
        pid: int,
        inside: bool,
        end: tuple[int, Usage | None] | None,
        started: float,
        note: bytes,
        fds: dict[bytes, int],
    ) -> None:
        """Give a new keeper what we have of a child whose keeper is gone; ``end``: its status
        and what it used, as far as we know them; ``started``: on the monotonic clock."""
        known, used, ended = b"-", b"0 0 0", 0
        if end is not None:
            known, usage = b"%d" % end[0], end[1]
            if usage is not None:
                counted = (usage.user_ms, usage.system_ms, usage.max_rss_bytes)
                used = b" ".join(b"-1" if one is None else b"%d" % one for one in counted)
                ended = int(started * 1000) + usage.wall_ms
        mark = self.marks.get(child, 0)
        numbers = [b"%d" % child, b"%d" % pid, b"%d" % mark, b"%d" % inside]
        fields = [*numbers, known, used, b"%d" % ended, note, *fds]
        self._tell(messages.ADOPT, 0, fields, list(fds.values()))

    async def replace_keeper(self, python: str, program: str) -> None:
        """Have the keeper become that program; raises KeeperLost when it refuses."""
        answer = await self._ask(messages.REEXEC, [os.fsencode(python), os.fsencode(program)])
        if answer.op != messages.DONE:
            raise KeeperLost(answer.fields[0].decode())

    def spawn(self, spec: ProcessSpec, note: bytes = b"") -> Coroutine[Any, Any, Spawned]:
        """Start one child.  Raises SpawnFailed, or KeeperLost.

        ``note``: what the next server has to know of it; holds no NUL.  The keeper is asked
        before this returns, or in its turn; the coroutine waits for the answer.
        """
        cwd = find_program.open_cwd(spec.cwd)
        try:
            program = find_program.find_program(spec.argv[0], spec.env, cwd)
            self._children += 1
            child = self._children
            mode = (
                (messages.MODE_PTY if spec.containment is None else messages.MODE_PTY_LOOSE)
                if spec.tty
                else messages.MODE_STDIN
                if spec.pipe_stdin
                else messages.MODE_PIPES
            )
            words = spec.limits.for_keeper()
            if spec.timeout is not None:
                words["end"] = int((time.monotonic() + spec.timeout) * 1000)
                words["grace"] = int(graceful_end.TIMEOUT_GRACE * 1000)
            if spec.containment is not None:
                words["inside"] = 1
            argv = spec.argv if spec.arg0 is None else (spec.arg0, *spec.argv[1:])
            fields = [
                b"%d" % child,
                b" ".join((mode, *(b"%b=%d" % (n.encode(), v) for n, v in words.items()))),
                b"%d" % spec.rows,
                b"%d" % spec.cols,
                b",".join(b"%d" % number for number, _ in spec.passed),
                program,
                b"%d %b" % (len(argv), note) if note else b"%d" % len(argv),
                *argv,
            ]
            fields += [b"%b=%b" % pair for pair in spec.env.items()]
            _check_room(cwd, 1 + len(self._starts) + len(self._later))
            question = self._ask_spawn(fields, [cwd, *(fd for _, fd in spec.passed)])
        except (OSError, ValueError) as error:
            # No descriptor free to send it with, or a NUL where none can be.
            number = error.errno if isinstance(error, OSError) else None
            raise find_program.spawn_failed(spec.argv[0], number or errno.EINVAL) from None
        finally:
            os.close(cwd)
        return self._spawned(spec, child, question)

    async def _spawned(
        self, spec: ProcessSpec, child: int, question: asyncio.Future[messages.Message]
    ) -> Spawned:
        try:
            answer = await question
        except OSError as error:
            raise find_program.spawn_failed(spec.argv[0], error.errno or 0) from None
        except asyncio.CancelledError:
            # The answer may have come in the same turn of the loop.
            if not question.cancelled() and question.exception() is None:
                self._unwanted(question.result())
            raise
        if answer.op == messages.FAILED:
            raise find_program.spawn_failed(spec.argv[0], int(answer.fields[0]))
        if answer.op != messages.SPAWNED:
            raise KeeperLost(answer.fields[0].decode())
        if answer.cut:
            self._unwanted(answer)
            raise find_program.spawn_failed(spec.argv[0], errno.EMFILE)
        if fault_points.armed:
            fault_points.point("spawn.answered")
        *fds, pidfd = answer.fds
        answer.fds = []
        listener = fds.pop() if spec.announced else -1
        return Spawned(child, int(answer.fields[1]), pidfd, tuple(fds), listener)

    def watch(self, child: int, callback: ExitCallback) -> None:
        """Be told (status, user ms, system ms, max RSS) when the child exits."""
        early = self._early.pop(child, None)
        if early is not None:
            self._loop.call_soon(callback, *early)
        else:
            self._watchers[child] = callback

    def signal(self, child: int, number: int, scope: bytes) -> asyncio.Future[messages.Message]:
        """Signal the leader, its group or its whole tree."""
        return self._ask_of_children(messages.SIGNAL, [b"%d" % child, b"%d" % number, scope])

    def end_by(self, child: int, due: graceful_end.Due, *, again: bool = False) -> None:
        """Have the keeper end a whole tree with grace, whatever becomes of us.

        ``again``: it is another keeper that is told, and goes on where the one before was.
        """
        if again or not self.bereft:  # else the next one is told of it with all the others
            fields = [b"%d" % child, due.cause, b"%d" % due.at, b"%d" % due.grace]
            done = self._begun.get(child, -1) if again else -1
            self._tell(messages.DUE, 0, [*fields, b"%d" % done], [])

    async def has_begun(self, child: int) -> bool:
        """Whether an end by the clock has begun, as far as any keeper can have told us."""
        with contextlib.suppress(KeeperLost):  # then it has said everything
            await self._ask(messages.WHO, [])
        return child in self._begun

    def kill(self, child: int) -> None:
        """SIGKILL to the whole tree, without waiting for the answer."""
        self.signal(child, 9, messages.SCOPE_TREE).add_done_callback(_seen)

    async def orphans(self) -> dict[int, int]:
        """How many descendants have outlived their parents, by child."""
        while True:
            try:
                fields = (await self._ask_of_children(messages.ORPHANS, [])).fields
                break
            except KeeperLost:
                if not self.bereft:
                    raise  # else the next one is asked
        return dict(zip(map(int, fields[::2]), map(int, fields[1::2]), strict=True))

    def keep(self, child: int, name: bytes, fd: int) -> None:
        """Give the keeper a copy of a descriptor to hold for the next server.

        It has it when this returns, whatever becomes of us; raises OSError when it is too busy.
        """
        if self.alive and self.hands_over:
            if self._unsent:
                raise BlockingIOError(errno.EAGAIN, "the keeper is busy")
            try:
                messages.send(self._sock, messages.KEEP, 0, [b"%d" % child, name], [fd])
            except ConnectionError:
                pass  # seen by the reader

    def drop(self, child: int, name: bytes) -> None:
        """Have the keeper close its copy too: only then does the child see an end of file."""
        self._tell(messages.DROP, 0, [b"%d" % child, name], [])

    def release(self, child: int) -> None:
        """The streams of this child have ended."""
        self._released.append(b"%d" % child)
        self._gather()

    def forget(self, child: int) -> None:
        """Nothing more is wanted of this child."""
        self._watchers.pop(child, None)
        self._early.pop(child, None)
        self.marks.pop(child, None)
        self._begun.pop(child, None)
        if child in self._renoted:
            self._renoted.discard(child)
            self.note(b"child/%d" % child, None)
        self._forgotten.append(b"%d" % child)
        self._gather()

    def discard(self, child: int, *, running: bool) -> None:
        """End what is left of a child nobody wants, and forget it."""
        self.signal(child, 9, messages.SCOPE_TREE).add_done_callback(_seen)
        if running:
            self.watch(child, lambda *_: self.forget(child))
        else:
            self.forget(child)

    async def stop(self) -> None:
        """End every child and the keeper."""
        if self.alive:
            self._send_gathered()
            self.on_lost = None
            self._stopped = self._loop.create_future()
            self._goodbye = self._ask(messages.STOP, [])
            with contextlib.suppress(KeeperLost):
                await self._goodbye
            if self.alive:
                await self._stopped
        self.close()

    def close(self) -> None:
        """Let go of the link.  An embedded keeper then ends its children and itself."""
        self._send_gathered()
        self._tell(messages.BYE, 0, [], [])
        self.on_lost = None
        self._lost()
        self.give_up()

    # --- what waits, and what comes in ------------------------------------------------------

    def _ask_spawn(self, fields: list[bytes], fds: list[int]) -> asyncio.Future[messages.Message]:
        # One that does not know our children yet starts none: its mark may be in no file, and
        # what it has started would never be ended should it be killed together with us.
        if (len(self._starts) < _STARTS_MOST and not self.bereft) or not self.alive:
            question = self._ask(messages.SPAWN, fields, fds)
            self._starts.add(self._serial)
            return question
        copies = [os.dup(fd) for fd in fds]
        self._serial = serial = self._serial % 0xFFFFFFFF + 1
        self._later.append((serial, fields, copies))
        question = self._questions[serial] = self._loop.create_future()
        return question

    def _start_next(self) -> None:
        while self._later and len(self._starts) < _STARTS_MOST and not self.bereft:
            serial, fields, fds = self._later.popleft()
            question = self._questions[serial]
            try:
                if not question.done():
                    self._tell(messages.SPAWN, serial, fields, fds)
                    self._starts.add(serial)
            except (OSError, ValueError) as error:
                del self._questions[serial]
                question.set_exception(
                    error if isinstance(error, OSError) else OSError(errno.EINVAL, str(error))
                )
            finally:
                for fd in fds:
                    os.close(fd)

    def _heard(self, message: messages.Message) -> None:
        if message.op == messages.EXITED:
            self._exited(message.fields)
            return
        if message.op == messages.BEGUN:
            self._begun[int(message.fields[0])] = int(message.fields[1])
            return
        if message.op in (messages.CHILD, messages.NOTED, messages.ASKED):
            self._told(message)
            return
        future = self._questions.pop(message.serial, None)
        if message.serial in self._starts:
            self._starts.discard(message.serial)
            self._start_next()
        if message.op == messages.SPAWNED:
            self._early[int(message.fields[0])] = None
            self.marks[int(message.fields[0])] = int(message.fields[2])
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

    def _told(self, message: messages.Message) -> None:
        """Part of a list, or somebody wants to know whether we are alive."""
        fields = message.fields
        if message.op == messages.ASKED:
            self._tell(messages.ALIVE, 0, [], [])
        elif message.op == messages.NOTED and fields[0] == b"families":
            words = map(int, fields[1].split())
            for child, mark, ended, fate, at, time_left, done in zip(*[words] * 7, strict=True):
                self.marks[child] = mark
                asked = graceful_end.Due(CAUSE_ASKED, at, time_left) if fate & 2 else None
                self._ends[child] = (ended / 1000 or None, bool(fate & 1), asked)
                if done >= 0:
                    self._begun[child] = done
        elif message.op == messages.NOTED:
            self._listing[0][fields[0]] = fields[1]
            if fields[0].startswith(b"child/"):
                self._renoted.add(int(fields[0][6:]))
        else:
            note = fields.pop()[1:] if fields[-1].startswith(b"=") else b""
            names = fields[6:] if not message.cut else []
            fds, message.fds = dict(zip(names, message.fds, strict=True)), []
            known = None if fields[2] == b"-" else tuple(map(int, fields[2:6]))
            if known is not None and -1 in known[1:]:
                known = known[:1]  # nobody has counted what it used
            self._early[int(fields[0])] = known
            self._listing[1].append(
                Found(
                    int(fields[0]),
                    int(fields[1]),
                    known,
                    note,
                    fds,
                    *self._ends.get(int(fields[0]), (None, False, None)),
                    message.cut,
                )
            )

    def _unwanted(self, message: messages.Message) -> None:
        """Nobody waits for this answer any more; a child that came of it must not live on."""
        if message.op == messages.SPAWNED:
            self.discard(int(message.fields[0]), running=True)
        message.close()

    def _let_go(self) -> None:
        for _, _, fds in self._later:
            for fd in fds:
                os.close(fd)
        self._later.clear()

    def relink(self, handle: KeeperHandle) -> None:
        """Go on with another keeper; what was asked of the one before has failed."""
        self._watchers.clear()
        self._early.clear()
        self._starts.clear()
        self._secret = handle.secret
        super().relink(handle)

    def restored(self) -> None:
        """The keeper we go on with knows our children: now it may start others."""
        super().restored()
        self._start_next()


def _seen(future: asyncio.Future[messages.Message]) -> None:
    """Nobody minds how this question was answered."""
    if not future.cancelled():
        future.exception()


def _check_room(fd: int, starts: int) -> None:
    """Refuse before anything runs: a child whose descriptors we cannot take has to be killed.

    Numbers are given from below, so when a high one is free all above it are.  Raises OSError.
    """
    most = fd_reserve.limit() - _EACH * starts
    try:
        found = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, most - _OTHERS)
        os.close(found)
    except (OSError, ValueError):
        found = most + 1
    if found > most:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
