"""A question as a form that a host shows, and what was filled in as an answer.  Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from handrail.orchestrator.approvals import Answer, Choice, Question

#: The one required field, and the one that may be left empty.
DECISION, COMMENT = "decision", "comment"
_TITLES = {
    Choice.APPROVE: "Yes, this once",
    Choice.APPROVE_FOR_SESSION: "Yes, and the same command for this session",
    Choice.APPROVE_WITH_RULE: "Yes, and always for commands that start with {}",
    Choice.GRANT_AND_RERUN: "Open just {} and run it again in the sandbox",
    Choice.HOST_RULE: "Yes, and always for this host",
    Choice.DENY: "No, go on without it",
    Choice.ABORT: "No, and stop",
}


def message(question: Question) -> str:
    """What is asked, in a few lines."""
    lines = [f"Run `{shlex.join(question.argv)}` in {question.cwd}?"]
    if question.paths:
        lines = [f"Change {', '.join(question.paths)}?"]
    if question.reason:
        lines.append(question.reason)
    lines += question.notes
    return "\n".join(lines)


def schema(question: Question) -> dict[str, Any]:
    """The form: one choice, and a word to the model."""
    values = [choice.value for choice in question.choices]
    return {
        "type": "object",
        "properties": {
            DECISION: {
                "type": "string",
                "title": "Decision",
                "description": "; ".join(
                    f"{choice.value}: {_title(choice, question)}" for choice in question.choices
                ),
                "enum": values,
                "default": Choice.DENY.value,
            },
            COMMENT: {
                "type": "string",
                "title": "Comment",
                "description": "With a no: what the model should do instead",
            },
        },
        "required": [DECISION],
    }


def read(question: Question, action: str, content: Mapping[str, Any] | None) -> Answer:
    """What was answered; anything that is no clear yes is a no."""
    if action == "cancel":
        return Answer(Choice.DENY, "the question was dismissed")
    given = content or {}
    text = given.get(COMMENT)
    comment = text if isinstance(text, str) else ""
    if action != "accept":
        return Answer(Choice.DENY, comment)
    wanted = given.get(DECISION)
    for choice in question.choices:
        if choice.value == wanted:
            return Answer(choice, comment)
    return Answer(Choice.DENY, comment or "the form said nothing")


def _title(choice: Choice, question: Question) -> str:
    title = _TITLES[choice]
    if choice is Choice.APPROVE_WITH_RULE and question.proposed_prefix:
        return title.format(f"`{shlex.join(question.proposed_prefix)}`")
    return title.format(question.grant or "it")
