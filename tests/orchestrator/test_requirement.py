"""What a call needs, by table."""

from __future__ import annotations

import pytest

from handrail.orchestrator.call import Request
from handrail.orchestrator.requirement import (
    OUTSIDE,
    READ_ONLY,
    Need,
    command_requirement,
    patch_requirement,
)
from handrail.orchestrator.settings import Grants, Mode, SandboxMode, Settings, Table
from handrail.policy.context import Approval, Granular
from handrail.policy.load import parse_rules
from handrail.policy.rules import Sandbox
from tests.orchestrator.scripted import sh

U, F, R, N = Approval.UNTRUSTED, Approval.ON_FAILURE, Approval.ON_REQUEST, Approval.NEVER
RO, WW, FULL, EXT = Mode.READ_ONLY, Mode.WORKSPACE_WRITE, Mode.OFF, Mode.EXTERNAL
ASK, RUN, NO = Need.APPROVAL, Need.NOTHING, Need.FORBIDDEN


def settings(approval: Approval | Granular, mode: Mode, **more: object) -> Settings:
    granular = approval if isinstance(approval, Granular) else None
    kind = R if isinstance(approval, Granular) else approval
    return Settings("/w", kind, granular, SandboxMode(mode), **more)  # type: ignore[arg-type]


OTHER = "make test"
DANGER = "rm -rf ./x"


@pytest.mark.parametrize(
    ("approval", "mode", "script", "escalates", "need"),
    [
        (U, RO, OTHER, False, ASK),
        (U, FULL, OTHER, False, ASK),
        (U, WW, DANGER, False, ASK),
        (F, WW, OTHER, False, RUN),
        (F, WW, DANGER, False, ASK),
        (R, RO, OTHER, False, RUN),
        (R, RO, OTHER, True, ASK),
        (R, FULL, OTHER, True, RUN),
        (R, EXT, OTHER, True, RUN),
        (R, FULL, DANGER, False, ASK),
        (N, WW, OTHER, False, RUN),
        (N, WW, DANGER, False, NO),
        (N, FULL, DANGER, False, NO),
        (N, FULL, OTHER, True, NO),
        (Granular(), WW, OTHER, False, RUN),
        (Granular(), WW, OTHER, True, ASK),
        (Granular(), WW, DANGER, False, ASK),
        (Granular(sandbox_approval=False), WW, DANGER, False, NO),
        (Granular(sandbox_approval=False), FULL, OTHER, True, NO),
        (Granular(sandbox_approval=False), WW, OTHER, False, RUN),
        (Granular(rules=False), WW, DANGER, False, ASK),
    ],
)
def test_the_fallback_table(
    approval: Approval | Granular, mode: Mode, script: str, escalates: bool, need: Need
) -> None:
    request = Request.REQUIRE_ESCALATED if escalates else Request.USE_DEFAULT
    found = command_requirement(sh(script, request=request), settings(approval, mode))
    assert found.need is need
    if need is ASK:
        assert found.proposed_prefix is not None
    assert found.free is (escalates and need is not NO)


@pytest.mark.parametrize(
    ("approval", "retry"),
    [(U, True), (F, True), (R, False), (N, False), (Granular(), True),
     (Granular(sandbox_approval=False), False)],
)  # fmt: skip
def test_who_is_asked_after_a_denial(approval: Approval | Granular, retry: bool) -> None:
    assert command_requirement(sh(OTHER), settings(approval, WW)).retry is retry


def test_a_rule_allows_and_only_says_off_if_it_does() -> None:
    keep = parse_rules('prefix_rule(["make"], sandbox="keep")', "a.rules")
    off = parse_rules('prefix_rule(["make"], sandbox="off")', "a.rules")
    plain = parse_rules('prefix_rule(["make"])', "a.rules")
    assert not command_requirement(sh(OTHER), settings(U, WW, policy=keep)).free
    assert command_requirement(sh(OTHER), settings(U, WW, policy=off)).free
    assert not command_requirement(sh(OTHER), settings(U, WW, policy=plain)).free
    like_the_peer = settings(U, WW, policy=plain, unset_sandbox=Sandbox.OFF)
    assert command_requirement(sh(OTHER), like_the_peer).free


def test_a_prompt_rule_under_never_and_granular() -> None:
    rules = parse_rules('prefix_rule(["make"], decision="prompt", justification="J")', "a.rules")
    assert command_requirement(sh(OTHER), settings(R, WW, policy=rules)).need is ASK
    assert command_requirement(sh(OTHER), settings(N, WW, policy=rules)).need is NO
    no_rules = settings(Granular(rules=False), WW, policy=rules)
    assert command_requirement(sh(OTHER), no_rules).need is NO
    reason = command_requirement(sh(OTHER), settings(R, WW, policy=rules)).reason
    assert reason is not None
    assert reason.endswith("J")


def test_hidden_files_keep_every_run_in_the_sandbox() -> None:
    hidden = Settings("/w", R, sandbox=SandboxMode(WW, deny_read=("/w/.env",)))
    found = command_requirement(sh(OTHER, request=Request.REQUIRE_ESCALATED), hidden)
    assert found.need is ASK
    assert not found.free


def test_permissions_given_before_need_no_new_approval() -> None:
    wants = Grants(write=("/data",))
    call = sh(OTHER, request=Request.WITH_ADDITIONAL, wants=wants)
    assert command_requirement(call, settings(R, WW)).need is ASK
    assert command_requirement(call, settings(R, WW, grants=wants)).need is RUN


# --- the table of the first generation ------------------------------------------------------------


@pytest.mark.parametrize(
    ("approval", "mode", "script", "need", "free"),
    [
        (U, RO, "ls", RUN, True),
        (U, RO, OTHER, ASK, True),
        (U, FULL, OTHER, ASK, True),
        (R, WW, OTHER, RUN, False),
        (R, WW, DANGER, ASK, True),
        (R, FULL, OTHER, RUN, True),
        (F, WW, OTHER, RUN, False),
        (F, FULL, OTHER, RUN, True),
        (N, WW, OTHER, RUN, False),
        (N, WW, DANGER, NO, False),
    ],
)
def test_the_seed_table(
    approval: Approval, mode: Mode, script: str, need: Need, free: bool
) -> None:
    found = command_requirement(sh(script), settings(approval, mode, table=Table.SEED))
    assert (found.need, found.free) == (need, free)
    assert found.retry is (approval is F and mode is WW)


def test_the_seed_table_without_a_sandbox() -> None:
    def need(approval: Approval) -> Need:
        bare = settings(approval, WW, table=Table.SEED, sandbox_available=False)
        return command_requirement(sh(OTHER), bare).need

    assert [need(a) for a in (R, F, N)] == [ASK, ASK, NO]


def test_the_seed_table_knows_what_was_approved() -> None:
    seed = settings(U, RO, table=Table.SEED)
    found = command_requirement(sh(OTHER), seed, approved=True)
    assert (found.need, found.free) == (RUN, True)


# --- patches --------------------------------------------------------------------------------------

INSIDE, PROTECTED, OUT = "/w/a/b", "/w/.git/config", "/etc/x"


@pytest.mark.parametrize(
    ("approval", "mode", "path", "need"),
    [
        (U, WW, INSIDE, ASK),
        (U, WW, OUT, ASK),
        (U, FULL, OUT, RUN),
        (R, WW, INSIDE, RUN),
        (R, WW, "/tmp/x", RUN),
        (R, WW, PROTECTED, ASK),
        (R, WW, OUT, ASK),
        (R, RO, INSIDE, ASK),
        (F, WW, OUT, ASK),
        (N, WW, INSIDE, RUN),
        (N, WW, OUT, NO),
        (N, RO, INSIDE, NO),
        (N, FULL, OUT, RUN),
        (N, EXT, OUT, RUN),
        (Granular(), WW, OUT, ASK),
        (Granular(sandbox_approval=False), WW, INSIDE, RUN),
        (Granular(sandbox_approval=False), WW, OUT, NO),
    ],
)
def test_patches_by_where_they_write(
    approval: Approval | Granular, mode: Mode, path: str, need: Need
) -> None:
    assert patch_requirement([INSIDE, path], settings(approval, mode)).need is need


def test_a_refused_patch_says_which_wall_it_met() -> None:
    assert patch_requirement([OUT], settings(N, WW)).reason == OUTSIDE
    assert patch_requirement([INSIDE], settings(N, RO)).reason == READ_ONLY
