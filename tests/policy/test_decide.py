from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.bash_syntax import SCRIPT_LIMIT
from handrail.policy.context import Approval, Granular, Situation
from handrail.policy.dangerous import Effect
from handrail.policy.decide import Action, Cause, Verdict, decide
from handrail.policy.load import parse_rules
from handrail.policy.rules import Decision, Policy, Sandbox
from tests.policy import cases

FREE = Situation(cwd="/w", restricted=False, writable_roots=("/w", "/tmp"))
UNTRUSTED = replace(FREE, approval=Approval.UNTRUSTED)


def judge(script: str, rules: str = "", situation: Situation = FREE) -> Verdict:
    return decide(["/bin/bash", "-lc", script], parse_rules(rules, "r.rules"), situation)


@pytest.mark.parametrize("case", cases("orchestrator_decisions.jsonl"))
def test_verified_case(case: dict[str, Any]) -> None:
    """The part of the orchestrator's cases that is decided before anything runs."""
    policy, args, expected = case["approval_policy"], case["args"], case["expect"]
    granular = None
    if isinstance(policy, dict):
        chosen = policy["granular"]
        granular = Granular(chosen["sandbox_approval"], chosen["rules"])
        policy = "on-request"
    situation = Situation(
        approval=Approval(policy),
        granular=granular,
        restricted=case["sandbox_mode"] != "danger-full-access",
        escalates=args.get("sandbox_permissions") == "require_escalated",
    )
    rules = parse_rules(case["rules"], "r.rules")
    verdict = decide(["/bin/bash", "-c", args["cmd"]], rules, situation, args.get("prefix_rule"))
    outcome = expected.get("intended_outcome", expected["outcome"])
    actions = {"prompt": Action.ASK, "rejected": Action.FORBID}
    assert verdict.action is actions.get(outcome, Action.ALLOW)
    if outcome == "prompt":
        assert verdict.proposed_prefix == tuple(expected["proposed_prefix"])
        assert verdict.reason is None
    if "proposed_prefix" in expected and outcome == "prompt_retry":
        assert verdict.retry_prefix == tuple(expected["proposed_prefix"])
    if outcome == "rejected":
        assert verdict.reason


# --- forbid is a guarantee ----------------------------------------------------------------------

EVASIONS = [
    "P x", "P x > /dev/null", "A=1 P x", "(P x)", "P $X", "P *", "command P x", "bash -c 'P x'",
    "/usr/bin/P x", "./P x", "../P x", "sudo -n P x", "P x &", "! P x", "echo $(P x)", "\\P x",
    "'P' x", "if true; then P x; fi", "P x\n)", "xargs P < f", "find . -exec P {} +", "eval 'P x'",
    "timeout 5 env A=1 P x 2>&1 | tee log", "bash <<E\nP x\nE", "trap 'P x' EXIT", "P\\\n x",
]  # fmt: skip


@pytest.mark.parametrize("script", EVASIONS)
def test_a_forbid_is_not_lifted_by_its_surroundings(script: str) -> None:
    verdict = judge(script, 'prefix_rule(["P"], "forbidden", justification="use Q")')
    assert verdict.action is Action.FORBID
    assert verdict.cause is Cause.RULE
    assert verdict.reason is not None
    assert "use Q" in verdict.reason


@pytest.mark.parametrize("script", EVASIONS)
def test_a_prompt_is_not_lifted_either(script: str) -> None:
    rules = 'prefix_rule(["P"], "prompt")\nprefix_rule(["bash"])\nprefix_rule(["/usr/bin/P"])'
    assert judge(script, rules).action is Action.ASK
    never = replace(FREE, approval=Approval.NEVER)
    assert judge(script, rules, never).action is Action.FORBID


@pytest.mark.parametrize("script", ["git $X", 'git "$@"', "$SUDO git push", "xargs git"])
def test_what_may_turn_into_something_forbidden_is_asked(script: str) -> None:
    rules = 'prefix_rule(["git", "push"], "forbidden")\nprefix_rule(["git"])'
    assert judge(script, rules).action is Action.ASK
    assert judge("git status", rules).action is Action.ALLOW


@pytest.mark.parametrize(
    ("argv", "action"),
    [
        ("/bin/bash -lc ls", Action.ALLOW),
        ("bash -c 'ls; env make x'", Action.ALLOW),
        ("/bin/bash -lc 'bash -c ls'", Action.FORBID),
        ("/bin/bash -lc 'ls > o; env bash x'", Action.FORBID),
        ("/bin/bash -lc 'ls $X'", Action.FORBID),  # cannot be split: it is the command
        ("/w/bash -c ls", Action.FORBID),
        ("/bin/bash x", Action.FORBID),
    ],
)
def test_a_rule_for_the_shell_is_not_about_scripts_that_are_split(
    argv: str, action: Action
) -> None:
    """The agent starts every script with a shell: a rule for it would be about all of them."""
    rules = parse_rules('prefix_rule(["bash"], "forbidden")', "r.rules")
    assert decide(shlex.split(argv), rules, FREE).action is action


def test_a_doubtful_sighting_does_not_hide_a_certain_one() -> None:
    rules = 'prefix_rule(["git", "push"], "forbidden")'
    assert judge("git $X; git push > o", rules).action is Action.FORBID
    assert judge("$X git push; git push > o", rules).action is Action.FORBID


def test_an_argument_is_not_forbidden() -> None:
    rules = 'prefix_rule(["P"], "forbidden")'
    for script in "echo P", "grep -r P .", "cat P", "echo 'P x'":
        assert judge(script, rules).action is Action.ALLOW


def test_unclear_scripts_ask_where_a_rule_could_be_broken() -> None:
    rules = 'prefix_rule(["P"], "forbidden")'
    verdict = judge("$CMD x", rules)
    assert (verdict.action, verdict.cause) == (Action.ASK, Cause.UNCLEAR)
    assert verdict.reason is not None
    assert "known only at the run" in verdict.reason
    assert verdict.proposed_prefix is None
    assert judge("$CMD x", 'prefix_rule(["P"])').action is Action.ALLOW


def test_a_script_too_long_to_be_read_asks() -> None:
    script = "P x # " + "y" * SCRIPT_LIMIT
    assert judge(script).cause is Cause.DANGER
    rules = 'prefix_rule(["P"], "forbidden")\nprefix_rule(["/bin/bash"])'
    assert judge(script, rules).action is Action.ASK


# --- allow believes nothing ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "action"),
    [
        ("mytool a", Action.ALLOW),
        ("/usr/bin/mytool a", Action.ALLOW),
        ("./mytool a", Action.ASK),
        ("/w/mytool a", Action.ASK),
        ("bin/mytool a", Action.ASK),
        ("/opt/mytool a", Action.ASK),
        ("/usr/bin/../../w/mytool a", Action.ASK),
        ("/usr/bin/x/../mytool a", Action.ASK),
        ("mytool a && mytool b", Action.ALLOW),
        ("mytool a && other", Action.ASK),
        ("mytool a > out", Action.ASK),
        ("mytool $(other)", Action.ASK),
        ("A=1 mytool a", Action.ASK),
        ("mytool a\rb", Action.ASK),
    ],
)
def test_a_rule_allows_only_what_it_names(script: str, action: Action) -> None:
    assert judge(script, 'prefix_rule(["mytool"])', UNTRUSTED).action is action


def test_a_trusted_directory_inside_a_writable_root_is_none() -> None:
    loose = replace(UNTRUSTED, writable_roots=("/usr",))
    assert judge("/usr/bin/mytool", 'prefix_rule(["mytool"])', loose).action is Action.ASK
    assert judge("mytool", 'prefix_rule(["mytool"])', loose).action is Action.ALLOW


def test_a_shell_from_elsewhere_is_judged_itself() -> None:
    policy = parse_rules('prefix_rule(["mytool"])', "r.rules")
    for shell, action in [
        ("/bin/bash", Action.ALLOW),
        ("bash", Action.ALLOW),
        ("/usr/bin/sh", Action.ALLOW),
        ("./bash", Action.ASK),
        ("/w/bash", Action.ASK),
    ]:
        assert decide([shell, "-c", "mytool a"], policy, UNTRUSTED).action is action
    own = replace(UNTRUSTED, shell="/opt/bash")
    assert decide(["/opt/bash", "-c", "mytool a"], policy, own).action is Action.ALLOW


@pytest.mark.parametrize(
    ("rules", "script", "sandbox"),
    [
        ('prefix_rule(["a"])', "a", Sandbox.KEEP),
        ('prefix_rule(["a"], sandbox="off")', "a", Sandbox.OFF),
        ('prefix_rule(["a"], sandbox="off")', "a && b", Sandbox.KEEP),
        ('prefix_rule(["a"], sandbox="off")\nprefix_rule(["b"])', "a && b", Sandbox.KEEP),
        ('prefix_rule([["a", "b"]], sandbox="off")', "a && b", Sandbox.OFF),
        ('prefix_rule(["a"], sandbox="off")\nprefix_rule(["a", "x"])', "a x", Sandbox.OFF),
        (
            'prefix_rule(["a"], sandbox="off")\nprefix_rule(["a", "x"], sandbox="keep")',
            "a x",
            Sandbox.KEEP,
        ),
        ('prefix_rule(["a"], "prompt", sandbox="off")', "a", Sandbox.OFF),
        ('prefix_rule(["a"], "prompt")', "a", Sandbox.KEEP),
        ("", "a", Sandbox.KEEP),
    ],
)
def test_allowed_is_not_unsandboxed(rules: str, script: str, sandbox: Sandbox) -> None:
    assert judge(script, rules).sandbox is sandbox


def test_leaving_the_sandbox_is_asked_even_for_allowed_commands() -> None:
    leaving = replace(FREE, restricted=True, escalates=True)
    verdict = judge("a", 'prefix_rule(["a"])', leaving)
    assert (verdict.action, verdict.cause) == (Action.ASK, Cause.ESCALATION)
    assert verdict.proposed_prefix is None
    assert judge("a", 'prefix_rule(["a"], sandbox="off")', leaving).action is Action.ALLOW
    free = replace(leaving, restricted=False)
    assert judge("a", 'prefix_rule(["a"])', free).action is Action.ALLOW


def test_the_rules_of_the_peer_may_mean_what_they_mean_there() -> None:
    peer = replace(FREE, unset_sandbox=Sandbox.OFF)
    assert judge("a", 'prefix_rule(["a"])', peer).sandbox is Sandbox.OFF
    assert judge("a && b", 'prefix_rule(["a"])', peer).sandbox is Sandbox.KEEP
    assert judge("a", 'prefix_rule(["a"], "prompt")', peer).sandbox is Sandbox.KEEP


# --- settings -----------------------------------------------------------------------------------


def test_granular_switches_refuse_their_kind_of_question() -> None:
    rules = 'prefix_rule(["P"], "prompt")'
    no_rules = replace(FREE, granular=Granular(rules=False))
    no_sandbox = replace(FREE, granular=Granular(sandbox_approval=False))
    assert judge("P", rules, no_rules).action is Action.FORBID
    assert judge("P", rules, no_sandbox).action is Action.ASK
    assert judge("rm -rf x", rules, no_rules).action is Action.ASK
    assert judge("rm -rf x", rules, no_sandbox).action is Action.FORBID


def test_a_lost_rules_file_stops_unattended_runs() -> None:
    policy = Policy(lost=("/home/me/a.rules",))
    verdict = decide(["ls"], policy, replace(FREE, approval=Approval.NEVER))
    assert verdict.action is Action.FORBID
    assert verdict.cause is Cause.LOST_RULES
    asked = decide(["ls"], policy, FREE)
    assert (asked.action, asked.cause) == (Action.ASK, Cause.LOST_RULES)
    allowing = replace(policy, rules=parse_rules('prefix_rule(["ls"])', "r.rules").rules)
    assert decide(["ls"], allowing, FREE).action is Action.ASK
    for granular, action in (
        (Granular(), Action.ASK),
        (Granular(rules=False), Action.FORBID),
    ):
        verdict = decide(["ls"], policy, replace(FREE, granular=granular))
        assert (verdict.action, verdict.cause) == (action, Cause.LOST_RULES)


def test_known_safe_commands_are_an_option() -> None:
    trusting = replace(UNTRUSTED, trust_known_safe=True)
    assert judge("ls -l", "", UNTRUSTED).action is Action.ASK
    verdict = judge("ls -l | wc -l", "", trusting)
    assert (verdict.action, verdict.sandbox) == (Action.ALLOW, Sandbox.KEEP)
    assert judge("/bin/ls", "", trusting).action is Action.ALLOW
    assert judge("./ls", "", trusting).action is Action.ASK
    assert judge("ls && make", "", trusting).action is Action.ASK


def test_effects_are_asked_about_if_that_is_wanted() -> None:
    careful = replace(FREE, ask_about=frozenset({Effect.PUBLISH}))
    assert judge("git push", "", careful).cause is Cause.EFFECT
    assert judge("git push").action is Action.ALLOW
    assert judge("git clean -fdx", "", careful).action is Action.ALLOW


def test_the_longest_prefix_gives_the_reason() -> None:
    rules = """
prefix_rule(["a"], "prompt", justification="short")
prefix_rule(["a", "b"], "prompt", justification="long")
prefix_rule(["a", "b", "c"], justification="allowed")
"""
    reason = judge("a b c", rules).reason
    assert reason is not None
    assert "long" in reason
    plain = judge("a", 'prefix_rule(["a"], "forbidden")').reason
    assert plain is not None
    assert "r.rules:1" in plain


# --- what is offered ----------------------------------------------------------------------------


def test_the_first_command_that_asks_is_offered_as_a_rule() -> None:
    rules = 'prefix_rule(["ok"])'
    assert judge("ok && make all | tee x", rules, UNTRUSTED).proposed_prefix == ("make", "all")
    unsplit = judge("make > x", rules, UNTRUSTED).proposed_prefix
    assert unsplit == ("/bin/bash", "-lc", "make > x")


def test_no_rule_is_offered_against_a_rule() -> None:
    assert judge("P && make", 'prefix_rule(["P"], "prompt")', UNTRUSTED).proposed_prefix is None
    assert judge("make").proposed_prefix is None


@pytest.mark.parametrize(
    ("script", "wanted", "offered"),
    [
        ("npm test a", ["npm", "test"], ("npm", "test")),
        ("npm test a && make", ["npm", "test"], ("npm", "test", "a")),
        ("ok && npm test a", ["npm", "test"], ("npm", "test")),
        ("npm test a", ["npm", "run"], ("npm", "test", "a")),
        ("npm test a", [], ("npm", "test", "a")),
        ("python3 x.py", ["python3"], ("python3", "x.py")),
        ("python3 -c x", ["/usr/bin/python3", "-c"], ("python3", "-c", "x")),
    ],
)
def test_a_wanted_prefix_has_to_be_narrow_and_enough(
    script: str, wanted: list[str], offered: tuple[str, ...]
) -> None:
    policy = parse_rules('prefix_rule(["ok"])', "r.rules")
    verdict = decide(["bash", "-lc", script], policy, UNTRUSTED, wanted)
    assert verdict.proposed_prefix == offered


WORDS = st.lists(
    st.sampled_from(["P", "a", "-x", "&&", ";", "|", ">", "$X", "(", ")", "sudo"]), min_size=1
)


@settings(deadline=None)
@given(WORDS, st.sampled_from(Approval), st.booleans())
def test_a_rule_that_forbids_only_ever_makes_it_stricter(
    words: list[str], approval: Approval, restricted: bool
) -> None:
    situation = Situation(approval=approval, restricted=restricted)
    order = list(Action)
    argv = ["bash", "-c", " ".join(words)]
    without = decide(argv, parse_rules('prefix_rule(["a"])', "r"), situation)
    rules = parse_rules('prefix_rule(["a"])\nprefix_rule(["P"], "forbidden")', "r")
    verdict = decide(argv, rules, situation)
    assert order.index(verdict.action) >= order.index(without.action)
    if verdict.action is Action.ALLOW:
        assert all(finding.decision is Decision.ALLOW for finding in verdict.findings)


def test_an_empty_argv_is_survived() -> None:
    assert decide([], Policy(), FREE).action is Action.ALLOW
    assert decide([], Policy(), UNTRUSTED).action is Action.ASK


@pytest.mark.parametrize("script", ["P x; {} > o", "sh -c 'P {}'", "rm -rf {}"])
def test_a_reason_shows_the_beginning_of_a_long_script(script: str) -> None:
    unattended = replace(FREE, approval=Approval.NEVER)
    text = script.format("a" * 60_000)
    verdict = judge(text, 'prefix_rule(["P"], "forbidden", justification="use Q")', unattended)
    assert verdict.action is Action.FORBID
    assert verdict.reason is not None
    assert len(verdict.reason) < 1300
    assert script[:4] in verdict.reason
