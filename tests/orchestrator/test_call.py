"""What a call may ask of the sandbox, and how it is told that it may not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from handrail.errors import UsageError
from handrail.orchestrator.call import MOST_PATHS, Request, read_grants, read_request
from handrail.orchestrator.settings import Grants, Settings
from handrail.policy.context import Approval

ON = Settings("/w", additional_permissions=True)
WRITE = {"file_system": {"write": ["out", "/data/../x"]}}


def test_nothing_asked() -> None:
    assert read_request(ON, "/w", None, None, None) == (Request.USE_DEFAULT, Grants())


def test_paths_are_made_absolute_and_plain() -> None:
    request, wants = read_request(ON, "/w", "with_additional_permissions", "why", WRITE)
    assert request is Request.WITH_ADDITIONAL
    assert wants == Grants(write=("/w/out", "/x"))


@pytest.mark.parametrize(
    ("settings", "wanted", "justification", "given", "says"),
    [
        (ON, None, "why", None, "justification"),
        (ON, "all", None, None, "use_default"),
        (ON, None, None, WRITE, "with_additional_permissions"),
        (ON, "require_escalated", None, WRITE, "with_additional_permissions"),
        (ON, "with_additional_permissions", None, None, "what is wanted"),
        (ON, "with_additional_permissions", None, {}, "what is wanted"),
        (ON, "with_additional_permissions", None, {"file_system": {"write": "x"}}, "lists"),
        (Settings("/w"), "with_additional_permissions", None, WRITE, "additional_permissions"),
        (
            Settings("/w", Approval.UNTRUSTED, additional_permissions=True),
            "with_additional_permissions",
            None,
            WRITE,
            "on-request",
        ),
    ],
)
def test_mistakes_are_told(
    settings: Settings,
    wanted: str | None,
    justification: str | None,
    given: Mapping[str, object] | None,
    says: str,
) -> None:
    with pytest.raises(UsageError, match=says):
        read_request(settings, "/w", wanted, justification, given)


def test_more_paths_than_a_person_reads_are_refused() -> None:
    many = [f"/a/{number}" for number in range(MOST_PATHS)]
    assert len(read_grants({"file_system": {"write": many}}, "/w").write) == MOST_PATHS
    for given in ([*many, "/b"], ["/" + "x" * 9000]):
        with pytest.raises(UsageError, match="ask for a directory"):
            read_grants({"file_system": {"write": given}}, "/w")
