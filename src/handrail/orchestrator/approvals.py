"""Questions, their answers, and the order of reviewers.

A question goes through the hooks (each allows, denies or has no opinion), then to the approver.
Every question goes through ``put``: it enforces the time limit, and any failure on the way is a
denial, because no reviewer said yes.  Approvals are remembered in ``approval_cache.py``.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from handrail.name_hints import AttributesChecked, NamesChecked
from handrail.orchestrator.settings import Grants
from handrail.policy.rules import Argv


class Kind(enum.StrEnum):
    """What a question is about."""

    COMMAND = "command"
    RETRY = "retry"
    PATCH = "patch"
    NETWORK = "network"


class Choice(enum.StrEnum):
    """What can be answered."""

    APPROVE = "approved"
    APPROVE_FOR_SESSION = "approved_for_session"
    #: This call, and a rule for all that start like it.
    APPROVE_WITH_RULE = "approved_execpolicy_amendment"
    #: After a denial: once more sandboxed, with just this path (or the network) opened.
    GRANT_AND_RERUN = "approved_with_grant"
    #: A host, with a saved rule (network questions); with ``allow=False`` of the answer it is
    #: HOST_DENY_RULE.
    HOST_RULE = "network_policy_amendment"
    DENY = "denied"
    #: No, and not again in this session (network questions).
    DENY_FOR_SESSION = "denied_for_session"
    #: Never, by a saved rule (network questions).
    HOST_DENY_RULE = "network_policy_amendment_deny"
    ABORT = "abort"
    TIMED_OUT = "timed_out"

    @property
    def approves(self) -> bool:
        """Whether this choice lets the command run."""
        return self not in _NO


_NO = frozenset(
    (
        Choice.DENY,
        Choice.DENY_FOR_SESSION,
        Choice.HOST_DENY_RULE,
        Choice.ABORT,
        Choice.TIMED_OUT,
    )
)


class Source(enum.Enum):
    """What decided: the configuration, the user or a hook."""

    CONFIG = "config"
    USER = "user"
    AUTOMATED = "automated_reviewer"


@dataclass(frozen=True, slots=True)
class Question(AttributesChecked):
    """Everything needed to decide, and what a yes does.

    ``outside``: the run that a yes allows is not sandboxed.  ``wants`` is what it gets
    beyond the mode.  ``reason`` says in our own words why it is asked;
    ``justification`` is the model's text.  ``notes`` are further facts,
    such as side effects that remain.  ``grant`` is the path that GRANT_AND_RERUN opens,
    ``proposed_prefix`` the rule of APPROVE_WITH_RULE, which leaves the sandbox if ``outside``.
    ``question_text.py`` has the lines to show.
    """

    call_id: str
    kind: Kind
    argv: tuple[str, ...]
    cwd: str
    choices: tuple[Choice, ...]
    reason: str | None = None
    proposed_prefix: Argv | None = None
    notes: tuple[str, ...] = ()
    grant: str | None = None
    #: Files a patch changes.
    paths: tuple[str, ...] = ()
    #: protocol, host and port of a network question.
    host: tuple[str, str, int] | None = None
    #: Of a network question: the method of a plain request, and the process that connects.
    method: str | None = None
    program: str | None = None
    pid: int | None = None
    #: The statements that HOST_RULE and HOST_DENY_RULE write into the rules file.
    host_rules: tuple[str, str] | None = None
    outside: bool = False
    wants: Grants = field(default_factory=Grants)
    justification: str | None = None


@dataclass(frozen=True, slots=True)
class Answer(NamesChecked):
    """A choice; ``text`` of a denial is shown to the model.  ``allow`` is for HOST_RULE."""

    choice: Choice
    text: str = ""
    prefix: Argv | None = None
    allow: bool = True


class Approver(Protocol):
    """A person or a program that answers questions."""

    async def ask(self, question: Question) -> Answer:
        """Return the answer; what it raises is a no.  If it is cancelled, the question is void."""


Hook = Callable[[Question], Awaitable[Answer | None]]


@dataclass(frozen=True, slots=True)
class Ruling:
    """An answer and its source."""

    answer: Answer
    source: Source


@dataclass(frozen=True, slots=True)
class Reviewers:
    """All reviewers in order; without an approver every question is denied."""

    approver: Approver | None = None
    hooks: Sequence[Hook] = field(default=())

    async def put(self, question: Question, timeout: float | None) -> Ruling:
        """Ask the reviewers; raises nothing but a cancellation."""
        try:
            async with asyncio.timeout(timeout):
                for hook in self.hooks:
                    opinion = await hook(question)
                    if opinion is not None:
                        return Ruling(_checked(opinion), Source.AUTOMATED)
                if self.approver is None:
                    return Ruling(Answer(Choice.DENY, "there is no approver to ask"), Source.CONFIG)
                return Ruling(_checked(await self.approver.ask(question)), Source.USER)
        except TimeoutError:
            return Ruling(Answer(Choice.TIMED_OUT, "no answer came in time"), Source.USER)
        except Exception as error:  # noqa: BLE001 (an approver is foreign code: no yes, no run)
            text = f"the question could not be asked: {error}"
            return Ruling(Answer(Choice.DENY, text), Source.CONFIG)


def _checked(answer: object) -> Answer:
    """The answer if it is valid: a mere True is none of the choices.  Raises TypeError."""
    if not isinstance(answer, Answer) or not isinstance(answer.choice, Choice):
        raise TypeError(f"the answer has to be an Answer with a Choice, not {answer!r}")
    if not isinstance(answer.text, str):
        raise TypeError(f"the text of an answer has to be a string, not {answer.text!r}")
    prefix: object = answer.prefix
    if prefix is not None and not (
        isinstance(prefix, tuple) and all(isinstance(word, str) for word in prefix)
    ):
        raise TypeError(f"the prefix of an answer has to be a tuple of strings, not {prefix!r}")
    return answer


def command_choices(*, with_rule: bool) -> tuple[Choice, ...]:
    """The choices offered before a run."""
    rule = (Choice.APPROVE_WITH_RULE,) if with_rule else ()
    return (Choice.APPROVE, Choice.APPROVE_FOR_SESSION, *rule, Choice.DENY, Choice.ABORT)


def network_choices(*, with_rules: bool) -> tuple[Choice, ...]:
    """The choices offered for a host, the narrowest first."""
    allow, deny = (Choice.HOST_RULE,), (Choice.HOST_DENY_RULE,)
    return (
        Choice.APPROVE,
        Choice.APPROVE_FOR_SESSION,
        *(allow if with_rules else ()),
        Choice.DENY,
        Choice.DENY_FOR_SESSION,
        *(deny if with_rules else ()),
        Choice.ABORT,
    )


def retry_choices(*, free: bool, with_grant: bool, with_rule: bool) -> tuple[Choice, ...]:
    """The choices offered after a denial, the narrowest first."""
    offered: list[Choice] = [Choice.GRANT_AND_RERUN] if with_grant else []
    if free:
        offered += [Choice.APPROVE, Choice.APPROVE_FOR_SESSION]
        offered += [Choice.APPROVE_WITH_RULE] if with_rule else []
    return (*offered, Choice.DENY, Choice.ABORT)
