"""Questions about hosts: what one command may reach, and what was decided for the session.

`NetworkApprovals` belongs to a session, `NetworkCall` to one call with all its runs.  A yes or no
«once» holds for the call, whose tools open many connections and try again.  Answers for the session
are by environment, host and port.  A question holds up the call that it is about and no other; one
that another answer has decided meanwhile is withdrawn from its approver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakSet

from handrail.futures import set_done
from handrail.network import denial_notes
from handrail.network.managed.start import NetworkAnswer, NetworkQuestion, NetworkRequest
from handrail.network.settings import END, Managed
from handrail.orchestrator.approvals import (
    Answer,
    Choice,
    Kind,
    Question,
    Reviewers,
    Source,
    network_choices,
)
from handrail.orchestrator.audit import ApprovalRequested, Listener, Notice, RuleAdded, ToolDecision
from handrail.orchestrator.save_rule import network_rule_lines, write_rule
from handrail.policy.rules import Decision, NetworkRule

if TYPE_CHECKING:
    from handrail.executor.base import ExecSession
    from handrail.network.saved_rules import SavedRule

#: Hosts that one call may cause questions about; each costs a person's attention.
MOST_HOSTS = 20
TOO_MANY = "too_many"
#: Seconds for an answer where the approver has no limit.
_LONGEST = 24 * 3600.0
#: What an aborted command has to end in, in seconds.
_GRACE = 0.5
_SAVED = {
    Choice.HOST_RULE: "Allowed network rule saved in execpolicy (allowlist): {}",
    Choice.HOST_DENY_RULE: "Denied network rule saved in execpolicy (denylist): {}",
}

Target = tuple[str, int]


@dataclass(frozen=True, slots=True)
class CallFacts:
    """The call, as a question shows it."""

    call_id: str
    argv: tuple[str, ...]
    cwd: str
    environment_id: str = "local"
    justification: str | None = None


@dataclass(slots=True)
class _Memory:
    """What was decided for the session, in one environment."""

    approved: set[Target] = field(default_factory=set)
    denied: set[Target] = field(default_factory=set)

    def known(self, target: Target) -> bool | None:
        if target in self.denied:
            return False
        return True if target in self.approved else None


class NetworkApprovals:
    """The reviewers of a session and what they have said about hosts."""

    def __init__(
        self,
        reviewers: Reviewers | None,
        *,
        timeout: float | None,
        rules: Callable[[], Iterable[SavedRule]] = tuple,
        rules_file: str | None = None,
        listener: Listener,
        rule_added: Callable[[NetworkRule], None] | None = None,
    ) -> None:
        """``reviewers`` None: unlisted hosts are refused.  ``rules`` are those in force now."""
        self.reviewers = reviewers
        self.timeout = timeout
        self.rules = rules
        self.rules_file = rules_file
        self.listener = listener
        self.rule_added = rule_added
        self._memories: dict[str, _Memory] = {}
        #: Calls whose processes run, to be told what was decided since.
        self._running: WeakSet[NetworkCall] = WeakSet()
        self._telling: set[asyncio.Task[None]] = set()
        #: Open questions, to be withdrawn when another answer decides about them.
        self._open: dict[tuple[str, Target], set[asyncio.Future[None]]] = {}

    def call(self, facts: CallFacts, managed: Managed, *, may_ask: bool = True) -> NetworkCall:
        """The network of one call; ``may_ask``: the approval policy allows questions."""
        return NetworkCall(self, facts, managed, may_ask=may_ask and self.reviewers is not None)

    def memory(self, environment_id: str) -> _Memory:
        """The decisions of the session in one environment."""
        return self._memories.setdefault(environment_id, _Memory())

    def decide(self, environment_id: str, target: Target, *, allow: bool) -> None:
        """Remember it for the session; open questions about it are answered by that."""
        memory = self.memory(environment_id)
        (memory.approved if allow else memory.denied).add(target)
        (memory.denied if allow else memory.approved).discard(target)
        for waiting in self._open.pop((environment_id, target), ()):
            set_done(waiting)
        for call in list(self._running):
            if call.facts.environment_id == environment_id:
                self._tell_process(call)

    def started(self, call: NetworkCall) -> None:
        """The process of a call runs: it is told what is decided from now on."""
        self._running.add(call)

    def _tell_process(self, call: NetworkCall) -> None:
        task = asyncio.ensure_future(call.update())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def put(self, question: Question, environment_id: str, target: Target) -> Answer | None:
        """Ask the reviewers; None: another answer has decided meanwhile."""
        assert self.reviewers is not None  # noqa: S101 (else nothing is asked)
        decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open.setdefault((environment_id, target), set()).add(decided)
        asking = asyncio.ensure_future(self.reviewers.put(question, self.timeout))
        self.listener(ApprovalRequested(question))
        try:
            await asyncio.wait((asking, decided), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                return None
            ruling = asking.result()
        finally:
            asking.cancel()
            waiting = self._open.get((environment_id, target))
            if waiting is not None:
                waiting.discard(decided)
                if not waiting:
                    del self._open[environment_id, target]
        answer = _normal(ruling.answer, question)
        self._tell(question.call_id, answer.choice, ruling.source, answer.text)
        return answer

    def save(self, facts: CallFacts, question: Question, choice: Choice) -> None:
        """Write the rule that the question has shown, and have it in force."""
        assert question.host is not None  # noqa: S101 (a network question)
        protocol, host, port = question.host
        allow = choice is Choice.HOST_RULE
        line = (question.host_rules or ("", ""))[0 if allow else 1]
        failure = write_rule(self.rules_file, line)
        if failure is not None:
            self.listener(Notice(facts.call_id, failure))
        self.listener(RuleAdded(facts.call_id, line, None if failure else self.rules_file))
        if self.rule_added is not None:
            decision = Decision.ALLOW if allow else Decision.FORBIDDEN
            self.rule_added(NetworkRule(host, protocol, decision, port=port))

    def _tell(self, call_id: str, choice: Choice, source: Source, text: str) -> None:
        self.listener(ToolDecision(call_id, "network", choice, source, text or None))


class NetworkCall:
    """The hosts of one call: what was answered for it, and what its model is told."""

    def __init__(
        self, session: NetworkApprovals, facts: CallFacts, managed: Managed, *, may_ask: bool
    ) -> None:
        self._session = session
        self.facts = facts
        self.managed = managed
        self.config = managed.config()
        self._may_ask = may_ask
        self._approved: set[Target] = set()
        #: Refused by an answer: its text.
        self._refused: dict[Target, str] = {}
        self._asked: set[Target] = set()
        self._saved: list[str] = []
        #: The approver wants the turn to stop; its text.
        self.aborted: str | None = None
        self._process: ExecSession | None = None
        #: Called after each refusal; it must not block or raise.
        self.on_refused: Callable[[], None] | None = None
        self._end_wanted = False
        self._ending: asyncio.Task[None] | None = None
        #: How long the porter may use an answer without asking: its process is the call.
        self._lasts = "process"

    def _decided_so_far(self) -> NetworkRequest:
        """Rules and answers of the session, for a process that runs."""
        memory = self._session.memory(self.facts.environment_id)
        return NetworkRequest(
            self.config,
            rules=tuple(self._session.rules()),
            approved=tuple(sorted(memory.approved)),
            denied=tuple(sorted(memory.denied)),
        )

    def request(self) -> NetworkRequest:
        """The network of one run of the call."""
        memory = self._session.memory(self.facts.environment_id)
        timeout = self._session.timeout
        return NetworkRequest(
            self.config,
            self._ask if self._may_ask else None,
            # Beyond the time of the reviewers, whose end says more.
            (_LONGEST if timeout is None else timeout) + 1,
            tuple(self._session.rules()),
            tuple(sorted(memory.approved | self._approved)),
            tuple(sorted(memory.denied | set(self._refused))),
            decided=self._decided,
        )

    def next_call(self, facts: CallFacts) -> None:
        """The process goes on with another call, as a shell session does.

        Questions are about that one from now on, and what was said «once» is forgotten.
        """
        self.facts = facts
        self._lasts = "once"
        self._approved.clear()
        self._refused.clear()
        self._asked.clear()
        self._saved.clear()

    def started(self, process: ExecSession) -> None:
        """A run of the call has begun; it is ended when an answer or the settings want that."""
        self._process = process
        self._session.started(self)
        if self._end_wanted:
            self._end()

    async def update(self) -> None:
        """Have the process judged by what was decided since its start; raises nothing."""
        from handrail.errors import HandrailError

        if self._process is None or self._process.try_exit_status() is not None:
            return
        try:
            await self._process.update_network(self._decided_so_far())
        except HandrailError:
            pass  # it ends, or its connection comes back and it asks

    def _decided(self, decision: str, host: str, port: int) -> None:
        if decision == "allow":
            return
        if self.managed.on_network_denial == END:
            self._end()
        if self.on_refused is not None:
            self.on_refused()

    def _end(self) -> None:
        self._end_wanted = True
        if self._process is not None and self._ending is None:
            self._ending = asyncio.ensure_future(_ended(self._process))

    async def _ask(self, asked: NetworkQuestion) -> NetworkAnswer:
        """The answer to a question of the porter."""
        target = asked.host, asked.port
        environment = self.facts.environment_id
        known = self._known(target)
        if known is None:
            if target not in self._asked and len(self._asked) >= MOST_HOSTS:
                return NetworkAnswer(False, TOO_MANY, self._lasts)
            self._asked.add(target)
            question = self._question(asked)
            answer = await self._session.put(question, environment, target)
            if answer is not None:
                self._take(question, answer, target)
            known = self._known(target)
        if known:
            return NetworkAnswer(True, lasts=self._lasts)
        self._refused.setdefault(target, "")
        return NetworkAnswer(False, self._refused[target] or None, self._lasts)

    def _known(self, target: Target) -> bool | None:
        said = self._session.memory(self.facts.environment_id).known(target)
        if said is not None:
            return said
        if target in self._refused:
            return False
        return True if target in self._approved else None

    def _question(self, asked: NetworkQuestion) -> Question:
        facts = self.facts
        rules = None
        if self._session.rules_file is not None:
            rules = network_rule_lines(asked.host, asked.port, asked.protocol)
        return Question(
            facts.call_id,
            Kind.NETWORK,
            facts.argv,
            facts.cwd,
            network_choices(with_rules=rules is not None),
            reason=f"Network access to {asked.host} requires approval",
            host=(asked.protocol, asked.host, asked.port),
            method=asked.method,
            program=asked.comm,
            pid=asked.pid,
            host_rules=rules,
            justification=facts.justification,
        )

    def _take(self, question: Question, answer: Answer, target: Target) -> None:
        choice = answer.choice
        if not choice.approves:
            self._refused[target] = answer.text
        else:
            self._approved.add(target)
        lasting = (Choice.APPROVE_FOR_SESSION, Choice.DENY_FOR_SESSION, *_SAVED)
        if choice in _SAVED:
            self._session.save(self.facts, question, choice)
            self._saved.append(_SAVED[choice].format(target[0]))
        if choice in lasting:
            self._session.decide(self.facts.environment_id, target, allow=choice.approves)
        if choice is Choice.ABORT:
            self.aborted = answer.text
            self._end()

    def notes(self, denials: Iterable[Mapping[str, object]]) -> tuple[str, ...]:
        """The sentences for the model that follow the output of the command."""
        denied = self._session.memory(self.facts.environment_id).denied
        refused = {**dict.fromkeys(denied, ""), **self._refused}
        said = denial_notes.sentences(denials, self.config, refused)
        return (*said, *self._saved)


def _normal(answer: Answer, question: Question) -> Answer:
    """The answer as one of the choices that were offered."""
    choice = answer.choice
    if choice is Choice.HOST_RULE and not answer.allow:
        choice = Choice.HOST_DENY_RULE
    if choice.approves and choice not in question.choices:
        return Answer(Choice.DENY, f"`{choice.value}` was not on offer")
    if choice is Choice.HOST_DENY_RULE and choice not in question.choices:
        choice = Choice.DENY_FOR_SESSION
    return Answer(choice, answer.text)


async def _ended(process: ExecSession) -> None:
    from handrail.errors import HandrailError

    try:
        await process.terminate(_GRACE)
    except HandrailError:
        pass  # it has ended, or its executor ends it
