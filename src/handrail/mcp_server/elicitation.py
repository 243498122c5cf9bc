"""Questions as forms that a host shows, and the filled-in form as an answer.  Pure.

They are sent by ``server.HostChannel``, to a host that can be asked; what holds where none can be:
``call_approvals.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from handrail.orchestrator.approvals import Answer, Choice, Question
from handrail.orchestrator.question_text import choice_text, command_line, effects, facts, visible

#: The required field, and the optional one.
DECISION, COMMENT = "decision", "comment"


def message(question: Question) -> str:
    """The text of a question: one line for each fact, none that the caller could write."""
    lines = [f"Run `{command_line(question.argv)}` in {visible(question.cwd)}?"]
    if question.host is not None:
        _, host, port = question.host
        lines = [f"Let a command connect to {visible(host)}, port {port}?", *_command(question)]
    if question.paths:
        lines = ["Change these files?", *(f"- {visible(path)}" for path in question.paths)]
    # What a yes does comes first: a host may cut a long message at its end.
    return "\n".join([*effects(question), *lines, *facts(question)])


def _command(question: Question) -> list[str]:
    return [f"It is `{command_line(question.argv)}` in {visible(question.cwd)}"]


def schema(question: Question) -> dict[str, Any]:
    """The form: one choice, and a text for the model."""
    values = [choice.value for choice in question.choices]
    return {
        "type": "object",
        "properties": {
            DECISION: {
                "type": "string",
                "title": "Decision",
                "description": "; ".join(
                    f"{choice.value}: {choice_text(choice, question)}"
                    for choice in question.choices
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
    """Read a filled-in form; anything that is no clear yes is a no."""
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
