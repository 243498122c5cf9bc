"""What a process with a managed network is started with, and what its caller is asked.  Data."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from handrail.network import config as configuration
from handrail.network.config import WIRE_MEMBERS, Json, ManagedNetwork
from handrail.network.saved_rules import SavedRule
from handrail.network.variables import INNER_HOST

Target = tuple[str, int]


@dataclass(frozen=True, slots=True)
class NetworkQuestion:
    """A host that is on no list: may this process connect to it?"""

    number: int
    #: ``http``, ``https_connect`` or ``socks5_tcp``.
    protocol: str
    host: str
    port: int
    #: Of a plain HTTP request.
    method: str | None = None
    #: The process that asks, as far as it is known.
    pid: int | None = None
    comm: str | None = None


@dataclass(frozen=True, slots=True)
class NetworkAnswer:
    """What a caller says to a question; ``lasts``: ``once``, ``process`` or ``session``."""

    allow: bool
    #: Why not; told to the program.
    reason: str | None = None
    lasts: str = "once"
    #: Of a no, for the audit: ``deny`` or ``ask``.
    label: str = "deny"


@dataclass(frozen=True, slots=True)
class NetworkRequest:
    """The network that a caller wants for a process.

    In a sandbox the proxy is the only way out, whatever the sandbox says of the network; without
    one only environment variables lead to it, and nothing is enforced.
    """

    config: ManagedNetwork
    #: Asked about hosts that no list decides about; None: they are refused.
    ask: Callable[[NetworkQuestion], Awaitable[NetworkAnswer]] | None = None
    #: Seconds for an answer; then it is no.
    decision_seconds: float = 60.0
    #: Saved rules, the last of which decides.
    rules: tuple[SavedRule, ...] = ()
    #: What was decided before: host and port.
    approved: tuple[Target, ...] = ()
    denied: tuple[Target, ...] = ()
    #: Answers for a session hold for all processes with this name; "": for this process alone.
    session: str = ""
    #: Told of each decision: ``allow`` or ``deny``, host and port.  It must not block or raise.
    decided: Callable[[str, str, int], None] | None = None

    def start(self, *, enforced: bool) -> ManagedStart:
        """The network of a process on this machine."""
        return ManagedStart(
            self.config,
            None if self.ask is None else int(self.decision_seconds * 1000),
            self.rules,
            self.approved,
            self.denied,
            self.session,
            enforced=enforced,
        )

    def to_wire(self) -> dict[str, object]:
        """The ``networkProxy`` member of a message."""
        values = self.config.to_json()
        proxy = {member: values.get(name, True) for member, name in WIRE_MEMBERS.items()}
        wire: dict[str, object] = {"proxy": proxy}
        if self.ask is not None:
            wire["policyDecisionTimeoutMs"] = max(1, int(self.decision_seconds * 1000))
        ours: dict[str, object] = {
            name: values[name]
            for name in ("addresses", "reasons", "unlisted")
            if values[name] != getattr(_PLAIN, name)
        }
        if "ask" in self.config.domains.values():
            # A server that does not know the word is told to refuse these hosts.
            kept = {pattern: v for pattern, v in self.config.domains.items() if v != "ask"}
            proxy["domains"] = kept
            ours["domains"] = dict(self.config.domains)
        for name in ("rules", "approved", "denied"):
            if getattr(self, name):
                ours[name] = self.start(enforced=True).fields("")[name]
        if ours:
            wire["handrail"] = ours
        return wire


_PLAIN = ManagedNetwork()


@dataclass(frozen=True, slots=True)
class ManagedStart:
    """The network of one process: its rules, and whether there is a client to ask."""

    config: ManagedNetwork
    #: Milliseconds that a client has for an answer; None: unlisted hosts are refused unasked.
    decision_ms: int | None = None
    rules: tuple[SavedRule, ...] = ()
    #: What was decided before for this process.
    approved: tuple[Target, ...] = ()
    denied: tuple[Target, ...] = ()
    #: The session it belongs to: answers for a session count for all its processes.
    session: str = ""
    #: Of the request, for the audit.
    execution_id: str | None = None
    environment_id: str | None = None
    #: In a sandbox with no other way out; else only variables lead to the proxy.
    enforced: bool = True
    #: Its client is not one of ours: questions say no more than the peer's, and are not limited.
    plain: bool = False
    #: Where its way out listens, in a network that several commands share.
    address: str = INNER_HOST

    @property
    def asks(self) -> bool:
        """Whether unlisted hosts are asked about."""
        return self.decision_ms is not None

    @property
    def about(self) -> dict[str, object]:
        """What the log of decisions says of a process beside the decision."""
        known = {
            "session": self.session or None,
            "execution": self.execution_id,
            "environment": self.environment_id,
        }
        return {name: value for name, value in known.items() if value is not None}

    def fields(self, process: str) -> Json:
        """The porter's request to carry the connections of this process."""
        return {
            **self._rules_and_answers(),
            "process": process,
            "session": self.session or f"process {process}",
            "config": self.config.to_json(),
        }

    def _rules_and_answers(self) -> Json:
        fields: Json = {
            "ask": self.asks,
            "decision_ms": self.decision_ms,
            "approved": [list(target) for target in self.approved],
            "denied": [list(target) for target in self.denied],
            "plain": self.plain,
        }
        if self.rules:  # they replace those of the session
            fields["rules"] = [[rule.host, rule.port, rule.decision] for rule in self.rules]
        return fields

    def to_text(self) -> str:
        """For the next server, in the note of the process."""
        from msgspec.json import encode

        kept = {
            **self._rules_and_answers(),
            "config": self.config,
            "session": self.session,
            "execution_id": self.execution_id,
            "environment_id": self.environment_id,
            "enforced": self.enforced,
            "address": self.address,
        }
        return encode(kept, enc_hook=dict).decode()  # mappings that are no dicts, too


def from_text(text: str) -> ManagedStart:
    """Read what `to_text` wrote; raises ValueError."""
    kept = json.loads(text)
    return ManagedStart(
        config=configuration.from_json(kept["config"]),
        decision_ms=kept["decision_ms"],
        rules=tuple(SavedRule(*rule) for rule in kept.get("rules", ())),
        approved=tuple((host, port) for host, port in kept["approved"]),
        denied=tuple((host, port) for host, port in kept["denied"]),
        session=kept["session"],
        execution_id=kept["execution_id"],
        environment_id=kept["environment_id"],
        enforced=kept["enforced"],
        plain=kept.get("plain") is True,
        address=kept.get("address", INNER_HOST),
    )
