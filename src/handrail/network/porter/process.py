"""A managed process as the porter knows it: its lists, answers, sockets and connections."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from handrail.network import config, decide, link, saved_rules
from handrail.network.decide import Key, Kind, Memory, Policy, Target, Verdict
from handrail.network.hosts import Address
from handrail.network.porter.client_program import UNKNOWN, ClientPrograms, Program
from handrail.network.porter.decisions import Decisions
from handrail.network.porter.outside_resolver import FairResolver
from handrail.network.porter.questions import MOST_HOSTS, TooMany
from handrail.network.porter.sandbox_loopback import SandboxLoopback
from handrail.network.porter.streams import prepare
from handrail.network.porter.stub_resolver import StubResolver

if TYPE_CHECKING:
    from handrail.network.porter.connection import Connection
    from handrail.network.porter.service import Porter

_DEFAULT_SECONDS = 30.0
_DEFER_SECONDS = 1


class Either:
    """Membership in one of two sets that change."""

    __slots__ = ("_one", "_other")

    def __init__(self, one: set[Key], other: set[Key]) -> None:
        self._one, self._other = one, other

    def __contains__(self, key: object) -> bool:
        return key in self._one or key in self._other


class Session:
    """What the processes of one session share."""

    def __init__(self) -> None:
        self.approved: set[Key] = set()
        self.denied: set[Key] = set()
        self.rules: list[saved_rules.SavedRule] = []
        #: How often answers have changed.
        self.changes = 0

    def update(self, fields: link.Fields) -> None:
        """Replace the lists that are given."""
        self.changes += 1
        if "rules" in fields:
            self.rules = read_rules(fields["rules"])
        if "approved" in fields:
            replace(self.approved, read_keys(fields["approved"]))
        if "denied" in fields:
            replace(self.denied, read_keys(fields["denied"]))


class ManagedProcess:
    """One process; made by ADD, ended by REMOVE."""

    def __init__(self, key: str, porter: Porter, session: Session) -> None:
        self.key = key
        self.session = session
        self.approved: set[Key] = set()
        self.denied: set[Key] = set()
        self.listeners: list[socket.socket] = []
        self.connections: set[Connection] = set()
        self.inside: SandboxLoopback | None = None
        self.programs: ClientPrograms | None = None
        self.stub: StubResolver | None = None
        self.uid: int | None = None
        self.policy = Policy(config.ManagedNetwork())
        self._porter = porter
        self.decisions = Decisions(porter, self)
        self.resolver = FairResolver(porter.threads)
        self._asks = False
        self._plain = True
        self._seconds = _DEFAULT_SECONDS
        self._asked_hosts: set[str] = set()

    def configure(self, fields: link.Fields) -> None:
        """Take over the fields of ADD; raises ValueError."""
        self.decisions.forget()
        network = config.from_json(cast("link.Fields", fields["config"]))
        if "rules" in fields:
            self.session.rules = read_rules(fields["rules"])
        self.policy = Policy(network, self.session.rules)
        replace(self.approved, read_keys(fields.get("approved")))
        replace(self.denied, read_keys(fields.get("denied")))
        self.session.update(
            {
                name: fields[f"session_{name}"]
                for name in ("approved", "denied")
                if fields.get(f"session_{name}") is not None
            }
        )
        self._asks = bool(fields.get("ask"))
        self._plain = bool(fields.get("plain", True))
        milliseconds = fields.get("decision_ms")
        if isinstance(milliseconds, int):
            self._seconds = milliseconds / 1000
        uid = fields.get("uid")
        self.uid = uid if isinstance(uid, int) else None

    def update(self, fields: link.Fields) -> None:
        """Judge by other rules and answers than before; the newest answer about a host counts."""
        self.decisions.forget()
        approved, denied = (read_keys(fields.get(name)) for name in ("approved", "denied"))
        self.approved |= approved
        self.denied |= denied
        self.approved -= denied
        self.denied -= approved
        self.policy = self.policy.with_rules(read_rules(fields.get("rules")))

    def use_session_rules(self) -> None:
        """Judge by the rules that the session has now."""
        self.decisions.forget()
        self.policy = self.policy.with_rules(self.session.rules)

    def take(self, name: str, fd: int) -> None:
        """Take a descriptor of that name; raises ValueError for an unknown one."""
        if name == link.LISTENER:
            listener = socket.socket(fileno=fd)
            listener.setblocking(False)
            prepare(listener)  # what it accepts has the same options
            # Accepted when its first bytes are there: neither protocol has us speak first.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _DEFER_SECONDS)
            self.listeners.append(listener)
            self._porter.accept_on(self, listener)
        elif name == link.NETWORK:
            if self.inside is not None:
                os.close(fd)  # the namespace of a process does not change
                return
            self.decisions.forget()
            self.inside = SandboxLoopback(fd, self._porter.makers)
            self.programs = ClientPrograms(fd, self._porter.makers)
        elif name == link.RESOLVER:
            if self.stub is not None:
                self.stub.close()
            self.stub = StubResolver(socket.socket(fileno=fd), self.resolved)
        else:
            os.close(fd)
            raise ValueError(f"no descriptor of a process has the name {name!r}")

    def give(self) -> tuple[list[str], list[int]]:
        """The names and numbers of the descriptors, for a server that has lost its keeper."""
        names = [link.LISTENER] * len(self.listeners)
        fds = [listener.fileno() for listener in self.listeners]
        if self.inside is not None:
            names.append(link.NETWORK)
            fds.append(self.inside.network)
        if self.stub is not None:
            names.append(link.RESOLVER)
            fds.append(self.stub.sock.fileno())
        return names, fds

    def close(self) -> None:
        """Close the sockets and break the connections."""
        for listener in self.listeners:
            self._porter.readiness.closing(listener.fileno())
            listener.close()
        self.listeners.clear()
        for connection in list(self.connections):
            connection.cancel()
        if self.stub is not None:
            self.stub.close()
        if self.programs is not None:
            self.programs.close()
        if self.inside is not None:
            self.inside.close()

    def resolved(self, name: str) -> None:
        """A program inside has asked for a name by itself, and was told that there is none."""
        self._porter.record_name(self, name)

    async def decide(
        self,
        target: Target,
        client: socket.socket,
        *,
        through_upstream: bool,
        known: tuple[Address, ...] | None = None,
    ) -> Verdict:
        """Decide to the end: lists, answers, look-up, addresses.

        ``through_upstream``: another proxy looks names up too, so that one which is unknown here
        may still be reached there.  ``known``: what a connection that is open leads to.
        """
        own = self._porter.own_addresses()
        verdict = decide.judge(self.policy, self.memory(), target, can_ask=self._asks, own=own)
        if verdict.kind is Kind.ASK:
            verdict = await self._ask(target, client)
        if verdict.kind is not Kind.ALLOW:
            return verdict
        found = known or decide.known_addresses(target.host)
        if found is None:
            found = tuple(await self.resolver.look_up(target.host.text))
            if not found and through_upstream:
                return verdict
        verdict = decide.judge_addresses(
            self.policy, target, verdict, found, self._porter.own_addresses()
        )
        if self._porter.is_own_listener(verdict.dial, target.port):
            return Verdict(Kind.DENY, decide.NOT_ALLOWED_LOCAL, decide.STATE)
        return verdict

    def memory(self, *more: Key) -> Memory:
        """The answers that hold, and further approved ones."""
        approved = Either(self.approved, self.session.approved | set(more))
        return Memory(approved, Either(self.denied, self.session.denied))

    async def program(self, client: socket.socket) -> Program:
        """The program at the other end of a connection, as far as that can be told."""
        return UNKNOWN if self.programs is None else await self.programs.find(client)

    async def _ask(self, target: Target, client: socket.socket) -> Verdict:
        asked = {*self._asked_hosts, target.host.text}
        if len(asked) > MOST_HOSTS and not self._plain:
            return Verdict(Kind.DENY, decide.TOO_MANY, decide.STATE)
        pid, comm = (None, None) if self._plain else await self.program(client)
        about: dict[str, object] = {"pid": pid, "comm": comm}
        try:
            answer = await asyncio.shield(
                self._porter.questions.ask(
                    self.key, target, self._seconds, about, burst=self._plain
                )
            )
        except TooMany:
            return Verdict(Kind.DENY, decide.TOO_MANY, decide.STATE)
        self._asked_hosts = {*self._asked_hosts, target.host.text}
        if not answer.allow:
            return decide.refused(self.policy, target, answer.reason, asks=answer.asks)
        # Once more from the start: a rule may have come meanwhile that forbids it.
        memory = self.memory(target.key)
        return decide.judge(self.policy, memory, target, can_ask=False)

    def remember(self, target: Target, allow: bool, scope: str) -> None:
        """Let an answer hold for the process or the session."""
        self.decisions.forget()
        self.session.changes += 1
        holder = self.session if scope == "session" else self
        (holder.approved if allow else holder.denied).add(target.key)
        (holder.denied if allow else holder.approved).discard(target.key)


def replace(keys: set[Key], others: Iterable[Key]) -> None:
    """Give a set other members; others hold the set itself."""
    keys.clear()
    keys.update(others)


def read_keys(pairs: object) -> set[Key]:
    """Hosts and ports as the link has them."""
    given = cast("list[tuple[str, int]]", pairs or ())
    return {(str(host), int(port)) for host, port in given}


def read_rules(given: object) -> list[saved_rules.SavedRule]:
    """Rules as the link has them; raises ValueError."""
    rows = cast("list[tuple[str, int | None, str]]", given or ())
    return [saved_rules.saved_rule(host, port, decision) for host, port, decision in rows]
