"""The sentences."""

from __future__ import annotations

import pytest

from handrail.errors import PatchError
from handrail.patch import report
from handrail.patch.grammar import PatchSyntaxError
from handrail.patch.plan import Change, ChangeKind


def test_the_summary_is_grouped_and_keeps_doubles() -> None:
    changes = [
        Change(kind, f"/w/{name}", name, None, None)
        for kind, name in [
            (ChangeKind.DELETE, "d"),
            (ChangeKind.UPDATE, "b"),
            (ChangeKind.ADD, "c"),
            (ChangeKind.UPDATE, "a"),
            (ChangeKind.UPDATE, "b"),
        ]
    ]
    expected = "Success. Updated the following files:\nA c\nM b\nM a\nM b\nD d\n"
    assert report.summary(changes) == expected


@pytest.mark.parametrize(
    ("error", "command", "agent"),
    [
        (PatchError("Failed."), "Failed.\n", "Failed."),
        (PatchSyntaxError("No."), "Invalid patch: No.\n", "invalid patch: No."),
        (
            PatchSyntaxError("No.", line=3),
            "Invalid patch hunk on line 3: No.\n",
            "invalid hunk at line 3, No.",
        ),
    ],
)
def test_the_same_error_to_a_shell_and_to_an_agent(
    error: PatchError, command: str, agent: str
) -> None:
    assert report.failure(error) == command
    assert report.verification_failure(error) == f"apply_patch verification failed: {agent}"


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.0, "0"), (0.04, "0"), (0.06, "0.1"), (1.0, "1"), (12.34, "12.3")]
)
def test_wall_time_has_at_most_one_digit(seconds: float, shown: str) -> None:
    expected = f"Exit code: 1\nWall time: {shown} seconds\nOutput:\nx\n"
    assert report.answer(1, seconds, "x\n") == expected
