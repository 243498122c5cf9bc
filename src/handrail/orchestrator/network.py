"""May this host be connected to?  One question at a time for the same host.

A proxy asks; it knows what the rules say already and comes here with hosts that no rule names.
Refused without a question where nobody is to be asked.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from handrail.orchestrator.approval_cache import HostKey, host_key
from handrail.orchestrator.approvals import Choice, Kind, Question, Source
from handrail.orchestrator.audit import ApprovalRequested, ToolDecision
from handrail.orchestrator.run import Orchestrator
from handrail.orchestrator.save_rule import add_host_rule
from handrail.orchestrator.settings import Settings
from handrail.policy.context import Approval

TOOL = "network"
_CHOICES = (Choice.APPROVE, Choice.APPROVE_FOR_SESSION, Choice.HOST_RULE, Choice.DENY, Choice.ABORT)


@dataclass(frozen=True, slots=True)
class Connection:
    """Where somebody wants to connect to, and whose call it belongs to."""

    call_id: str
    argv: tuple[str, ...]
    cwd: str
    protocol: str
    host: str
    port: int
    environment_id: str = "local"

    @property
    def key(self) -> HostKey:
        return host_key(self.environment_id, self.protocol, self.host, self.port)

    @property
    def refusal(self) -> str:
        """What the owner of the connection is told."""
        place = f"{self.protocol}://{self.host}:{self.port}"
        return f'Network access to "{place}" was blocked by policy.'


class Hosts:
    """The connections of one session."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self._house = orchestrator
        self._pending: dict[tuple[HostKey, str], asyncio.Task[bool]] = {}

    async def allows(self, connection: Connection) -> bool:
        """Whether it may be made."""
        memory, settings = self._house.memory, self._house.settings
        key = connection.key
        if memory.denies(key):
            return False
        if memory.knows([key]):
            return True
        if not may_ask(settings):
            self._decided(connection, Choice.DENY, Source.CONFIG)
            return False
        place = (key, connection.call_id)
        task = self._pending.get(place)
        if task is None:
            task = asyncio.create_task(self._ask(connection, settings))
            self._pending[place] = task
            task.add_done_callback(lambda _: self._pending.pop(place, None))
        return await asyncio.shield(task)

    async def _ask(self, connection: Connection, settings: Settings) -> bool:
        house = self._house
        question = Question(
            connection.call_id,
            Kind.NETWORK,
            connection.argv,
            connection.cwd,
            _CHOICES,
            reason=f"{connection.host} is not in the allowed_domains",
            host=(connection.protocol, connection.host, connection.port),
        )
        house.listener(ApprovalRequested(question))
        ruling = await house.reviewers.put(question, settings.approval_timeout)
        answer = ruling.answer
        self._decided(connection, answer.choice, ruling.source)
        if answer.choice is Choice.APPROVE_FOR_SESSION:
            house.memory.remember([connection.key])
        if answer.choice is Choice.HOST_RULE:
            self._settle(connection, settings, allow=answer.allow)
            return answer.allow
        return answer.choice.approves

    def _settle(self, connection: Connection, settings: Settings, *, allow: bool) -> None:
        """For this session at once, for later ones by the rules file."""
        if allow:
            self._house.memory.remember([connection.key])
        else:
            self._house.memory.deny(connection.key)
        told = add_host_rule(
            connection.call_id,
            connection.host,
            connection.protocol,
            settings.rules_file,
            allow=allow,
        )
        for event in told:
            if event is not None:
                self._house.listener(event)

    def _decided(self, connection: Connection, choice: Choice, source: Source) -> None:
        self._house.listener(ToolDecision(connection.call_id, TOOL, choice, source))


def may_ask(settings: Settings) -> bool:
    """Whether a host may be asked about at all."""
    if not settings.sandbox.restricted:
        return False
    if settings.granular is not None:
        return settings.granular.sandbox_approval
    return settings.approval is not Approval.NEVER
