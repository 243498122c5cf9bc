from __future__ import annotations

import shlex
from typing import Any

import pytest

from handrail.policy.dangerous import Danger, Effect, danger, effects
from tests.policy import cases


@pytest.mark.parametrize("case", cases("dangerous_commands.jsonl"))
def test_verified_case(case: dict[str, Any]) -> None:
    assert (danger(case["argv"]) is not None) == case["expect"]["dangerous"]


@pytest.mark.parametrize(
    ("script", "found"),
    [
        # measured on the peer, 0.166.0
        ("'rm' -rf z", True), ('r"m" -f z', True), ("\\rm -rf z", False), ("$'rm' -f z", False),
        ('rm "$X" -f', True), ("rm -rf$X z", False), ("rm -{r,f} z", False), ("rm -f=x", True),
        ("rm --force=x", False), ("rm -F z", False), ("rm x -- -f", False), ("rm -éf", True),
        ("sudo sudo env rm -f z", True), ("sudo A=1 rm -f z", False), ("sudo -- rm -f z", False),
        ("env - rm -f z", False), ("env A=1 -i rm -f z", True), ("env -- A=1 rm -f z", False),
        ("env A=$X rm -f z", True), ("env -iu X rm -f z", False), ("trap -p 'rm -f z'", False),
        ("trap -- 'rm -f z' EXIT", True), ("bash -lc 'rm -f z' x", False),
        ("bash.foo -c 'rm -f z'", True), (".bash -c 'rm -f z'", False), ("rm.exe -f z", False),
        ("dash -c 'rm -f z'", False), ('bash -c "rm -f $X"', False), ("rm >o -f z", False),
        ("rm <<<x -f", True), ("cat <<E\n$(rm -f z)\nE", True), ("rm -f z; if", False),
        ("rm -f z;;", True), ("rm -\\\nf z", False), ("time rm -f z", False),
    ],
)  # fmt: skip
def test_more_of_the_rule(script: str, found: bool) -> None:
    assert (danger(["/bin/bash", "-lc", script]) is not None) is found


def nested(shells: int, script: str) -> str:
    for _ in range(shells):
        script = f"bash -c {shlex.quote(script)}"
    return script


@pytest.mark.parametrize(
    ("script", "too_deep"),
    [
        ("env " * 8 + "ls", False),
        ("env " * 9 + "ls", True),
        ("env " * 8, False),
        ("env " * 9, True),
        (nested(8, "ls"), False),
        (nested(9, "ls"), True),
        ("env " * 6 + nested(2, "ls"), False),
        ("env " * 7 + nested(2, "ls"), True),
    ],
)
def test_wrappers_that_cannot_be_followed_are_dangerous(script: str, too_deep: bool) -> None:
    assert danger(["bash", "-lc", script]) == (Danger.TOO_DEEP if too_deep else None)


@pytest.mark.parametrize(
    ("script", "effect"),
    [
        ("timeout 5 rm -rf x", Effect.DELETE),
        ("find . -name x -delete", Effect.DELETE),
        ("git -C x reset --hard", Effect.OVERWRITE),
        ("dd if=a of=b", Effect.OVERWRITE),
        ("cd x && git push", Effect.PUBLISH),
        ("gh auth token", Effect.CREDENTIALS),
    ],
)
def test_effects_are_seen_through_wrappers(script: str, effect: Effect) -> None:
    assert effects(["bash", "-c", script]) == {effect}


def test_harmless_commands_have_no_effect_of_that_kind() -> None:
    assert effects(["bash", "-c", "git status && ls -R | grep rm"]) == frozenset()
    assert danger([]) is None
