"""Questions as forms, and what a form says."""

from __future__ import annotations

from typing import Any

import pytest

from handrail.mcp_server import forms
from handrail.mcp_server.tools import mcp_tools
from handrail.orchestrator.approvals import Choice, Kind, Question, retry_choices

QUESTION = Question(
    "c",
    Kind.RETRY,
    ("touch", "/usr/x"),
    "/w",
    retry_choices(free=True, with_grant=True, with_rule=True),
    reason="retry?",
    proposed_prefix=("touch",),
    notes=("what was done stays",),
    grant="/usr",
)


def test_a_form_says_everything() -> None:
    assert forms.message(QUESTION) == ("Run `touch /usr/x` in /w?\nretry?\nwhat was done stays")
    field = forms.schema(QUESTION)["properties"]["decision"]
    assert field["enum"][0] == "approved_with_grant"
    assert "/usr" in field["description"]
    assert field["default"] == "denied"


@pytest.mark.parametrize(
    ("action", "content", "choice"),
    [
        ("accept", {"decision": "approved"}, Choice.APPROVE),
        ("accept", {"decision": "approved_with_grant"}, Choice.GRANT_AND_RERUN),
        ("accept", {"decision": "network_policy_amendment"}, Choice.DENY),
        ("accept", {"decision": 1}, Choice.DENY),
        ("accept", {}, Choice.DENY),
        ("accept", None, Choice.DENY),
        ("decline", {"decision": "approved"}, Choice.DENY),
        ("cancel", None, Choice.DENY),
    ],
)
def test_only_a_clear_yes_is_one(action: str, content: Any, choice: Choice) -> None:
    assert forms.read(QUESTION, action, content).choice is choice


def test_tools_have_schemas_of_objects() -> None:
    for tool in mcp_tools():
        assert tool.schema["type"] == "object"
        assert set(tool.schema["required"]) <= set(tool.schema["properties"])
        assert tool.description.endswith(".")
