from __future__ import annotations

from typing import Any

import pytest

from handrail.policy.known_safe import is_known_safe
from tests.policy import cases


@pytest.mark.parametrize("case", cases("safe_commands.jsonl"))
def test_verified_case(case: dict[str, Any]) -> None:
    expected = case["expect"]
    assert is_known_safe(case["argv"]) == expected["known_safe_with_git_subset"]
    assert is_known_safe(case["argv"], git=False) == expected["known_safe_last_revision"]


@pytest.mark.parametrize(
    ("command", "safe"),
    [
        ("git log -p -1", True),
        ("git --git-dir x status", True),
        ("git -C x -C y diff --stat", True),
        ("git branch --format=x -a", True),
        ("git branch --list x", False),
        ("git log -c", False),
        ("git diff --output=x", False),
        ("git show --exec=x", False),
        ("git -C status", False),
        ("sed -n 1,p f", False),
        ("sed -n ,1p f", False),
        ("sed -n 1", False),
        ("sed -n", False),
        ("base64 -ox", False),
        ("rg --pre=x y", False),
        ("rg -zn y", True),
    ],
)
def test_more_of_the_rule(command: str, safe: bool) -> None:
    assert is_known_safe(command.split()) is safe
    assert is_known_safe(["bash", "-c", command]) is safe


def test_one_unsafe_command_spoils_a_script() -> None:
    assert is_known_safe(["sh", "-c", "ls | wc -l && pwd"])
    assert not is_known_safe(["sh", "-c", "ls | wc -l && make"])
    assert not is_known_safe(["bash", "-lc", "ls", "x"])
