"""The steps of exec-server 4.2."""

from __future__ import annotations

import re
from fnmatch import translate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.process import env_policy
from handrail.process.env_policy import (
    CORE,
    BuiltEnvironments,
    EnvPolicy,
    Inherit,
    NulInValue,
    bad_name,
    build,
)

OWN = {
    "PATH": "/bin",
    "Home": "/home/me",  # core names are matched without regard to case
    "LANG": "C",
    "LC_TIME": "C",  # not core
    "EDITOR": "vi",
    "API_KEY": "k",
    "my_secret_word": "s",
    "Token": "t",
    "MONKEY": "m",  # *KEY* takes it along
    "AWS_REGION": "r",
}


def policy(**changes: object) -> EnvPolicy:
    fields: dict[str, object] = {
        "inherit": Inherit.ALL,
        "ignore_default_excludes": False,
        "exclude": (),
        "set": {},
        "include_only": (),
    }
    return EnvPolicy(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, {"PATH", "Home", "LANG", "LC_TIME", "EDITOR", "AWS_REGION"}),
        ({"ignore_default_excludes": True}, set(OWN)),
        ({"inherit": Inherit.NONE}, set()),
        ({"inherit": Inherit.NONE, "ignore_default_excludes": True}, set()),
        ({"inherit": Inherit.CORE}, {"PATH", "Home", "LANG"}),
        ({"exclude": ("aws_*", "EDITO?")}, {"PATH", "Home", "LANG", "LC_TIME"}),
        ({"exclude": ("EDIT",)}, {"PATH", "Home", "LANG", "LC_TIME", "EDITOR", "AWS_REGION"}),
        ({"include_only": ("L*",)}, {"LANG", "LC_TIME"}),
        ({"include_only": ("l???",)}, {"LANG"}),
        ({"include_only": ("*KEY*",)}, set()),  # what was excluded does not come back
        ({"set": {"API_KEY": "x"}, "inherit": Inherit.NONE}, {"API_KEY"}),  # but set may bring it
        ({"set": {"A": "1", "B": "2"}, "include_only": ("b",)}, {"B"}),
        ({"set": {"A": "1"}, "exclude": ("A",), "inherit": Inherit.NONE}, {"A"}),
    ],
)
def test_names(changes: dict[str, object], names: set[str]) -> None:
    assert set(build(policy(**changes), {}, OWN)) == names


def test_core_is_the_list_of_the_wire() -> None:
    words = "HOME LANG LC_ALL LC_CTYPE LOGNAME PATH SHELL TEMP TMP TMPDIR USER"
    assert " ".join(sorted(CORE)) == words


def test_without_a_policy_the_overlay_is_everything() -> None:
    assert build(None, {"A": "1", "MY_TOKEN": "2"}, OWN) == {"A": "1", "MY_TOKEN": "2"}
    assert build(None, {}, OWN) == {}


def test_set_replaces_and_the_overlay_wins_over_all() -> None:
    found = build(
        policy(set={"EDITOR": "ed", "LANG": "de"}, include_only=("EDITOR", "LANG")),
        {"LANG": "fr", "SOME_KEY": "kept"},
        OWN,
    )
    assert found == {"EDITOR": "ed", "LANG": "fr", "SOME_KEY": "kept"}


@pytest.mark.parametrize(
    ("pattern", "name", "hit"),
    [
        ("[a]b", "[A]B", True),
        ("[a]b", "AB", False),
        ("a.b", "axb", False),
        ("a.b", "A.B", True),
        ("*", "ANYTHING", True),
        ("?", "", False),
        ("A*C", "AC", True),
        ("A*C", "A\nB\nC", True),
        ("(A|B)", "A", False),
        ("A", "AA", False),
    ],
)
def test_patterns_know_star_and_question_mark_only(pattern: str, name: str, hit: bool) -> None:
    found = build(policy(exclude=(pattern,)), {}, {name: "x"})
    assert (name not in found) == hit


NEVER = [
    "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE",
    "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
    "NODE_REPL_AUTH_TOKEN",
    "OPENAI_FEDERATION_RULE_ID",
    "OPENAI_IDENTITY_TOKEN_FILE",
    "OPENAI_WORKLOAD_IDENTITY_CONTEXT",
]


@pytest.mark.parametrize("name", NEVER)
def test_some_names_never_reach_a_child(name: str) -> None:
    loose = policy(ignore_default_excludes=True, set={name: "1"})
    assert build(loose, {name: "2", "A": "1"}, {name: "3"}) == {"A": "1"}
    assert build(None, {name: "2"}, {}) == {}
    folded = build(None, {name.lower(): "2"}, {})
    assert (folded == {}) == (name != "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE")


def test_bad_names() -> None:
    assert bad_name(["A", "b", "ü"]) is None
    assert bad_name(["A", "", "x=y"]) == ""
    assert bad_name(["A", "x=y"]) == "x=y"
    assert bad_name(["A\0B"]) == "A\0B"


letters = st.text("ABCKEYabcéß_[]?*.", min_size=1, max_size=8)
names = letters | st.sampled_from(["MY_KEY", "secretive", "aToken", "PATH", "home", *NEVER])
environments = st.dictionaries(names, st.text(max_size=3), max_size=8)


def _hits(patterns: tuple[str, ...], name: str) -> bool:
    """By the standard library's wildcards, with brackets made literal."""
    literal = (pattern.replace("[", "[[]") for pattern in patterns)
    return any(re.match(translate(p), name, re.IGNORECASE | re.DOTALL) for p in literal)


@settings(max_examples=250, deadline=None)
@given(
    st.sampled_from(Inherit),
    st.booleans(),
    st.lists(letters, max_size=3).map(tuple),
    environments,
    st.lists(letters, max_size=2).map(tuple),
    environments,
    environments,
)
def test_never_more_than_the_steps_allow(
    inherit: Inherit,
    ignore: bool,
    exclude: tuple[str, ...],
    given_set: dict[str, str],
    include: tuple[str, ...],
    overlay: dict[str, str],
    own: dict[str, str],
) -> None:
    found = build(EnvPolicy(inherit, ignore, exclude, given_set, include), overlay, own)
    for name, value in found.items():
        assert name not in NEVER
        if name in overlay:
            assert value == overlay[name]
            continue
        assert not include or _hits(include, name)
        if name in given_set:
            assert value == given_set[name]
            continue
        assert value == own[name]
        assert inherit is not Inherit.NONE
        assert inherit is Inherit.ALL or name.upper() in CORE
        assert ignore or not _hits(("*KEY*", "*SECRET*", "*TOKEN*"), name)
        assert not _hits(exclude, name)
    for name in overlay.keys() - NEVER:
        assert name in found or name.upper() in NEVER


def test_what_opens_our_servers_reaches_no_child() -> None:
    own = {"HANDRAIL_TOKEN": "secret", "A": "b"}
    everything = EnvPolicy(Inherit.ALL, True, (), {}, ())
    assert build(everything, {}, own) == {"A": "b"}
    assert build(None, own, {}) == {"A": "b"}


@settings(max_examples=250, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(Inherit),
            st.booleans(),
            st.lists(letters, max_size=2).map(tuple),
            st.just({}) | environments,
            st.lists(letters, max_size=2).map(tuple),
        ),
        min_size=1,
        max_size=30,
    ),
    environments.map(lambda env: {name: value.replace("\0", "") for name, value in env.items()}),
    environments.map(lambda env: {name: value.replace("\0", "") for name, value in env.items()}),
)
def test_remembered_policies_give_the_same_environment(
    steps: list[tuple[Inherit, bool, tuple[str, ...], dict[str, str], tuple[str, ...]]],
    overlay: dict[str, str],
    own: dict[str, str],
) -> None:
    built = BuiltEnvironments(own)
    for inherit, ignore, exclude, given_set, include in [*steps, *steps]:
        one = EnvPolicy(inherit, ignore, exclude, given_set, include)
        if any("\0" in value for value in given_set.values()):
            continue
        wanted = build(one, overlay, own)
        assert built.build(one, overlay) == {
            name.encode(): value.encode() for name, value in wanted.items()
        }


def test_a_value_with_nul_is_refused_and_what_a_client_sets_is_not_remembered() -> None:
    built = BuiltEnvironments({"A": "a"})
    with pytest.raises(NulInValue):
        built.build(policy(set={"B": "\0"}), {})
    with pytest.raises(NulInValue):
        built.build(policy(), {"B": "\0"})
    assert built.build(policy(set={"B": "b"}), {}) == {b"A": b"a", b"B": b"b"}
    assert built.build(policy(), {}) == {b"A": b"a"}


def test_the_environment_of_a_place_is_made_once_a_policy() -> None:
    built = BuiltEnvironments({"A": "a", "B": "b"})
    one, other = policy(), policy(exclude=("B",))
    found = built.of_place(one, {"TMPDIR": "/t"})
    assert found == {b"A": b"a", b"B": b"b", b"TMPDIR": b"/t"}
    assert built.of_place(one, {"TMPDIR": "/t"}) is found
    assert built.of_place(one, {"TMPDIR": "/u"}) == {**found, b"TMPDIR": b"/u"}
    assert built.of_place(other, {"TMPDIR": "/t"}) == {b"A": b"a", b"TMPDIR": b"/t"}
    for number in range(env_policy._MOST_PLACES + 1):
        built.of_place(one, {"TMPDIR": f"/{number}"})
    assert len(built._of_places) <= env_policy._MOST_PLACES


def test_what_a_client_sets_is_not_remembered_for_a_place() -> None:
    built, secret = BuiltEnvironments({}), policy(set={"B": "secret"})
    assert built.of_place(secret, {}) == {b"B": b"secret"}
    assert not built._of_places
