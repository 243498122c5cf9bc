"""Events of each step of a call, for listeners.

A listener is called at once and in order; it must not block.  ``guarded`` contains its failures.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from handrail.orchestrator.approvals import Choice, Question, Source

E = TypeVar("E")
log = logging.getLogger(__name__)


class Outcome(enum.Enum):
    """The result of a run that did not simply succeed, or of a call that never ran."""

    DENIED = "denied"
    ESCALATED = "escalated"
    TIMED_OUT = "timed_out"
    SIGNAL = "signal"
    DECLINED = "declined"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class ApprovalRequested:
    """A question goes to the reviewers."""

    question: Question

    @property
    def call_id(self) -> str:
        return self.question.call_id


@dataclass(frozen=True, slots=True)
class ToolDecision:
    """A call was allowed or stopped, and by what."""

    call_id: str
    tool: str
    choice: Choice
    source: Source
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence about background work."""

    call_id: str
    text: str


@dataclass(frozen=True, slots=True)
class RunEnded:
    """How the runs of a call ended; seconds of each of them."""

    call_id: str
    tool: str
    outcome: Outcome
    durations: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RuleAdded:
    """A rule is in force from now on; ``path`` is None if it was not saved."""

    call_id: str
    line: str
    path: str | None


Event = ApprovalRequested | ToolDecision | Notice | RunEnded | RuleAdded
Listener = Callable[[Event], None]


def no_listener(event: Event) -> None:
    """A listener that ignores every event."""


def guarded(listener: Callable[[E], None]) -> Callable[[E], None]:
    """Wrap a listener so that it never raises: a full log must not cost a running process."""

    def tell(event: E) -> None:
        try:
            listener(event)
        except Exception:
            log.exception("a listener failed at %s", type(event).__name__)

    return tell
