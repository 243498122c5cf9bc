"""Answers for a model.  Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from handrail.name_hints import AttributesChecked
from handrail.unified_exec.tools import ExecAnswer, OutputRange

_OUTPUT = "\nOutput:\n"


@dataclass(frozen=True, slots=True)
class ToolAnswer(AttributesChecked):
    """The answer to a tool call; ``aborted``: the approver wants the turn to stop."""

    text: str
    ok: bool = True
    aborted: bool = False
    answer: ExecAnswer | None = None

    def __str__(self) -> str:
        return self.text


def with_note(answer: ExecAnswer, note: str) -> ExecAnswer:
    """The answer with one more note."""
    head, mark, output = answer.text.partition(_OUTPUT)
    text = f"{head}\nNote: {note}{mark}{output}"
    return replace(answer, text=text, notes=(*answer.notes, note))


def with_hosts(answer: ExecAnswer, sentences: tuple[str, ...]) -> ExecAnswer:
    """The answer with sentences behind its output, after an empty line."""
    if not sentences:
        return answer
    text = answer.text.rstrip("\n")
    text = "\n".join([text, *([] if text.endswith("Output:") else [""]), *sentences])
    return replace(answer, text=text, notes=(*answer.notes, *sentences))


def range_text(found: OutputRange) -> str:
    """A range of a transcript, as a model reads it."""
    end = found.offset + len(found.data)
    head = f"Bytes {found.offset} to {end} of {found.total}"
    if found.missing:
        head += f" ({found.missing} before them are not kept any more)"
    return head + _OUTPUT + found.data.decode("utf-8", "replace")
