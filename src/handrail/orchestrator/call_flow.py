"""The steps of one call: policy, approval, sandbox, run, and one retry after a denial.

``admit`` comes before the first run and ``after`` follows each one, for callers that start
processes themselves, such as unified exec (its ``gate.py``); ``run.py`` takes all steps with a
runner.  A denial is judged by how the run ended, whenever that is.  The decisions are in
``requirement.py`` and ``narrow_offer.py``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from handrail.errors import ApprovalRejected, Forbidden
from handrail.executor.base import Denied
from handrail.orchestrator.approval_cache import Extent, FileKey, Key
from handrail.orchestrator.approvals import (
    Answer,
    Choice,
    Kind,
    Question,
    Source,
    command_choices,
    retry_choices,
)
from handrail.orchestrator.audit import (
    ApprovalRequested,
    Event,
    Notice,
    Outcome,
    RunEnded,
    ToolDecision,
)
from handrail.orchestrator.call import Call, Request
from handrail.orchestrator.narrow_offer import (
    Offer,
    offer,
    refused_network,
    refused_path,
    without_hosts,
)
from handrail.orchestrator.network_call import CallFacts, NetworkCall
from handrail.orchestrator.requirement import Need, Requirement, written_programs
from handrail.orchestrator.settings import Grants, Mode, Settings, sandbox_intent
from handrail.policy.context import Approval
from handrail.sandbox.denial import Denial
from handrail.sandbox.profile import Intent

if TYPE_CHECKING:
    from handrail.orchestrator.run import Orchestrator
    from handrail.policy.trusted_program import WrittenProgram

RETRY_REASON = "command failed; retry without sandbox?"
RETRY_NOTICE = "retrying command without sandbox"
GRANT_NOTICE = "retrying command in the sandbox with {}"
SIDE_EFFECTS = "the first run may have changed something: that stays, and all of it runs again"


class TurnAborted(ApprovalRejected):
    """The approver wants the whole turn to stop."""


class RetryRejected(ApprovalRejected):
    """The sandbox refused the run, and the approver refused a retry."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The sandbox, network and environment of one run.  The executor gets ``sandbox`` unchanged."""

    number: int
    sandbox: Intent | None = None
    network: bool = True
    notes: tuple[str, ...] = ()
    #: Variables for this run instead of those that were given.
    env: Mapping[str, str] = field(default_factory=dict)
    #: What the sandbox refuses decides about another run, so it is recorded for certain.
    watch: bool = False

    @property
    def sandboxed(self) -> bool:
        return self.sandbox is not None


class CallFlow:
    """One call: ``admit`` before the first run, ``after`` following each run."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        call: Call,
        requirement: Requirement,
        settings: Settings,
        keys: Sequence[Key],
        *,
        kind: Kind = Kind.COMMAND,
        paths: tuple[str, ...] = (),
    ) -> None:
        self.call = call
        self.settings = settings
        self._orchestrator = orchestrator
        self._requirement = requirement
        self._keys = tuple(keys)
        self._kind = kind
        self._paths = paths
        #: What was answered about hosts, since the first run with a managed network.
        self.hosts: NetworkCall | None = None
        self._attempt: Attempt | None = None
        self._started: list[float] = []
        self._durations: list[float] = []

    async def admit(self) -> Attempt:
        """Approve the call and return its first run; raises Forbidden or ApprovalRejected."""
        need = self._requirement.need
        if need is Need.FORBIDDEN:
            reason = self._requirement.reason or "blocked by policy"
            self._decided(Choice.DENY, Source.CONFIG, reason)
            self._tell(RunEnded(self.call.call_id, self.call.tool, Outcome.DECLINED))
            raise Forbidden(reason)
        if need is Need.NOTHING:
            self._decided(Choice.APPROVE, Source.CONFIG)
        else:
            await self._approval()
        attempt = self._go(free=self._requirement.free, grants=self._wants)
        path = None if attempt.sandboxed else self._requirement.path
        return attempt if path is None else replace(attempt, env={"PATH": path})

    async def after(self, denied: Denied, output: bytes = b"") -> Attempt | None:
        """Note the end of a run; returns the retry, or None if this was the last run.

        Raises RetryRejected or TurnAborted if another run was offered and not wanted.
        """
        self._ended()
        self.check_abort()
        attempt = self._attempt
        free = self.settings.sandbox.may_run_free
        if self.settings.sandbox.managed is not None and refused_network(denied):
            # The answer to a refused host is a list or a question, never a run without the list.
            denied, free = without_hosts(denied), False
        if attempt is None or not attempt.sandboxed or not denied.likely:
            outcome = Outcome.COMPLETED if len(self._durations) < 2 else Outcome.ESCALATED
            self._finished(outcome)
            return None
        chance = None if attempt.number > 1 else await self._chance(denied, output, free=free)
        if chance is None:
            self._finished(Outcome.DENIED)
            return None
        self._notice(f"Execution failed: {_last_line(output) or 'the sandbox refused something'}")
        # An approval of the sandboxed run does not cover one outside the sandbox.
        return await self._retry(free=free, narrow=chance.narrow)

    def network(self, attempt: Attempt) -> NetworkCall | None:
        """The hosts that a run may reach; None: its network is off or open."""
        managed = self.settings.sandbox.managed
        if managed is None or not attempt.sandboxed:
            return None
        if self.hosts is None:
            settings = self.settings
            granular = settings.granular is None or settings.granular.sandbox_approval
            may_ask = settings.approval is not Approval.NEVER and granular
            self.hosts = self._orchestrator.hosts.call(self.facts, managed, may_ask=may_ask)
        return self.hosts

    @property
    def facts(self) -> CallFacts:
        """The call as a question about a host shows it."""
        call = self.call
        return CallFacts(call.call_id, call.argv, call.cwd, call.environment_id, call.justification)

    def check_abort(self) -> None:
        """Raises TurnAborted if the approver wanted that while the command ran."""
        if self.hosts is not None and self.hosts.aborted is not None:
            self._finished(Outcome.DECLINED)
            raise self._rejection(Answer(Choice.ABORT, self.hosts.aborted))

    def host_notes(self, denied: Denied) -> tuple[str, ...]:
        """The sentences about refused hosts that follow the output."""
        return () if self.hosts is None else self.hosts.notes(denied.evidence)

    @property
    def _wants(self) -> Grants:
        """The grants of the first run beyond the mode, if it is sandboxed."""
        return self.call.wants if self.call.request is Request.WITH_ADDITIONAL else Grants()

    @property
    def sandboxed_intent(self) -> Intent | None:
        """The sandbox that the settings ask for, whatever was approved beyond it."""
        return sandbox_intent(self.settings)

    def _outside(self, *, free: bool) -> bool:
        """Whether a run leaves the sandbox; an external one cannot be left."""
        if self.settings.sandbox.mode is Mode.EXTERNAL:
            return False
        return free or sandbox_intent(self.settings, self._wants) is None

    async def _approval(self) -> None:
        requirement = self._requirement
        outside = self._outside(free=requirement.free)
        wants = Grants(write=requirement.outside_paths)
        question = Question(
            self.call.call_id,
            self._kind,
            self.call.argv,
            self.call.cwd,
            command_choices(with_rule=requirement.proposed_prefix is not None),
            reason=requirement.reason,
            proposed_prefix=requirement.proposed_prefix,
            notes=self._program_notes(outside=outside),
            paths=self._paths,
            outside=outside,
            wants=wants if outside else self._wants,
            justification=self.call.justification,
        )
        answer = await self._ask(question)
        if not answer.choice.approves:
            self._finished(Outcome.DECLINED)
            raise self._rejection(answer)
        if answer.choice is Choice.APPROVE_WITH_RULE:
            self._amend(answer, question)

    @property
    def _written(self) -> tuple[WrittenProgram, ...]:
        """The programs of this command that sandboxed commands can write."""
        if self._kind is not Kind.COMMAND:
            return ()
        return written_programs(self.call, self.settings, local=self._orchestrator.local)

    def _program_notes(self, *, outside: bool) -> tuple[str, ...]:
        """Notes on the programs of a run outside the sandbox, if their names do not show them."""
        found = self._written if outside else ()
        return tuple(
            f"`{one.name}` is {one.path}, which sandboxed commands can write" for one in found
        )

    async def _retry(self, *, free: bool, narrow: Offer | None) -> Attempt | None:
        prefix = self._requirement.retry_prefix if self._kind is Kind.COMMAND else None
        narrow_wants = narrow.grants.with_(self.call.wants) if narrow else Grants()
        question = Question(
            self.call.call_id,
            Kind.RETRY,
            self.call.argv,
            self.call.cwd,
            retry_choices(free=free, with_grant=narrow is not None, with_rule=prefix is not None),
            reason=RETRY_REASON,
            proposed_prefix=prefix if free else None,
            notes=(
                *(SIDE_EFFECTS, *self._requirement.notes),
                *self._program_notes(outside=free),
            ),
            grant=narrow.shown if narrow else None,
            paths=self._paths,
            outside=free,
            wants=Grants() if free else narrow_wants,
            justification=self.call.justification,
        )
        answer = await self._ask(question)
        if not answer.choice.approves:
            self._finished(Outcome.DENIED)
            if answer.choice is Choice.ABORT:
                raise self._rejection(answer)
            raise RetryRejected(str(self._rejection(answer)))
        if answer.choice is Choice.GRANT_AND_RERUN and narrow is not None:
            self._notice(GRANT_NOTICE.format(narrow.shown))
            return self._go(free=False, grants=narrow_wants)
        if answer.choice is Choice.APPROVE_WITH_RULE:
            self._amend(answer, question)
        self._notice(RETRY_NOTICE)
        return self._go(free=True, grants=Grants())

    async def _chance(self, denied: Denied, output: bytes, *, free: bool) -> _Chance | None:
        """Whether a retry may be offered, and what it would allow."""
        if not self._requirement.retry:
            return None
        path = refused_path(denied, output, self.call.cwd)
        there = None if path is None else await self._orchestrator.nearest(path)
        narrow = offer(denied, there, self.settings)
        if narrow is None and not free:
            return None
        return _Chance(narrow)

    async def _ask(self, question: Question) -> Answer:
        """Ask, unless the session has the answer; one question at a time for the same call."""
        orchestrator = self._orchestrator
        asked = [(key, self._extent(key, question)) for key in self._keys]
        async with orchestrator.turn_of(self._keys):
            cache = orchestrator.approval_cache
            known = bool(asked) and all(cache.knows([key], far) for key, far in asked)
            if known and Choice.APPROVE_FOR_SESSION in question.choices:
                self._decided(Choice.APPROVE_FOR_SESSION, Source.CONFIG)
                return Answer(Choice.APPROVE_FOR_SESSION)
            self._tell(ApprovalRequested(question))
            ruling = await orchestrator.reviewers.put(question, self.settings.approval_timeout)
            answer = ruling.answer
            if answer.choice.approves and answer.choice not in question.choices:
                answer = Answer(Choice.DENY, f"`{answer.choice.value}` was not on offer")
            self._decided(answer.choice, ruling.source, answer.text or None)
            if answer.choice is Choice.APPROVE_FOR_SESSION:
                for key, far in asked:
                    cache.remember([key], far)
            return answer

    def _extent(self, key: Key, question: Question) -> Extent:
        """What an approval of this key covers; of a patch only some paths leave the sandbox."""
        inside = isinstance(key, FileKey) and key.path not in self._requirement.outside_paths
        if inside and question.kind is Kind.PATCH:
            return Extent()
        programs = self._written if question.outside else ()
        return Extent(question.outside, question.wants, frozenset(programs))

    def _go(self, *, free: bool, grants: Grants) -> Attempt:
        number = 1 if self._attempt is None else self._attempt.number + 1
        intent = None if free else sandbox_intent(self.settings, grants)
        mode = self.settings.sandbox
        online = intent is None or not mode.restricted or mode.network_access
        online = online or grants.network or self.settings.grants.network
        online = online or mode.managed is not None
        watch = intent is not None and number == 1 and self._requirement.retry
        watch = watch and self.settings.watch_denials
        self._attempt = Attempt(number, intent, online, watch=watch)
        self._started.append(self._orchestrator.clock())
        return self._attempt

    def _amend(self, answer: Answer, question: Question) -> None:
        prefix = answer.prefix or question.proposed_prefix
        if prefix is not None:
            # Where no sandbox is set, nothing was said about leaving one elsewhere.
            free = question.outside and self.settings.sandbox.restricted
            self._orchestrator.amend(self.call.call_id, prefix, free=free)

    def _rejection(self, answer: Answer) -> ApprovalRejected:
        what = "patch" if self._kind is Kind.PATCH else "exec command"
        text = f"{what} rejected by user"
        if answer.choice is Choice.TIMED_OUT:
            text = f"{what} not approved"
        text += f": {answer.text}" if answer.text else ""
        if answer.choice is Choice.ABORT:
            return TurnAborted(text)
        return ApprovalRejected(text)

    def _ended(self) -> None:
        if len(self._durations) < len(self._started):
            self._durations.append(self._orchestrator.clock() - self._started[-1])

    def explain(self, denied: Denied, code: int | None, output: bytes) -> str | None:
        """What the sandbox has refused to the last run, in a sentence for a model."""
        intent = None if self._attempt is None else self._attempt.sandbox
        if intent is None or not code:
            return None
        from handrail.sandbox import explain_refusal  # only for a command that failed

        never = self.settings.approval is Approval.NEVER
        return explain_refusal.explain(
            explain_refusal.Rules.of(
                intent,
                os.fsencode(self.call.cwd),
                managed=self.settings.sandbox.managed is not None,
            ),
            code,
            output,
            map(_record, denied.evidence),
            explain_refusal.MODEL_ALONE if never else explain_refusal.MODEL,
            could=explain_refusal.user_could if self._orchestrator.local else None,
        )

    def finished(self, outcome: Outcome) -> None:
        """Note that the last run ended for a reason other than the sandbox (time, signal)."""
        self._ended()
        self._finished(outcome)

    def _finished(self, outcome: Outcome) -> None:
        durations = tuple(self._durations)
        self._tell(RunEnded(self.call.call_id, self.call.tool, outcome, durations))

    def _decided(self, choice: Choice, source: Source, reason: str | None = None) -> None:
        self._tell(ToolDecision(self.call.call_id, self.call.tool, choice, source, reason))

    def _notice(self, text: str) -> None:
        self._tell(Notice(self.call.call_id, text))

    def _tell(self, event: Event) -> None:
        self._orchestrator.listener(event)


@dataclass(frozen=True, slots=True)
class _Chance:
    narrow: Offer | None


def _record(evidence: Mapping[str, object]) -> Denial:
    path, op = evidence.get("path"), evidence.get("op")
    return Denial(
        str(evidence.get("kind")),
        op if isinstance(op, str) else None,
        path if isinstance(path, str) else None,
        str(evidence.get("source")),
        certain=evidence.get("certain") is True,
    )


def _last_line(output: bytes) -> str:
    lines = output[-4096:].decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:500] if lines else ""
