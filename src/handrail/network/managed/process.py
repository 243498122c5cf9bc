"""One process with a managed network: its way out, its open questions and what it was refused.

It is known to the porter by the keeper's number of its process, which no other process ever has,
also after a change of server.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from handrail.network import link
from handrail.network.managed.denials import NetworkDenial, NetworkDenials
from handrail.network.managed.start import ManagedStart, NetworkAnswer, NetworkQuestion
from handrail.network.managed.way_out import LISTENER, NAMESPACE, RESOLVER, WayOut
from handrail.network.records import DECISION, Record
from handrail.network.variables import INNER_HOST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from handrail.network.managed.porter_life import PorterLife
    from handrail.network.managed.start import Target
    from handrail.network.saved_rules import SavedRule
    from handrail.process.child import Child

#: The keeper's name of each descriptor -> the porter's.
_NAMES = {LISTENER: link.LISTENER, NAMESPACE: link.NETWORK, RESOLVER: link.RESOLVER}
_NO = NetworkAnswer(allow=False)


class ManagedProcess:
    """The network of one process, from before its start until its end."""

    def __init__(
        self, life: PorterLife, start: ManagedStart, held: dict[bytes, int] | None = None
    ) -> None:
        """``held``: descriptors of a process that a server before us has started."""
        self._life = life
        self.start = start
        #: The keeper's number of its process; 0 before its start.
        self.number = 0
        self._child: Child | None = None
        self._questions: dict[int, NetworkQuestion] = {}
        self._denials = NetworkDenials()
        #: No client has been there since the server before us was lost: questions wait for one.
        self._awaits_client = held is not None
        #: Names of what the keeper holds of it.
        self.kept: set[bytes] = set(held or ())
        if held is None and not start.enforced:
            held = {LISTENER: _listen_here()}
        self._way = self._make_way(held)
        self._ended = False

    def _make_way(self, held: dict[bytes, int] | None = None) -> WayOut:
        names = (NAMESPACE, RESOLVER, LISTENER) if self.start.enforced else (LISTENER,)
        return WayOut(self._life.loop, names, self._opened, held, self.start.address)

    def led_to(self, address: str) -> None:
        """Before its start: it shares a network, in which its way out has an address of its own."""
        self.start = replace(self.start, address=address)
        self._way = self._make_way()

    @property
    def way_out(self) -> WayOut | None:
        """What the supervisor of its sandbox opens; None: nothing is enforced."""
        return self._way if self.start.enforced else None

    @property
    def is_open(self) -> bool:
        """Whether the porter can serve it."""
        return self._way.is_open

    @property
    def id(self) -> str:
        """Its name on the porter's link."""
        return str(self.number)

    @property
    def hosts(self) -> str:
        """Its configuration: commands share a network only with the same."""
        return json.dumps(self.start.config.to_json(), sort_keys=True)

    @property
    def note(self) -> str:
        """What the next server has to know; it is written at the start and at the end."""
        return self._life.note_of(self.start)

    @property
    def port(self) -> int:
        """Where its proxy listens on loopback, if it is in no sandbox."""
        with socket.socket(fileno=os.dup(self._way.fds[LISTENER])) as listener:
            return int(listener.getsockname()[1])

    @property
    def holdings(self) -> dict[bytes, int]:
        """The descriptors that the keeper holds of it."""
        return self._way.fds

    # --- its process -------------------------------------------------------------------------

    def begin(self, number: int) -> None:
        """Its process has been started, perhaps once more, and has this number in the keeper."""
        self._life.processes.pop(self.id, None)
        if self.number and self.start.enforced:
            # The sandbox before could not be set up, and closes its way out when it is gone.
            self._way = self._make_way()
        self.number = number
        self._life.processes[self.id] = self
        if not self.start.enforced and not self._awaits_client:
            self._way.hand_over()  # else the keeper has it, and the porter that is adopted

    def began(self, child: Child) -> None:
        """Its process is known to its owner; questions go to the sink of it."""
        self._child = child

    def ended(self) -> None:
        """All its processes have ended: close what it has, withdraw its questions."""
        if self._ended:
            return
        if self._is_recorded:
            self._life.read_records()
        self._ended = True
        self._withdraw_all()
        self._life.remove(self)
        self._way.close()

    def park(self) -> None:
        """Stop using it: another server takes over."""
        self._ended = True
        self._life.processes.pop(self.id, None)
        self._way.close()

    # --- its way out -------------------------------------------------------------------------

    def _opened(self, fds: dict[bytes, int]) -> bool:
        """Have the keeper hold the sockets and the porter accept on them."""
        try:
            for name, fd in fds.items():
                self._life.launcher.keep(self.number, name, fd)
                self.kept.add(name)
        except OSError:
            return False  # the keeper is busy
        self._life.add(self)
        return True

    def update(
        self, rules: Sequence[SavedRule], approved: Sequence[Target], denied: Sequence[Target]
    ) -> None:
        """Decide by these rules and answers of the session from now on, at once."""
        self.start = replace(
            self.start, rules=tuple(rules), approved=tuple(approved), denied=tuple(denied)
        )
        fields = self.start.fields(self.id)
        lists = {name: fields.get(name, []) for name in ("rules", "approved", "denied")}
        self._life.update(str(fields["session"]), process=self.id, **lists)

    def request(self) -> tuple[link.Fields, list[int]]:
        """The message that registers it with the porter."""
        fds = self._way.fds
        fields: link.Fields = {
            **self.start.fields(self.id),
            "uid": None if self.start.enforced else os.getuid(),
            "fds": [_NAMES[name] for name in fds],
        }
        return fields, list(fds.values())

    # --- questions ---------------------------------------------------------------------------

    def asked(self, question: NetworkQuestion) -> None:
        """The porter asks; a question may come again after a change of server."""
        if question.number in self._questions:
            return
        self._questions[question.number] = question
        sink = None if self._child is None else self._child.sink
        if sink is not None and self._child is not None:
            sink.question(self._child, question)
        elif not self._awaits_client:
            self.answer(question.number, _NO)

    def answer(self, number: int, answer: NetworkAnswer) -> None:
        """The client has answered; late answers are ignored."""
        if self._questions.pop(number, None) is not None:
            self._life.answer(number, answer)

    def withdrawn(self, number: int) -> None:
        """The porter waits for an answer no longer."""
        if self._questions.pop(number, None) is not None:
            self._withdraw(number)

    def attached(self) -> None:
        """A client is there (again): it is asked what is open."""
        self._awaits_client = False
        child = self._child
        if child is not None and child.sink is not None:
            for question in list(self._questions.values()):
                child.sink.question(child, question)

    def detached(self) -> None:
        """The client is gone: what it was asked is answered with no."""
        if not self._awaits_client:
            for number in list(self._questions):
                self.answer(number, _NO)

    def lost(self) -> None:
        """The porter is gone, and its questions with it."""
        self._withdraw_all()

    def _withdraw_all(self) -> None:
        questions, self._questions = self._questions, {}
        for number in questions:
            self._withdraw(number)

    def _withdraw(self, number: int) -> None:
        if self._child is not None and self._child.sink is not None:
            self._child.sink.withdrawn(self._child, number)

    # --- records -----------------------------------------------------------------------------

    def recorded(self, record: Record, *, news: bool) -> None:
        """Take a record of the porter; ``news``: no server has told the client of it."""
        if record.kind != DECISION:
            return
        self._denials.note(record)
        child = self._child
        if news and child is not None and child.sink is not None:
            child.sink.decided(child, record)

    @property
    def denials(self) -> Sequence[NetworkDenial]:
        """The hosts it was refused, up to now."""
        if not self._is_recorded:
            return ()
        with contextlib.suppress(OSError):
            self._life.read_records()
        return self._denials.found

    @property
    def _is_recorded(self) -> bool:
        """Whether the porter may have served it: not a command that never connects."""
        return bool(self.kept)


def _listen_here() -> int:
    """A listener on our own loopback, for a process in no sandbox."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((INNER_HOST, 0))
    listener.listen(512)
    listener.setblocking(False)
    return listener.detach()
