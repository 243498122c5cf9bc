"""The decision table of the first generation, as a separate mode.

Agents that were built against it expect three things today's table no longer says: reading commands
and commands approved for the session run at once and outside the sandbox, «untrusted» asks for
everything else, and a missing sandbox turns into a question or a refusal.

Pure; the caller keeps the approvals and knows whether this machine has a sandbox.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from handrail.policy.context import Approval
from handrail.policy.dangerous import danger
from handrail.policy.known_safe import is_known_safe
from handrail.policy.rules import Sandbox


class SeedAction(enum.Enum):
    RUN = "run"
    ASK = "ask"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class SeedVerdict:
    """What to do, in which sandbox, and whether the user may be asked after a sandbox refusal."""

    action: SeedAction
    sandbox: Sandbox
    escalate_on_failure: bool = False
    reason: str | None = None


def decide_seed_era(
    argv: Sequence[str],
    approval: Approval,
    *,
    restricted: bool,
    sandbox_available: bool,
    approved: bool = False,
    escalates: bool = False,
) -> SeedVerdict:
    """The verdict of the first generation; ``approved``: this command was, for the session."""
    outside = SeedVerdict(SeedAction.RUN, Sandbox.OFF)
    ask = SeedVerdict(SeedAction.ASK, Sandbox.OFF)
    if approved or is_known_safe(argv):
        return outside
    if danger(argv) or approval is Approval.UNTRUSTED:
        return ask
    if not restricted:
        return outside
    if approval is Approval.ON_REQUEST and escalates:
        return ask
    if sandbox_available:
        return SeedVerdict(
            SeedAction.RUN,
            Sandbox.KEEP,
            escalate_on_failure=approval is Approval.ON_FAILURE,
        )
    if approval is Approval.NEVER:
        reason = "there is no sandbox here, and the command is on no list of trusted ones"
        return SeedVerdict(SeedAction.REJECT, Sandbox.OFF, reason=reason)
    return ask
