"""What a call needs before it may run: nothing, an approval, or it is forbidden.  Pure.

Two tables lead to the same three answers: today's (``policy.decide``) and the first generation's
(``policy.legacy_table``).  Patches have their own, by the paths they write.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from handrail.orchestrator.call import Call, Request
from handrail.orchestrator.settings import (
    Mode,
    Settings,
    Table,
    is_writable,
    rules_paths,
    writable_roots,
)
from handrail.policy.context import Approval, Lookup, Situation
from handrail.policy.decide import Action, Cause, Verdict, decide
from handrail.policy.legacy_table import SeedAction, decide_seed_era
from handrail.policy.rules import Argv, Sandbox

if TYPE_CHECKING:
    from handrail.policy.trusted_program import WrittenProgram

OUTSIDE = "writing outside of the project; rejected by user approval settings"
UNTRUSTED_PATCH = "the approval policy is untrusted, which asks about every patch"
OUTSIDE_PATCH = "it changes files that sandboxed commands may not write"
MORE = "it wants more than the sandbox gives"
READ_ONLY = "writing is blocked by read-only sandbox; rejected by user approval settings"


class Need(enum.Enum):
    NOTHING = "nothing"
    APPROVAL = "approval"
    FORBIDDEN = "forbidden"


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a call needs.

    ``free``: the first run is without a sandbox (after the approval, if one is needed).
    ``retry``: after a denial the approver may be asked for another run.  ``retry_prefix`` is the
    rule to offer then.
    """

    need: Need
    free: bool = False
    retry: bool = False
    reason: str | None = None
    proposed_prefix: Argv | None = None
    retry_prefix: Argv | None = None
    #: Further notes of a question after a denial.
    notes: tuple[str, ...] = ()
    #: PATH of a first run that leaves by a rule, if it is to be another one.
    path: str | None = None
    #: Of a patch: the paths that the sandbox would refuse.
    outside_paths: tuple[str, ...] = ()


def command_requirement(
    call: Call, settings: Settings, *, approved: bool = False, local: bool = True
) -> Requirement:
    """Decide what a command needs before it may run.

    ``approved``: for the session, unsandboxed (the first generation's table asks).  ``local``: it
    runs on this machine.
    """
    if settings.table is Table.SEED:
        return _seed(call, settings, approved=approved)
    situation = _situation(call, settings, local=local)
    verdict = decide(call.argv, settings.policy, situation, call.prefix_rule)
    if verdict.action is Action.FORBID:
        return Requirement(Need.FORBIDDEN, reason=verdict.reason)
    asks = verdict.action is Action.ASK
    free = verdict.sandbox is Sandbox.OFF or call.request is Request.REQUIRE_ESCALATED
    return Requirement(
        Need.APPROVAL if asks else Need.NOTHING,
        free=free and settings.sandbox.may_run_free,
        # Where a rule was not trusted, the user is asked instead.
        retry=wants_retry(settings) or (bool(verdict.withheld) and situation.may_ask_to_escalate),
        notes=(verdict.withheld,) if verdict.withheld else (),
        reason=verdict.reason or (_ground(call, verdict) if asks else None),
        proposed_prefix=verdict.proposed_prefix,
        retry_prefix=verdict.retry_prefix,
        path=_path_outside(situation) if verdict.sandbox is Sandbox.OFF else None,
    )


def _ground(call: Call, verdict: Verdict) -> str:
    if verdict.cause is Cause.ESCALATION and call.request is Request.WITH_ADDITIONAL:
        return MORE  # it stays in the sandbox
    return verdict.ground


def _situation(call: Call, settings: Settings, *, local: bool) -> Situation:
    escalates = call.request is not Request.USE_DEFAULT
    if call.request is Request.WITH_ADDITIONAL and settings.grants.covers(call.wants):
        escalates = False
    env = call.env
    if env is None:
        env = os.environ if local else {}
    return settings.situation(call.cwd, escalates=escalates, lookup=Lookup(env, local))


def written_programs(call: Call, settings: Settings, *, local: bool) -> tuple[WrittenProgram, ...]:
    """The programs of a run outside that sandboxed commands can have made."""
    # Few commands come here, and it looks at directories.
    from handrail.policy import trusted_program

    return trusted_program.written_programs(call.argv, _situation(call, settings, local=local))


def _path_outside(situation: Situation) -> str | None:
    # Few commands come here, and it looks at directories.
    from handrail.policy.trusted_program import clean_path

    return clean_path(situation) if situation.restricted else None


def wants_retry(settings: Settings, *, patch: bool = False) -> bool:
    """Whether the approval policy asks about a retry after a denial."""
    if settings.granular is not None:
        return settings.granular.sandbox_approval
    if settings.approval is Approval.ON_REQUEST:
        return patch
    return settings.approval in (Approval.UNTRUSTED, Approval.ON_FAILURE)


def _seed(call: Call, settings: Settings, *, approved: bool) -> Requirement:
    verdict = decide_seed_era(
        call.argv,
        settings.approval,
        restricted=settings.sandbox.restricted,
        sandbox_available=settings.sandbox_available,
        approved=approved,
        escalates=call.request is not Request.USE_DEFAULT,
    )
    if verdict.action is SeedAction.REJECT:
        return Requirement(Need.FORBIDDEN, reason=verdict.reason)
    asks = verdict.action is SeedAction.ASK
    if asks and settings.approval is Approval.NEVER:
        reason = "it needs an approval, and the approval policy is never: use a safer way"
        return Requirement(Need.FORBIDDEN, reason=reason)
    return Requirement(
        Need.APPROVAL if asks else Need.NOTHING,
        free=verdict.sandbox is Sandbox.OFF and settings.sandbox.may_run_free,
        retry=verdict.escalate_on_failure,
    )


def patch_requirement(
    paths: Iterable[str], settings: Settings, tmpdir: str | None = None
) -> Requirement:
    """Decide what a patch needs that writes these plain absolute paths."""
    if settings.sandbox.mode in (Mode.OFF, Mode.EXTERNAL):
        return Requirement(Need.NOTHING, free=settings.sandbox.may_run_free)
    granular = settings.granular
    untrusted = settings.approval is Approval.UNTRUSTED and granular is None
    roots = writable_roots(settings, tmpdir)
    retry = wants_retry(settings, patch=True)
    rules = rules_paths(settings)
    outside = tuple(
        path for path in paths if not is_writable(path, roots, settings.grants.write, rules)
    )
    if not outside and not untrusted:
        return Requirement(Need.NOTHING, retry=retry)
    if granular is not None and not granular.sandbox_approval:
        asks = False
    else:
        asks = granular is not None or settings.approval is not Approval.NEVER
    if not asks:
        return Requirement(Need.FORBIDDEN, reason=OUTSIDE if roots else READ_ONLY)
    return Requirement(
        Need.APPROVAL,
        # A yes to paths outside is a yes to the writing: a sandbox would only refuse it.
        free=bool(outside) and settings.sandbox.may_run_free,
        retry=retry,
        reason=OUTSIDE_PATCH if outside else UNTRUSTED_PATCH,
        outside_paths=outside,
    )
