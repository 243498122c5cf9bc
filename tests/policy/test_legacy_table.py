from __future__ import annotations

import pytest

from handrail.policy.context import Approval
from handrail.policy.legacy_table import SeedAction, decide_seed_era
from handrail.policy.rules import Sandbox

RUN, ASK, REJECT = SeedAction.RUN, SeedAction.ASK, SeedAction.REJECT


@pytest.mark.parametrize("approval", Approval)
@pytest.mark.parametrize("restricted", [True, False])
def test_known_safe_and_approved_commands_run_outside(approval: Approval, restricted: bool) -> None:
    for argv, approved in (["ls"], False), (["make"], True), (["rm", "-rf", "x"], True):
        verdict = decide_seed_era(
            argv, approval, restricted=restricted, sandbox_available=False, approved=approved
        )
        assert (verdict.action, verdict.sandbox) == (RUN, Sandbox.OFF)
        assert not verdict.escalate_on_failure


@pytest.mark.parametrize("approval", Approval)
def test_dangerous_commands_ask(approval: Approval) -> None:
    verdict = decide_seed_era(
        ["rm", "-rf", "x"], approval, restricted=False, sandbox_available=True
    )
    assert verdict.action is ASK


@pytest.mark.parametrize(
    ("approval", "restricted", "available", "escalates", "action", "sandbox"),
    [
        (Approval.UNTRUSTED, True, True, False, ASK, None),
        (Approval.UNTRUSTED, False, True, False, ASK, None),
        (Approval.ON_REQUEST, True, True, False, RUN, Sandbox.KEEP),
        (Approval.ON_REQUEST, True, True, True, ASK, None),
        (Approval.ON_REQUEST, True, False, False, ASK, None),
        (Approval.ON_REQUEST, False, False, True, RUN, Sandbox.OFF),
        (Approval.ON_FAILURE, True, True, False, RUN, Sandbox.KEEP),
        (Approval.ON_FAILURE, True, False, False, ASK, None),
        (Approval.ON_FAILURE, False, False, False, RUN, Sandbox.OFF),
        (Approval.NEVER, True, True, False, RUN, Sandbox.KEEP),
        (Approval.NEVER, True, False, False, REJECT, None),
        (Approval.NEVER, False, False, False, RUN, Sandbox.OFF),
    ],
)
def test_the_table(
    approval: Approval,
    restricted: bool,
    available: bool,
    escalates: bool,
    action: SeedAction,
    sandbox: Sandbox | None,
) -> None:
    verdict = decide_seed_era(
        ["make"],
        approval,
        restricted=restricted,
        sandbox_available=available,
        escalates=escalates,
    )
    assert verdict.action is action
    assert sandbox is None or verdict.sandbox is sandbox
    assert verdict.escalate_on_failure == (
        approval is Approval.ON_FAILURE and verdict.sandbox is Sandbox.KEEP
    )
