from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.network.hosts import Host
from handrail.network.policy_rules import of_policy
from handrail.network.saved_rules import SavedRules
from handrail.policy.load import parse_rules, resolver
from handrail.policy.rules import Decision, Policy, PrefixRule, normal_path, strictest

TOKEN = st.sampled_from(["a", "b", "c", ""])
RULE = st.builds(
    PrefixRule,
    TOKEN,
    st.lists(st.lists(TOKEN, min_size=1, max_size=2).map(tuple), max_size=3).map(tuple),
    st.sampled_from(Decision),
)


def test_the_strictest_match_decides_in_any_order() -> None:
    rules = [PrefixRule("git", decision=decision) for decision in Decision]
    assert strictest(Policy(tuple(rules)).matches(["git"])) is Decision.FORBIDDEN
    assert strictest(Policy(tuple(rules[::-1])).matches(["git"])) is Decision.FORBIDDEN
    assert strictest(Policy().matches(["git"])) is None


@settings(deadline=None)
@given(st.lists(RULE, max_size=6), st.lists(RULE, max_size=3), st.lists(TOKEN, max_size=4))
def test_more_rules_never_relax(
    rules: list[PrefixRule], more: list[PrefixRule], argv: list[str]
) -> None:
    before = strictest(Policy(tuple(rules)).matches(argv))
    after = strictest(Policy(tuple(rules)).extended(more).matches(argv))
    assert before is None or (after is not None and after >= before)


@settings(deadline=None)
@given(RULE, st.lists(TOKEN, min_size=1, max_size=5), st.lists(TOKEN, max_size=3))
def test_a_longer_command_still_matches(rule: PrefixRule, argv: list[str], more: list[str]) -> None:
    policy = Policy((rule,))
    assert not policy.matches(argv) or policy.matches(argv + more)


@settings(deadline=None)
@given(RULE, st.lists(TOKEN, min_size=1, max_size=5), st.data())
def test_an_unknown_word_may_be_the_one_that_matches(
    rule: PrefixRule, argv: list[str], data: st.DataObject
) -> None:
    if not Policy((rule,)).matches(argv):
        return
    hidden = data.draw(st.sets(st.integers(1, len(argv))))
    words = tuple(None if at in hidden else word for at, word in enumerate(argv))
    assert rule.could_match(words)


def test_resolution_is_tried_only_if_nothing_matches_as_written() -> None:
    policy = parse_rules('prefix_rule(["/x/a", "b"])\nprefix_rule(["a"], "prompt")', "r")
    resolve = resolver("/w", "/home/me")
    assert [m.decision for m in policy.matches(["/x/a", "b"], resolve)] == [Decision.ALLOW]
    assert [m.decision for m in policy.matches(["/x/a", "c"], resolve)] == [Decision.PROMPT]
    assert policy.matches(["/x/a", "c"]) == ()
    assert policy.matches(["./a"], resolve)[0].resolved_program == "/w/a"
    assert policy.matches(["~/a"], resolve)[0].resolved_program == "/home/me/a"
    assert policy.matches(["/x/../y//a/."], resolve)[0].resolved_program == "/y/a"


def test_a_host_list_gates_the_base_name() -> None:
    rules = 'prefix_rule(["a"], "forbidden")\nhost_executable("a", ["/x/a"])'
    policy = parse_rules(rules, "r")
    resolve = resolver("/", "/")
    assert policy.matches(["/x/a"], resolve)
    assert not policy.matches(["/y/a"], resolve)
    assert [sure for _, sure in policy.refusals(("/x/a",))] == [True]
    # The peer's reading knows no rule for it; ours asks: it may be the same file.
    assert [sure for _, sure in policy.refusals(("/y/a",))] == [False]


@pytest.mark.parametrize(
    ("words", "certain"),
    [
        (("git", "push"), True),
        (("/usr/bin/git", "push", "x"), True),
        (("./git", "push"), True),
        (("git", None, "push"), True),
        (("git", None), False),
        (("git", None, "x"), False),
    ],
)
def test_refusals_see_through_paths_and_unknown_words(
    words: tuple[str | None, ...], certain: bool
) -> None:
    policy = parse_rules('prefix_rule(["git", "push"], "forbidden")', "r")
    assert [sure for _, sure in policy.refusals(words)] == [certain]


@pytest.mark.parametrize(
    "words", [("git", "pull"), ("git", "x", None), ("got", None), (None, "git"), ()]
)
def test_refusals_are_not_invented(words: tuple[str | None, ...]) -> None:
    policy = parse_rules('prefix_rule(["git", "push"], "forbidden")\nprefix_rule(["git"])', "r")
    assert policy.refusals(words) == ()


def test_the_last_network_rule_of_a_host_decides() -> None:
    text = """
for decision in ["deny", "allow"]:
    network_rule("a.com", "https", decision)
network_rule("B.com.", "http", "allow")
network_rule("b.com:80", "http", "deny")
network_rule("c.com", "http", "allow")
network_rule("c.com", "http", "prompt")
"""
    saved = SavedRules(of_policy(parse_rules(text, "r")))
    decisions = [saved.find(Host(f"{name}.com"), 443) for name in "abcd"]
    assert [rule and rule.decision for rule in decisions] == [
        "allow",
        "forbidden",
        "prompt",
        None,
    ]


@settings(deadline=None)
@given(st.text(alphabet="ab./", max_size=12))
def test_normal_paths_are_normal(path: str) -> None:
    once = normal_path(path, "/cwd")
    assert once.startswith("/")
    assert not once.startswith("//")
    assert normal_path(once) == once


@pytest.mark.parametrize("name", ["git", "/bin/git", "/usr/bin/../bin/git", "//usr/bin/git"])
def test_another_spelling_of_the_path_of_a_forbid_is_a_sighting(name: str) -> None:
    policy = parse_rules('prefix_rule(["/usr/bin/git", "push"], "forbidden")', "r")
    assert [sure for _, sure in policy.refusals((name, "push"))] == [False]
    assert [sure for _, sure in policy.refusals(("/usr/bin/git", "push"))] == [True]
    assert not policy.refusals((name, "pull"))
