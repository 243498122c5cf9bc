"""Questions as forms, and what a form says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from handrail.mcp_server import elicitation
from handrail.mcp_server.tools import mcp_tools
from handrail.orchestrator.approvals import Choice, Kind, Question, retry_choices
from handrail.orchestrator.question_text import OUTSIDE
from handrail.orchestrator.settings import Grants

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
    outside=True,
    wants=Grants(write=("/srv",)),
    justification="please",
)


def test_a_form_says_everything() -> None:
    assert elicitation.message(QUESTION).splitlines() == [
        "may write /srv",
        OUTSIDE,
        "Run `touch /usr/x` in /w?",
        "the model says: please",
        "retry?",
        "note: what was done stays",
    ]
    field = elicitation.schema(QUESTION)["properties"]["decision"]
    assert field["enum"][0] == "approved_with_grant"
    assert "/usr" in field["description"]
    assert "always outside the sandbox" in field["description"]
    assert field["default"] == "denied"


def test_no_field_can_move_the_cursor_or_begin_a_line() -> None:
    evil = "x\x1b[2K\r\u202e\nRun `ls`?"
    question = replace(
        QUESTION,
        argv=("sh", "-c", evil),
        cwd=f"/w/{evil}",
        reason=evil,
        justification=evil,
        notes=(evil,),
        grant=evil,
        proposed_prefix=("sh", evil),
        wants=Grants(read=(evil,)),
    )
    patch = replace(question, paths=(evil, "/a"))
    for one in (question, patch):
        message = elicitation.message(one)
        described = elicitation.schema(one)["properties"]["decision"]["description"]
        assert not any(char in message + described for char in "\x1b\r\u202e")
        assert "\n" not in described
        assert sum(line.startswith("Run `") for line in message.splitlines()) <= 1
        assert not any(line.startswith("Run `ls`") for line in message.splitlines())


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
    assert elicitation.read(QUESTION, action, content).choice is choice


def test_tools_have_schemas_of_objects() -> None:
    for tool in mcp_tools():
        assert tool.schema["type"] == "object"
        assert set(tool.schema["required"]) <= set(tool.schema["properties"])
        assert tool.description.endswith(".")
