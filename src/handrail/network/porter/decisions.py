"""Decisions as connections use them, and those that are made once for many connections."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from handrail.network import decide
from handrail.network.address_classes import is_here
from handrail.network.decide import Kind, Target, Verdict
from handrail.network.hosts import Address
from handrail.network.porter import metrics
from handrail.network.porter.client_program import UNKNOWN, Program
from handrail.network.records import DECISION, Record, RecordedDecision

if TYPE_CHECKING:
    from handrail.network.porter.process import ManagedProcess
    from handrail.network.porter.service import Porter

_MOST = 1024
#: Verdicts that are told by their own names; all others are refusals.
_NAMED = (Kind.ALLOW, Kind.ASK)


class Decision:
    """What was decided about a target, ready to be recorded and counted."""

    __slots__ = ("counted", "is_here", "leads_here", "recorded", "verdict")

    def __init__(
        self, process: str, target: Target, verdict: Verdict, program: Program = UNKNOWN
    ) -> None:
        self.verdict = verdict
        #: Whether the first address to dial is this machine's, and whether one of them is.
        self.is_here = self.leads_here = False
        self.counted = metrics.series(verdict, target.protocol)
        self.recorded = RecordedDecision(
            Record(
                kind=DECISION,
                process=process,
                connection=0,
                time=time.time(),
                decision=verdict.kind.value if verdict.kind in _NAMED else "deny",
                source=verdict.source,
                reason=verdict.reason,
                protocol=target.protocol,
                op="request" if target.protocol == decide.HTTP else "connect",
                host=target.host.text,
                port=target.port,
                method=target.method,
                override=verdict.override,
                rule=verdict.rule,
                address=str(verdict.dial[0]) if verdict.dial else None,
                pid=program[0],
                comm=program[1],
            )
        )


class Decisions:
    """The decisions of one process that allow addresses: they need no look-up and no question.

    They hold until something changes that they depend on: lists, rules, answers, the addresses of
    this machine.  Where listeners of handrail's are is asked each time.
    """

    def __init__(self, porter: Porter, process: ManagedProcess) -> None:
        self._porter = porter
        self._process = process
        self._known: dict[tuple[str, str, int, str | None], Decision | None] = {}
        self._own: frozenset[Address] = frozenset()
        self._changes = -1

    def forget(self) -> None:
        """Something has changed that they depend on."""
        self._known.clear()

    def find(self, target: Target) -> Decision | None:
        """The decision that allows a target; None: it is refused, or a longer way is needed."""
        own, changes = self._porter.own_addresses(), self._process.session.changes
        if changes != self._changes or own != self._own or len(self._known) > _MOST:
            self._known.clear()
            self._own, self._changes = own, changes
        key = (target.protocol, target.host.text, target.port, target.method)
        try:
            decision = self._known[key]
        except KeyError:
            decision = self._known[key] = self._decide(target, own)
        if decision is not None and decision.leads_here and self._porter.listens_on(target.port):
            return None
        return decision

    def _decide(self, target: Target, own: frozenset[Address]) -> Decision | None:
        process, policy = self._process, self._process.policy
        found = decide.known_addresses(target.host)
        if found is None or policy.config.allow_upstream_proxy:
            return None
        if process.inside is not None and decide.leads_inside(policy, target):
            return None
        verdict = decide.judge(policy, process.memory(), target, can_ask=False, own=own)
        if verdict.kind is Kind.ALLOW:
            verdict = decide.judge_addresses(policy, target, verdict, found, own)
        if verdict.kind is not Kind.ALLOW:
            return None
        decision = Decision(process.key, target, verdict)
        decision.is_here = is_here(verdict.dial[0], own)
        decision.leads_here = any(is_here(address, own) for address in verdict.dial)
        return decision
