"""The decision table of the first generation, as a separate mode.

Agents that were built against it expect three things today's table no longer says: reading commands
and commands approved for the session run at once and outside the sandbox, «untrusted» asks for
everything else, and a missing sandbox turns into a question or a refusal.

Pure; the caller keeps the approvals and knows whether this machine has a sandbox.
"""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from handrail.policy.context import Approval
from handrail.policy.dangerous import danger
from handrail.policy.known_safe import is_known_safe
from handrail.policy.rules import Argv, Sandbox
from handrail.policy.strict_reader import split

#: First arguments of ``rm`` that counted as forced then.
_FORCED = frozenset({"-f", "-rf", "-Rf", "-fr", "-fR", "--force"})
_GIT_VERBS = frozenset({"reset", "rm"})


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
    git_is_safe: bool = True,
    first_list: bool = False,
) -> SeedVerdict:
    """The verdict of the first generation.

    ``approved``: this command was approved for the session.  ``first_list`` takes the list of
    dangerous commands of that time instead of today's.
    """
    outside = SeedVerdict(SeedAction.RUN, Sandbox.OFF)
    ask = SeedVerdict(SeedAction.ASK, Sandbox.OFF)
    if approved or is_known_safe(argv, git=git_is_safe):
        return outside
    if first_danger(argv) if first_list else danger(argv):
        return ask
    if approval is Approval.UNTRUSTED:
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


def first_danger(argv: Sequence[str]) -> bool:
    """The list of that time: forced ``rm`` and what discards work in git, in plain scripts."""
    return any(_first_danger(command) for command in split(argv) or (tuple(argv),))


def _first_danger(argv: Argv) -> bool:
    if not argv:
        return False
    name = posixpath.basename(argv[0])
    if name == "sudo":
        return _first_danger(argv[1:])
    if name == "rm":
        return argv[1:2] != () and argv[1] in _FORCED
    return name == "git" and ((argv[1:2] != () and argv[1] in _GIT_VERBS) or "--force" in argv)
