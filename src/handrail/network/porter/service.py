"""The porter's state, and its conversation with the server.

The server's end of the link is held by the keeper too, so its death is not noticed: connections go
on, questions wait for the next server.  That one says HELLO and is told what there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from handrail import listeners
from handrail.network import decide, link, machine
from handrail.network import refusal_replies as replies
from handrail.network.address_classes import is_here
from handrail.network.hosts import Address
from handrail.network.porter import outside_resolver
from handrail.network.porter.connection import Connection
from handrail.network.porter.metrics import Metrics, series
from handrail.network.porter.process import ManagedProcess, Session
from handrail.network.porter.questions import Question, Questions, read_answer
from handrail.network.porter.readiness import READ, Readiness
from handrail.network.porter.upstream import Upstreams
from handrail.network.records import DECISION, Record, Ring
from handrail.transport.peer_uid import PeerUids, UnknownOwner

#: Connections of one process, and of all.
MOST_OF_PROCESS = 1024
MOST = 4096
#: Without a process, before the server is told; and then before the porter ends by itself.
IDLE_SECONDS = 60.0
#: The server is told of new records no more often than this.
_TELL_SECONDS = 0.02
_OWN_SECONDS = 1.0
_ACCEPTED_AT_ONCE = 64
_SCARCE_SECONDS = 0.1
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: Messages that wait for a server; a question is told again to the next one anyway.
_MOST_WAITING = 1024


class Porter:
    """Everything the porter knows."""

    def __init__(self, sock: socket.socket, ring: Ring, environment: Mapping[str, str]) -> None:
        self._link = sock
        self._ring = ring
        self._waiting: deque[tuple[int, link.Fields, int, list[int]]] = deque()
        self._processes: dict[str, ManagedProcess] = {}
        self._sessions: dict[str, Session] = {}
        self.connections = 0
        self._numbers = ring.count()  # so that they differ from those of a porter before us
        self._own: tuple[float, frozenset[Address]] = (-_OWN_SECONDS, frozenset())
        self._telling: asyncio.TimerHandle | None = None
        self._told = 0
        self._idle: asyncio.TimerHandle | None = None
        self._owners = PeerUids()
        #: Where the server listens.
        self._closed_ports: set[int] = set()
        #: Ports of this machine by which processes without a sandbox reach the porter.
        self._host_ports: dict[str, set[int]] = {}
        self.upstreams = Upstreams(environment)
        self.metrics = Metrics()
        #: For look-ups, and for making sockets in sandboxes.
        self.threads = outside_resolver.threads()
        self.makers = ThreadPoolExecutor(2, "maker")

    async def run(self) -> None:
        """Serve until STOP, or until the link has no other end."""
        self.loop = asyncio.get_running_loop()
        self.readiness = Readiness(self.loop)
        self._ended: asyncio.Future[None] = self.loop.create_future()
        self.questions = Questions(
            self.loop,
            self._ask,
            self._withdrawn,
            lambda seconds: self.metrics.wait(self.metrics.asked, seconds),
            first=time.time_ns() // 1000,  # other numbers than those of a porter before us
        )
        self.loop.add_reader(self._link, self._hear)
        self._wait_idle()
        await self._ended
        for key in list(self._processes):
            self._remove(key)

    # --- the link ---------------------------------------------------------------------------------

    def _hear(self) -> None:
        for _ in range(16):
            try:
                message = link.receive(self._link)
            except BlockingIOError:
                return
            except ValueError:
                continue
            except OSError:
                message = None
            if message is None:
                self._end()
                return
            try:
                self._obey(message)
            except (ValueError, KeyError, TypeError, OSError) as error:
                if message.serial:
                    self._say(link.FAILED, {"error": f"{error}"}, message.serial)
            finally:
                message.close()

    def _obey(self, message: link.LinkMessage) -> None:
        fields = message.fields
        if message.op == link.ANSWER:
            self._answered(fields)
            return
        done: link.Fields = {}
        if message.op == link.HELLO:
            self._welcome(message)
            return
        if message.op == link.ADD:
            self._add(str(fields["process"]), message)
        elif message.op == link.LISTEN:
            self._take(self._processes[str(fields["process"])], message)
        elif message.op == link.REMOVE:
            self._remove(str(fields["process"]))
        elif message.op == link.UPDATE:
            self._update(str(fields["session"]), fields)
        elif message.op == link.LISTENERS:
            self._give(message.serial)
        elif message.op == link.STATE:
            done = self._state()
        elif message.op == link.STOP:
            self._end()
        else:
            raise ValueError(f"the porter knows no operation {message.op}")
        if message.serial:
            self._say(link.DONE, done, message.serial)

    def _welcome(self, message: link.LinkMessage) -> None:
        ports = message.fields.get("ports")
        if isinstance(ports, list):
            self._closed_ports = {port for port in ports if isinstance(port, int)}
        self._waiting.clear()  # for the server before
        self.loop.remove_writer(self._link)
        self._told = 0
        fields: link.Fields = {
            "version": link.VERSION,
            "pid": os.getpid(),
            "processes": list(self._processes),
            "written": self._ring.written,
        }
        self._say(link.WELCOME, fields, message.serial)
        for question in self.questions.all():
            self._ask(question)

    def _say(
        self, op: int, fields: link.Fields, serial: int = 0, fds: list[int] | None = None
    ) -> None:
        """Send a message, later if the server does not read; beyond a limit not at all."""
        if not self._waiting:
            try:
                link.send(self._link, op, fields, serial, fds or ())
            except BlockingIOError:
                self.loop.add_writer(self._link, self._flush)
            except OSError:
                return  # its end will be noticed
            else:
                return
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append((op, fields, serial, fds or []))

    def _flush(self) -> None:
        while self._waiting:
            op, fields, serial, fds = self._waiting[0]
            try:
                link.send(self._link, op, fields, serial, fds)
            except BlockingIOError:
                return
            except OSError:
                self._waiting.clear()
                break
            self._waiting.popleft()
        self.loop.remove_writer(self._link)

    def _end(self) -> None:
        self.loop.remove_reader(self._link)
        if not self._ended.done():
            self._ended.set_result(None)

    # --- processes --------------------------------------------------------------------------------

    def _add(self, key: str, message: link.LinkMessage) -> None:
        name = str(message.fields.get("session", ""))
        session = self._sessions.setdefault(name, Session())
        process = self._processes.get(key)
        if process is None:
            process = ManagedProcess(key, self, session)
        process.configure(message.fields)
        self._processes[key] = process
        self._use_rules(session)
        self._take(process, message)
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _take(self, process: ManagedProcess, message: link.LinkMessage) -> None:
        names = message.fields.get("fds") or []
        if not isinstance(names, list) or len(names) != len(message.fds):
            raise ValueError("the message names other descriptors than it has")
        for name in names:
            process.take(str(name), message.fds.pop(0))

    def _remove(self, key: str) -> None:
        process = self._processes.pop(key, None)
        if process is None:
            return
        self.questions.drop(key)
        process.close()
        self._host_ports.pop(key, None)
        if not any(one.session is process.session for one in self._processes.values()):
            self._sessions = {
                name: one for name, one in self._sessions.items() if one is not process.session
            }
        if not self._processes:
            self._wait_idle()

    def _update(self, name: str, fields: link.Fields) -> None:
        session = self._sessions.get(name)
        if session is None:
            return
        if "process" in fields:
            process = self._processes.get(str(fields["process"]))
            if process is not None:
                process.update(fields)
            return
        session.update(fields)
        self._use_rules(session)

    def _use_rules(self, session: Session) -> None:
        for process in self._processes.values():
            if process.session is session:
                process.use_session_rules()

    def _give(self, serial: int) -> None:
        for key, process in self._processes.items():
            names, fds = process.give()
            self._say(link.GIVEN, {"process": key, "fds": names}, serial, fds)

    def _state(self) -> link.Fields:
        return {
            "processes": len(self._processes),
            "connections": self.connections,
            "questions": len(self.questions),
            "metrics": self.metrics.to_json(),
        }

    def _wait_idle(self) -> None:
        self._idle = self.loop.call_later(IDLE_SECONDS, self._be_idle)

    def _be_idle(self) -> None:
        self._say(link.IDLE, {})
        self._idle = self.loop.call_later(IDLE_SECONDS, self._end)

    # --- connections ------------------------------------------------------------------------------

    def accept_on(self, process: ManagedProcess, listener: socket.socket) -> None:
        """Serve what connects to a listener of a process."""
        if process.uid is not None:
            self._host_ports.setdefault(process.key, set()).add(listener.getsockname()[1])
        accept = partial(self._accept, process, listener)
        self.readiness.watch(listener.fileno(), READ, accept)

    def _accept(self, process: ManagedProcess, listener: socket.socket, _events: int) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _SCARCE:
                    self._pause(process, listener)
                return
            if not self._admits(process, sock):
                continue
            self._numbers += 1
            self.connections += 1
            connection = Connection(self, process, sock, self._numbers)
            process.connections.add(connection)
            connection.begin()

    def ended(self, connection: Connection) -> None:
        """A connection has ended."""
        connection.process.connections.discard(connection)
        self.connections -= 1

    def _admits(self, process: ManagedProcess, sock: socket.socket) -> bool:
        """Whether a new connection is served; else it is closed."""
        if process.uid is not None:
            try:
                if self._owners.uid(sock) != process.uid:
                    sock.close()
                    return False
            except UnknownOwner:
                sock.close()
                return False
        if len(process.connections) < MOST_OF_PROCESS and self.connections < MOST:
            return True
        refused = decide.Verdict(decide.Kind.DENY, decide.TOO_MANY, decide.STATE)
        self.metrics.count(series(refused, decide.HTTP))
        with contextlib.suppress(OSError):
            sock.setblocking(False)
            sock.send(replies.bad(503, "too many connections"))
        sock.close()
        return False

    def _pause(self, process: ManagedProcess, listener: socket.socket) -> None:
        """Accept nothing for a moment: no descriptor is free, and the backlog holds them."""
        self.readiness.forget(listener.fileno())

        def again() -> None:
            if listener.fileno() >= 0:
                self.accept_on(process, listener)

        self.loop.call_later(_SCARCE_SECONDS, again)

    def is_own_listener(self, addresses: tuple[Address, ...], port: int) -> bool:
        """Whether a listener of handrail's is there: it would take the porter for its user.

        No entry opens it: through a server's a command would start others without its sandbox,
        through one of the porter's it would connect by the lists of another process.
        """
        own = self.own_addresses()
        if not any(is_here(address, own) for address in addresses):
            return False
        return self.listens_on(port)

    def listens_on(self, port: int) -> bool:
        """Whether a listener of handrail's has this port of this machine."""
        if port in self._closed_ports or any(port in one for one in self._host_ports.values()):
            return True
        return listeners.has(port)

    def own_addresses(self) -> frozenset[Address]:
        """The addresses of this machine, as of a moment ago."""
        now = self.loop.time()
        if now - self._own[0] >= _OWN_SECONDS:
            self._own = (now, machine.own_addresses())
        return self._own[1]

    # --- questions and records --------------------------------------------------------------------

    def _ask(self, question: Question) -> None:
        self._say(link.QUESTION, question.fields())

    def _withdrawn(self, question: Question, why: str) -> None:
        self._say(link.WITHDRAWN, {"question": question.number, "why": why})

    def _answered(self, fields: link.Fields) -> None:
        number = fields.get("question")
        question = self.questions.get(number) if isinstance(number, int) else None
        if question is None:
            return
        answer = read_answer(fields)
        process = self._processes.get(question.process)
        scope = fields.get("for")
        if process is not None and scope in ("process", "session"):
            process.remember(question.target, answer.allow, str(scope))
        self.questions.answer(question.number, answer)

    def record(self, record: Record) -> None:
        """Write a record, and tell the server soon."""
        self._ring.append(record)
        self._tell_soon()

    def write_record(self, body: bytes) -> None:
        """Write a record that is encoded, and tell the server soon."""
        self._ring.write(body)
        self._tell_soon()

    def _tell_soon(self) -> None:
        if self._telling is None:
            self._tell_records()

    def record_name(self, process: ManagedProcess, name: str) -> None:
        """Record a name that a program inside has asked its resolver for."""
        self.record(
            Record(
                kind=DECISION,
                process=process.key,
                connection=0,
                time=time.time(),
                decision="deny",
                source=decide.STATE,
                reason=decide.NOT_ALLOWED,
                protocol="dns",
                op="resolve",
                host=name,
                port=0,
            )
        )

    def _tell_records(self) -> None:
        self._telling = None
        if self._ring.written > self._told:
            self._told = self._ring.written
            self._say(link.RECORDS, {"written": self._told})
            self._telling = self.loop.call_later(_TELL_SECONDS, self._tell_records)
