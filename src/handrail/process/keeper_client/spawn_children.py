"""The requests to the keeper: start a child, signal it, forget it.

Every child of this package comes from here, and the keeper is its parent.  Exits arrive by
themselves and go to the callback of ``watch``.  How messages travel is in ``link.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Coroutine
from typing import Any

from handrail import fault_points
from handrail.errors import KeeperLost
from handrail.futures import retrieve_exception
from handrail.keeper import messages
from handrail.keeper.timeout_and_grace import CAUSE_ASKED
from handrail.process import fd_reserve, find_program
from handrail.process.exit_status import Usage
from handrail.process.keeper_client import start_fields
from handrail.process.keeper_client.answers import Abilities, Found, Spawned
from handrail.process.keeper_client.link import KeeperLink
from handrail.process.keeper_client.orphan_look import OrphanLook
from handrail.process.keeper_client.start_keeper import PROGRAM, KeeperHandle
from handrail.process.keeper_client.start_queue import StartQueue
from handrail.process.output.read_scheduler import ReadScheduler
from handrail.process.spec import ProcessSpec

#: Descriptors that come with a child: three streams, a listener and itself.
_EACH = 5
#: Status, and if they are known user ms, system ms, max RSS.
ExitCallback = Callable[..., None]


class Launcher:
    """Sends requests to the keeper at the other end of ``link``."""

    def __init__(self, handle: KeeperHandle, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watchers: dict[int, ExitCallback] = {}
        self.link = KeeperLink(handle, loop, self._heard, self._closed, self._watchers)
        self._starts = StartQueue(self.link)
        # Not from 1: a keeper that was found may hold children of a server before us.
        self._children = int.from_bytes(os.urandom(5), "big") << 20
        #: Children that are not watched yet, and their exits as far as they are known.
        self._early: dict[int, tuple[int, ...] | None] = {}
        #: Ends by the clock that have begun, up to when, of children that are not forgotten.
        self._begun: dict[int, int] = {}
        #: Children that were told their command, and the answers to that, if there are any.
        self._using: dict[int, asyncio.Future[messages.Message] | None] = {}
        self._listing: tuple[dict[bytes, bytes], list[Found]] = ({}, [])
        self._renoted: set[int] = set()
        self._look = OrphanLook(self.link, loop)
        self.keeper_pid = handle.pid
        self._secret = handle.secret
        self.mark = 0  # everything the keeper starts has one from here on
        #: Of the families of children that are not forgotten, by child.
        self.marks: dict[int, int] = {}
        #: Children that have ended and left no descendant, until they are forgotten.
        self.over: set[int] = set()
        #: When the keeper lost the server before us, on the monotonic clock.
        self.lost_at: float | None = None
        self.asked_at = 0.0  # when the keeper was last asked for a child, by the loop's clock
        self.abilities = Abilities()
        self.turns = ReadScheduler(
            loop, lambda: bool(self._watchers or self._early or self._starts)
        )
        #: Whether the keeper holds copies of what it is given, for a server after this one.
        self.hands_over = True

    async def hello(self, meanwhile: Callable[[], None] | None = None) -> None:
        """Take the lease; raises KeeperLost when it is refused.

        ``meanwhile`` is called when it has been asked for, before the keeper has answered.
        """
        us = messages.Hello(messages.VERSION, os.getpid()).pack()
        question = self.link.ask(messages.HELLO, us)
        if meanwhile is not None:
            meanwhile()
        answer = await question
        if answer.op == messages.REFUSED and answer.fields[0].startswith(messages.OTHER_VERSION):
            # Of another version, and no server has its lease: have it become one of ours.
            await self.replace_keeper(*PROGRAM)
            answer = await self.link.ask(messages.HELLO, us)
        if answer.op != messages.WELCOME:
            raise KeeperLost(answer.fields[0].decode())
        welcome = messages.Welcome.unpack(answer.fields)
        self.keeper_pid, self.mark = welcome.pid, welcome.mark
        if self._secret:  # one of an earlier version has none yet
            self.link.tell(messages.SECRET, 0, [self._secret])
        if welcome.lost_at is not None:
            self.lost_at = welcome.lost_at
        answer = await self.link.ask(messages.ABILITIES, [])
        able = messages.Abilities.unpack(answer.fields)
        self.abilities = Abilities(able.trees.decode(), frozenset(map(bytes.decode, able.limits)))

    async def found(self) -> tuple[dict[bytes, bytes], list[Found]]:
        """The notes and children that previous servers left."""
        self._listing = ({}, [])
        await self.link.ask(messages.LIST, [])
        listing, self._listing = self._listing, ({}, [])
        return listing

    def note(self, key: bytes, value: bytes | None) -> None:
        """Store a note for the next server, or remove it."""
        note = messages.Note(key, value or b"", value is not None)
        self.link.tell(messages.NOTE, 0, note.pack())

    def renote(self, child: int, value: bytes) -> None:
        """Store a change to the note of a child; removed when the child is forgotten."""
        self._renoted.add(child)
        self.note(b"child/%d" % child, value)

    def adopt(
        self,
        child: int,
        pid: int,
        sandboxed: bool,
        end: tuple[int, Usage | None] | None,
        started: float,
        note: bytes,
        fds: dict[bytes, int],
    ) -> None:
        """Give a new keeper what we have of a child whose keeper is gone; ``end``: its status
        and what it used, as far as we know them; ``started``: on the monotonic clock."""
        mark = self.marks.get(child, 0)
        status, usage = (None, None) if end is None else end
        used: tuple[int | None, int | None, int | None] = (0, 0, 0)
        ended = 0
        if usage is not None:
            used = (usage.user_ms, usage.system_ms, usage.max_rss_bytes)
            ended = int(started * 1000) + usage.wall_ms
        state = messages.ChildState(
            b"%d" % child, pid, mark, sandboxed, status, *used, ended, note, list(fds)
        )
        self.link.tell(messages.ADOPT, 0, state.pack(), list(fds.values()))

    async def replace_keeper(self, python: str, program: str) -> None:
        """Have the keeper become that program; raises KeeperLost when it refuses."""
        become = messages.Reexec(os.fsencode(python), os.fsencode(program))
        answer = await self.link.ask(messages.REEXEC, become.pack())
        if answer.op != messages.DONE:
            raise KeeperLost(answer.fields[0].decode())

    def spawn(self, spec: ProcessSpec, note: bytes = b"") -> Coroutine[Any, Any, Spawned]:
        """Start one child.  Raises SpawnFailed, or KeeperLost.

        ``note``: what the next server has to know of it; holds no NUL.  The keeper is asked
        before this returns, or in its turn; the coroutine waits for the answer.
        """
        waiting = spec.waiting
        if waiting is not None and waiting.spawned is not None:
            self.asked_at = self._loop.time()
            return self._made_ahead(spec, waiting.spawned, note)
        child, question = self.ask(spec, note)
        if waiting is not None and waiting.argv and not self._starts.waiting:
            self._tell(spec, child, note)
        return self._spawned(spec, child, question, note)

    def ask(self, spec: ProcessSpec, note: bytes) -> tuple[int, asyncio.Future[messages.Message]]:
        """Ask for a child: its number, and what ``answered`` reads; raises SpawnFailed."""
        self.asked_at = self._loop.time()
        cwd = find_program.open_cwd(spec.cwd)
        own = [cwd]
        try:
            program = find_program.find_program(spec.argv[0], spec.env, cwd)
            self._children += 1
            child = self._children
            asked = start_fields.spawn(spec, child, program, note)
            self.turns.open()
            fd_reserve.check_room(cwd, _EACH * (1 + len(self._starts)))
            question = self._starts.ask(asked.pack(), own, [fd for _, fd in spec.passed])
        except (OSError, ValueError) as error:
            # No descriptor free to send it with, or a NUL where none can be.
            number = error.errno if isinstance(error, OSError) else None
            raise find_program.spawn_failed(spec.argv[0], number or errno.EINVAL) from None
        finally:
            for fd in own:  # not sent with others, later
                os.close(fd)
        return child, question

    async def _spawned(
        self, spec: ProcessSpec, child: int, question: asyncio.Future[messages.Message], note: bytes
    ) -> Spawned:
        try:
            with contextlib.suppress(OSError):  # told by ``answered``
                await question
        except asyncio.CancelledError:
            # The answer may have come in the same turn of the loop.
            if not question.cancelled() and question.exception() is None:
                self._unwanted(question.result())
            raise
        spawned = self.answered(spec, child, question)
        if spec.waiting is not None and spec.waiting.argv and child not in self._using:
            self._tell(spec, child, note)  # the start had to wait for its turn
        return spawned

    def answered(
        self, spec: ProcessSpec, child: int, question: asyncio.Future[messages.Message]
    ) -> Spawned:
        """What the keeper has answered; raises SpawnFailed, or KeeperLost."""
        try:
            answer = question.result()
        except OSError as error:
            raise find_program.spawn_failed(spec.argv[0], error.errno or 0) from None
        if answer.op == messages.FAILED:
            failed = messages.Count.unpack(answer.fields)
            raise find_program.spawn_failed(spec.argv[0], failed.number)
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
        pid = messages.Spawned.unpack(answer.fields).pid
        return Spawned(child, pid, pidfd, tuple(fds), listener)

    def _made_ahead(
        self, spec: ProcessSpec, spawned: Spawned, note: bytes
    ) -> Coroutine[Any, Any, Spawned]:
        """Send a waiting child its command; ``use`` says whether it has become that command."""
        self._tell(spec, spawned.child, note)
        return _there(spawned)

    def _tell(self, spec: ProcessSpec, child: int, note: bytes) -> None:
        """Send a child the command that it is to become; ``use`` awaits the answer.

        A sandbox that covers names before shows by itself whether it has begun: no answer is asked
        for.
        """
        try:
            if spec.waiting is not None and spec.waiting.covers:
                fields = start_fields.use(spec, child, note).pack()
                self.link.tell(messages.USE, 0, fields)
                self._using[child] = None
                return
            question = self._using[child] = self._ask_use(spec, child, note)
            question.add_done_callback(retrieve_exception)
        except (OSError, ValueError):
            self.kill(child)  # it would wait for ever; the command starts cold

    async def use(
        self, spec: ProcessSpec, child: int, note: Callable[[ProcessSpec], bytes]
    ) -> bool:
        """Let a child that waits become the command of a spec; False when it cannot any more.

        One that does not wait is its command already, and one that has covered names was told it.
        Raises KeeperLost.
        """
        question = self._using.pop(child, None)
        if spec.waiting is None or spec.waiting.covers:
            return True
        try:
            answer = await (question or self._ask_use(spec, child, note(spec)))
        except (OSError, ValueError):
            return False  # no descriptor free to send it with, or a NUL where none can be
        return answer.op == messages.DONE

    def _ask_use(
        self, spec: ProcessSpec, child: int, note: bytes
    ) -> asyncio.Future[messages.Message]:
        return self.link.ask(messages.USE, start_fields.use(spec, child, note).pack())

    def watch(self, child: int, callback: ExitCallback) -> None:
        """Register a callback for the exit: status, user ms, system ms, max RSS."""
        early = self._early.pop(child, None)
        if early is not None:
            self._loop.call_soon(callback, *early)
        else:
            self._watchers[child] = callback

    def knows_exit(self, child: int) -> bool:
        """Whether the exit of a child that is not watched is known."""
        return self._early.get(child) is not None

    def take_exit(self, child: int) -> tuple[int, ...] | None:
        """The exit of a child that is not watched, once; None: it is not known."""
        return self._early.pop(child) if self.knows_exit(child) else None

    def unwatch(self, child: int) -> None:
        """Remove the callback; the exit of the child is kept for the next ``watch``."""
        if self._watchers.pop(child, None) is not None:
            self._early[child] = None

    @property
    def starting(self) -> bool:
        """Whether the keeper is asked for a child at the moment."""
        return len(self._starts) > 0

    @property
    def busy(self) -> bool:
        """Whether children are started, or watched."""
        return self.starting or len(self._watchers) > 0

    def signal(self, child: int, number: int, scope: bytes) -> asyncio.Future[messages.Message]:
        """Signal the leader, its group or its whole tree; answered by a Count."""
        wanted = messages.Signal(b"%d" % child, number, scope)
        return self.link.ask_of_children(messages.SIGNAL, wanted.pack())

    def end_by(self, due: messages.Due, *, again: bool = False) -> None:
        """Have the keeper end a whole tree with grace, even if this server is gone by then.

        ``again``: another keeper is told, and continues where the previous one was.
        """
        if again or not self.link.bereft:  # else the next one is told of it with all the others
            done = self._begun.get(int(due.child), -1) if again else -1
            due = messages.Due(due.child, due.cause, due.at, due.grace, done)
            self.link.tell(messages.DUE, 0, due.pack())

    async def has_begun(self, child: int) -> bool:
        """Whether a planned end has begun, as far as the keeper has reported it."""
        with contextlib.suppress(KeeperLost):  # then it has said everything
            await self.link.ask(messages.WHO, [])
        return child in self._begun

    def kill(self, child: int) -> None:
        """Send SIGKILL to the whole tree, without waiting for the answer."""
        self.signal(child, 9, messages.SCOPE_TREE).add_done_callback(retrieve_exception)

    async def orphans(self) -> dict[int, int]:
        """How many descendants have outlived their parents, by child."""
        return await self._look.orphans()

    def keep(self, child: int, name: bytes, fd: int) -> None:
        """Give the keeper a copy of a descriptor to hold for the next server.

        The keeper has it when this returns, even if this server is killed then.  Raises OSError
        when the keeper is too busy.
        """
        if self.hands_over:
            copy = messages.Copy(b"%d" % child, name)
            self.link.tell_at_once(messages.KEEP, copy.pack(), [fd])

    def drop(self, child: int, name: bytes) -> None:
        """Have the keeper close its copy: only then does the child see an end of file."""
        self.link.tell(messages.DROP, 0, messages.Copy(b"%d" % child, name).pack())

    def release(self, child: int) -> None:
        """Tell the keeper that the streams of this child have ended."""
        self.link.tell_soon(messages.RELEASE, child)

    def forget(self, child: int) -> None:
        """Tell the keeper to forget this child."""
        self._watchers.pop(child, None)
        self._early.pop(child, None)
        self.marks.pop(child, None)
        self.over.discard(child)
        self._begun.pop(child, None)
        self._using.pop(child, None)
        if child in self._renoted:
            self._renoted.discard(child)
            self.note(b"child/%d" % child, None)
        self.link.tell_soon(messages.FORGET, child)

    def discard(self, child: int, *, running: bool) -> None:
        """Kill what is left of an unwanted child, and forget it."""
        self.signal(child, 9, messages.SCOPE_TREE).add_done_callback(retrieve_exception)
        if running:
            self.watch(child, lambda *_: self.forget(child))
        else:
            self.forget(child)

    async def stop(self) -> None:
        """End every child and the keeper."""
        await self.link.stop()
        self.close()

    def close(self) -> None:
        """Close the link.  An embedded keeper then ends its children and itself."""
        self.link.close()
        self.turns.close()

    def relink(self, handle: KeeperHandle) -> None:
        """Continue with another keeper; requests to the previous one have failed."""
        self._watchers.clear()
        self._early.clear()
        self._starts.forget_asked()
        self._secret = handle.secret
        self.link.relink(handle)

    def restored(self) -> None:
        """Allow starts again: the new keeper knows the children."""
        self.link.restored()
        self._starts.start_next()

    # --- what comes in ----------------------------------------------------------------------

    def _heard(self, message: messages.Message) -> None:
        op = message.op
        if op == messages.EXITED:
            self._exited(messages.Exited.unpack(message.fields))
        elif op == messages.BEGUN:
            begun = messages.Begun.unpack(message.fields)
            self._begun[int(begun.child)] = begun.at
        elif op == messages.CHILD:
            self._found(message)
        elif op == messages.NOTED:
            note = messages.Note.unpack(message.fields)
            self._listing[0][note.key] = note.value
            if note.key.startswith(b"child/"):
                self._renoted.add(int(note.key[6:]))
        elif op == messages.ASKED:
            self.link.tell(messages.ALIVE, 0, [])
        else:
            self._answered(message)

    def _answered(self, message: messages.Message) -> None:
        if message.op == messages.SPAWNED:
            spawned = messages.Spawned.unpack(message.fields)
            self._early[int(spawned.child)] = None
            self.marks[int(spawned.child)] = spawned.mark
        wanted = self.link.answer(message)
        self._starts.answered(message.serial)
        if not wanted:
            self._unwanted(message)

    def _exited(self, exited: messages.Exited) -> None:
        child = int(exited.child)
        known = (exited.status, exited.user_ms, exited.system_ms, exited.max_rss)
        if exited.alone and child in self.marks:
            self.over.add(child)
        callback = self._watchers.pop(child, None)
        if callback is not None:
            callback(*known)
        elif child in self._early:
            self._early[child] = known

    def _found(self, message: messages.Message) -> None:
        """Read one child of the keeper's list."""
        state = messages.ChildState.unpack(message.fields)
        child = int(state.child)
        names = state.names if not message.cut else []
        fds, message.fds = dict(zip(names, message.fds, strict=True)), []
        known: tuple[int, ...] | None = None
        if state.status is not None:
            known = (state.status,)
            if state.user_ms is not None and state.system_ms is not None:
                known += (state.user_ms, state.system_ms, state.max_rss or 0)
        self._early[child] = known
        self.marks[child] = state.mark
        asked = None
        if state.cause == CAUSE_ASKED:
            asked = messages.Due(state.child, state.cause, state.at, state.grace)
        if state.done >= 0:
            self._begun[child] = state.done
        ended = state.ended / 1000 or None
        self._listing[1].append(
            Found(child, state.pid, known, state.note, fds, ended, state.killed, asked, message.cut)
        )

    def _unwanted(self, message: messages.Message) -> None:
        """Handle the answer to a cancelled request; a child that was started is killed."""
        if message.op == messages.SPAWNED:
            self.discard(int(messages.Spawned.unpack(message.fields).child), running=True)
        message.close()

    def _closed(self) -> None:
        self._starts.close()


async def _there(spawned: Spawned) -> Spawned:
    return spawned
