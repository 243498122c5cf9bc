"""The life of the porter: started with the first managed process, adopted, restarted, ended.

The porter is a child of the keeper like the processes it serves, so it outlives this server with
all its connections.  The keeper holds our end of its link and the ring of its records: the next
server goes on with both.  When the porter itself dies, connections that are new wait in the backlog
of listeners that this server and the keeper hold, until another porter accepts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

from handrail import listeners
from handrail.errors import HandrailError
from handrail.network import link
from handrail.network.log import NetworkLog, default_path
from handrail.network.managed import start as managed_start
from handrail.network.managed.process import ManagedProcess
from handrail.network.managed.record_decoder import decode
from handrail.network.managed.start import ManagedStart, NetworkAnswer, NetworkQuestion
from handrail.network.records import Record, Ring
from handrail.process.recovery.start_note import PORTER_NOTE
from handrail.process.spec import ProcessSpec

if TYPE_CHECKING:
    from handrail.process.keeper_client.answers import Found, Spawned
    from handrail.process.keeper_client.spawn_children import Launcher

log = logging.getLogger(__name__)

#: Names under which the keeper holds our end of the link, and the ring.
LINK, RING = b"link", b"ring"
#: How long a porter without processes is kept.
IDLE_SECONDS = 60.0
#: At most so many new porters in so many seconds.
_BUDGET, _BUDGET_SECONDS = 5, 20.0
_BUSY_SECONDS = 0.01
#: Of the server's own environment: where its connections go (``allowUpstreamProxy``),
_UPSTREAM = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
#: and where the registry of our listeners is, which no process is connected to.
_HOMES = ("HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR")
_LINK_FD, _RING_FD = 3, 4


class NetworkObserver(Protocol):
    """Counts what happens to connections."""

    def network_recorded(self, record: Record) -> None: ...
    def network_answered(self, seconds: float) -> None: ...
    def porter_restarted(self) -> None: ...


class PorterLife:
    """The porter of one server or executor, and the processes it serves."""

    def __init__(
        self,
        launcher: Launcher,
        loop: asyncio.AbstractEventLoop,
        environ: Mapping[str, str],
        observer: NetworkObserver | None = None,
    ) -> None:
        self.launcher = launcher
        self.loop = loop
        self._observer = observer
        self._environ = environ
        #: By their names on the link: those that have started and not ended.
        self.processes: dict[str, ManagedProcess] = {}
        self._link: socket.socket | None = None
        self._welcomed = False
        self._unsent: deque[tuple[int, link.Fields, list[int]]] = deque()
        self._ring: Ring | None = None
        self._read = 0  # records of the ring that were read
        self._spawned: Spawned | None = None
        self._starting: asyncio.Task[None] | None = None
        self._starts: deque[float] = deque()
        self._idle: asyncio.TimerHandle | None = None
        #: When the last process was started, or the last one ended.
        self._used = 0.0
        #: Open questions: whose, and since when.
        self._questions: dict[int, tuple[ManagedProcess, float]] = {}
        self._parked = False
        self._noted: tuple[ManagedStart, str] | None = None
        self._log: NetworkLog | None = None

    # --- processes ---------------------------------------------------------------------------

    def start(self, start: ManagedStart) -> ManagedProcess:
        """The network of a process that is about to start; the porter is started beside it."""
        self._used = self.loop.time()
        self._ensure()
        return ManagedProcess(self, start)

    def revive(self, text: str, number: int, held: dict[bytes, int]) -> ManagedProcess:
        """The network of a process that a server before us has started; raises ValueError."""
        process = ManagedProcess(self, managed_start.from_text(text), held)
        process.begin(number)
        return process

    def note_of(self, start: ManagedStart) -> str:
        """A network as text, for the note of its process; most are started one after another."""
        if self._noted is None or self._noted[0] is not start:
            self._noted = (start, start.to_text())
        return self._noted[1]

    def add(self, process: ManagedProcess) -> None:
        """Have the porter serve a process."""
        self._ensure()
        if self._welcomed:
            self._send(link.ADD, *process.request())

    def remove(self, process: ManagedProcess) -> None:
        """Have the porter close everything of a process."""
        if self.processes.pop(process.id, None) is None:
            return
        for name in process.kept:  # our own may have been closed with its sandbox
            self.launcher.drop(process.number, name)
        if process.kept:
            self._send(link.REMOVE, {"process": process.id})
        self._rest_later()

    def answer(self, number: int, answer: NetworkAnswer) -> None:
        """Answer a question of the porter."""
        known = self._questions.pop(number, None)
        if known is None or self._parked:
            return
        if self._observer is not None:
            self._observer.network_answered(time.monotonic() - known[1])
        lasts = None if answer.lasts == "once" else answer.lasts
        self._send(
            link.ANSWER,
            {
                "question": number,
                "allow": answer.allow,
                "reason": answer.reason,
                "for": lasts,
                "label": "allow" if answer.allow else answer.label,
            },
        )

    def update(self, session: str, **lists: Any) -> None:
        """Replace rules or memory of all processes of a session, or one ``process``, at once."""
        self._send(link.UPDATE, {"session": session, **lists})

    # --- its start and end -------------------------------------------------------------------

    def _ensure(self) -> None:
        if self._link is None and self._starting is None and not self._parked:
            self._starting = self.loop.create_task(self._start())

    async def _start(self) -> None:
        try:
            await self._begin()
        except (OSError, HandrailError) as error:
            log.error("the porter of managed networks cannot be started: %s", error)
        finally:
            self._starting = None

    async def _begin(self) -> None:
        if self._link is not None:
            return  # that of a server before us was adopted meanwhile
        now = time.monotonic()
        while self._starts and self._starts[0] < now - _BUDGET_SECONDS:
            self._starts.popleft()
        if len(self._starts) >= _BUDGET:
            log.error("the porter has ended %d times in %g s", _BUDGET, _BUDGET_SECONDS)
            await asyncio.sleep(_BUDGET_SECONDS)
        self._starts.append(now)
        if self._ring is None:
            self._ring = Ring.create()
        ours, theirs = link.pair()
        try:
            with theirs:
                passed = ((_LINK_FD, theirs.fileno()), (_RING_FD, self._ring.fd))
                spawned = await self.launcher.spawn(self._spec(passed), PORTER_NOTE)
            await self._have_kept(spawned.child, ours)
        except BaseException:
            ours.close()
            raise
        self._take(spawned, ours)

    def _spec(self, passed: tuple[tuple[int, int], ...]) -> ProcessSpec:
        program = os.path.join(os.path.dirname(link.__file__), "porter", "__main__.py")
        words = (sys.executable, "-I", "-S", "-B", program, str(_LINK_FD), str(_RING_FD))
        names = [*_UPSTREAM, *map(str.lower, _UPSTREAM), *_HOMES]
        env = {name: self._environ[name] for name in names if name in self._environ}
        return ProcessSpec(
            argv=tuple(map(os.fsencode, words)),
            cwd=b"/",
            env={os.fsencode(name): os.fsencode(value) for name, value in env.items()},
            tty=False,
            pipe_stdin=False,
            passed=passed,
        )

    async def _have_kept(self, child: int, ours: socket.socket) -> None:
        assert self._ring is not None  # noqa: S101 (made before)
        for name, fd in ((LINK, ours.fileno()), (RING, self._ring.fd)):
            while True:
                try:
                    self.launcher.keep(child, name, fd)
                    break
                except OSError:
                    await asyncio.sleep(_BUSY_SECONDS)

    def adopt(self, found: Found) -> None:
        """Take over the porter of a server before us, or what it has left."""
        from handrail.process.keeper_client.answers import Spawned

        held = dict(found.fds)
        ring, line = held.pop(RING, -1), held.pop(LINK, -1)
        pidfd = held.pop(b"pidfd", held.pop(b"lone", -1))
        fds = tuple(held.pop(name, -1) for name in (b"stdout", b"stderr"))
        for fd in held.values():
            os.close(fd)
        if ring >= 0 and self._ring is None:
            self._ring = Ring(ring)
        elif ring >= 0:
            os.close(ring)
        if found.exit is not None or line < 0 or pidfd < 0 or self._link is not None:
            for fd in (line, pidfd, *fds):
                if fd >= 0:
                    os.close(fd)
            self.launcher.discard(found.child, running=found.exit is None)
            return
        self._take(Spawned(found.child, found.pid, pidfd, fds), socket.socket(fileno=line))

    def adopted(self) -> None:
        """All processes of the server before us are known: read what was recorded of them."""
        if self._ring is not None:
            taken = self._ring.taken
            for number, record in self._ring.read(0):
                process = self.processes.get(record.process)
                if number <= taken and process is not None:
                    process.recorded(record, news=False)
            self._read = taken
            self.read_records()
        if self.processes:
            self._ensure()
        elif self._link is not None:
            self._rest_later()

    def _take(self, spawned: Spawned, line: socket.socket) -> None:
        line.setblocking(False)
        self._spawned, self._link, self._welcomed = spawned, line, False
        self.loop.add_reader(line.fileno(), self._readable)
        self.loop.add_reader(spawned.pidfd, self._ended)
        for fd in spawned.fds:
            if fd >= 0:
                self.loop.add_reader(fd, self._said, fd)
        # Where we listen ourselves the porter connects to for no process: we start commands there.
        ours = {"version": link.VERSION, "pid": os.getpid(), "ports": listeners.ports()}
        self._send(link.HELLO, ours)

    def _said(self, fd: int) -> None:
        """Log what the porter says of its troubles."""
        with contextlib.suppress(BlockingIOError):
            said = os.read(fd, 4096)
            if said:
                log.error("porter: %s", said.decode("utf-8", "replace").strip())
            else:
                self.loop.remove_reader(fd)

    def _ended(self) -> None:
        """The porter has ended: if it died, its listeners wait for the next.

        One that nothing has connected to ends by itself, and is started again when it is needed.
        """
        self._let_go()
        self._questions.clear()
        for process in self.processes.values():
            process.lost()
        if any(process.is_open for process in self.processes.values()):
            log.error("the porter of managed networks has ended; another is started")
            if self._observer is not None:
                self._observer.porter_restarted()
            self._ensure()

    def _let_go(self) -> None:
        spawned, self._spawned = self._spawned, None
        line, self._link = self._link, None
        self._welcomed = False
        for _, _, fds in self._unsent:
            for fd in fds:
                os.close(fd)
        self._unsent.clear()
        if line is not None:
            self.loop.remove_reader(line.fileno())
            self.loop.remove_writer(line.fileno())
            line.close()
        if spawned is not None:
            for fd in (spawned.pidfd, *spawned.fds):
                if fd >= 0:
                    self.loop.remove_reader(fd)
                    os.close(fd)
            if not self._parked:
                self.launcher.forget(spawned.child)

    def _rest_later(self) -> None:
        """End the porter if no managed process is started for a while.

        The timer goes on when one is: making another for each short command would cost more.
        """
        self._used = self.loop.time()
        if not self.processes and self._idle is None and not self._parked:
            self._idle = self.loop.call_later(IDLE_SECONDS, self._rest)

    def _rest(self) -> None:
        self._idle = None
        if self.processes:
            return
        left = self._used + IDLE_SECONDS - self.loop.time()
        if left > 0:
            self._idle = self.loop.call_later(left, self._rest)
        else:
            self._send(link.STOP, {})

    def holdings(self) -> tuple[int, int, dict[bytes, int]] | None:
        """For a new keeper: number and pid of the porter, and what the keeper holds of it."""
        if self._spawned is None or self._link is None or self._ring is None:
            return None
        spawned = self._spawned
        fds = {b"lone": spawned.pidfd, LINK: self._link.fileno(), RING: self._ring.fd}
        return spawned.child, spawned.pid, fds

    def park(self) -> None:
        """Touch nothing any more: another server takes over."""
        self.read_records()
        self._parked = True

    def close(self) -> None:
        """Close everything; the keeper ends the porter, or keeps it for the next server."""
        self._parked = True
        if self._starting is not None:
            self._starting.cancel()
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        for process in list(self.processes.values()):
            process.park()
        self._let_go()
        if self._ring is not None:
            self._ring.close()
            self._ring = None

    # --- the link ----------------------------------------------------------------------------

    def _send(self, op: int, fields: link.Fields, fds: list[int] | None = None) -> None:
        line = self._link
        if line is None or self._parked:
            return  # the next porter is told of every process
        if not self._unsent:
            try:
                link.send(line, op, fields, fds=fds or ())
                return
            except BlockingIOError:
                self.loop.add_writer(line.fileno(), self._writable)
            except OSError:
                return  # seen by the reader
        self._unsent.append((op, fields, [os.dup(fd) for fd in fds or ()]))

    def _writable(self) -> None:
        line = self._link
        if line is None:
            return
        while self._unsent:
            op, fields, fds = self._unsent[0]
            try:
                link.send(line, op, fields, fds=fds)
            except BlockingIOError:
                return
            except OSError:
                pass  # seen by the reader
            self._unsent.popleft()
            for fd in fds:
                os.close(fd)
        self.loop.remove_writer(line.fileno())

    def _readable(self) -> None:
        for _ in range(16):
            line = self._link
            if line is None or self._parked:
                return
            try:
                message = link.receive(line)
            except BlockingIOError:
                return
            except ValueError as error:
                log.error("a message of the porter cannot be read: %s", error)
                continue
            except OSError:
                message = None
            if message is None:
                self.loop.remove_reader(line.fileno())  # its pidfd tells the rest
                return
            try:
                self._heard(message.op, message.fields)
            except (KeyError, TypeError, ValueError) as error:
                log.error("a message of the porter makes no sense: %r", error)
            finally:
                message.close()

    def _heard(self, op: int, fields: link.Fields) -> None:
        if op == link.WELCOME:
            self._greet(fields)
        elif not self._welcomed:
            return  # said to the server before us
        elif op == link.QUESTION:
            self._asked(fields)
        elif op == link.WITHDRAWN:
            known = self._questions.pop(int(fields["question"]), None)  # type: ignore[call-overload]
            if known is not None:
                known[0].withdrawn(int(fields["question"]))  # type: ignore[call-overload]
        elif op == link.RECORDS:
            self.read_records()

    def _greet(self, fields: link.Fields) -> None:
        """Tell the porter what it does not know, and what has ended."""
        self._welcomed = True
        known = set(fields["processes"])  # type: ignore[call-overload]
        opened = {name for name, process in self.processes.items() if process.is_open}
        for name in known - opened:
            self._send(link.REMOVE, {"process": name})
        for name in opened - known:
            self._send(link.ADD, *self.processes[name].request())
        self.read_records()

    def _asked(self, fields: link.Fields) -> None:
        values: Any = fields
        question = NetworkQuestion(
            int(values["question"]),
            values["protocol"],
            values["host"],
            int(values["port"]),
            values.get("method"),
            values.get("pid"),
            values.get("comm"),
        )
        process = self.processes.get(values["process"])
        if process is None:
            return  # it has ended meanwhile
        self._questions.setdefault(question.number, (process, time.monotonic()))
        process.asked(question)

    # --- records -----------------------------------------------------------------------------

    def read_records(self) -> None:
        """Take what the porter has recorded since the last time."""
        if self._ring is None or self._parked:
            return
        if self._ring.count() == self._read:
            return
        found = self._ring.read(self._read, decode=decode)
        self._write_log([record for _, record in found])
        for number, record in found:
            self._read = number
            if self._observer is not None:
                self._observer.network_recorded(record)
            process = self.processes.get(record.process)
            if process is not None:
                process.recorded(record, news=True)
            self._ring.taken = number

    def _write_log(self, records: list[Record]) -> None:
        """Write records to the user's log, before any client is told of them."""
        try:
            for name, group in groupby(records, lambda record: record.process):
                process = self.processes.get(name)
                about = {} if process is None else process.start.about
                if self._log is None:
                    self._log = NetworkLog(default_path())
                self._log.append(group, about)
        except (OSError, HandrailError) as error:
            log.error("decisions about connections cannot be logged: %s", error)
