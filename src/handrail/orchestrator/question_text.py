"""The lines of a question, the same at a terminal and in a form.  Pure.

Each field is one line, and a caller's text cannot begin another one: characters that move,
hide or reverse text are shown as escapes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from handrail.orchestrator.approvals import Choice, Question

OUTSIDE = "this runs outside the sandbox: it can read and change whatever you can"
OUTSIDE_PATCH = "this writes outside the sandbox"
MODEL_SAYS = "the model says:"
#: The longest part of the model's text that is shown: a longer one would scroll the rest away.
_WORDS_LIMIT = 1000
#: Printable according to Unicode, and yet invisible, or they change the look of the text before
#: them.
_INVISIBLE = frozenset(
    {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, 0x1D159}
    | set(range(0x180B, 0x1810))
    | set(range(0xFE00, 0xFE10))
    | set(range(0xE0100, 0xE01F0))
)
_BLANKS = re.compile(" {12,}")
#: As many marks on one letter as languages have.
_MOST_MARKS = 3
#: Of a network question, where they mean something else.
_HOST_CHOICES = {
    Choice.APPROVE: "yes, for this command",
    Choice.APPROVE_FOR_SESSION: "yes, and for this session: {place}",
}
_CHOICES = {
    Choice.APPROVE: "yes, this once",
    Choice.APPROVE_FOR_SESSION: "yes, and the same {what} for this session",
    Choice.APPROVE_WITH_RULE: "yes, and always{outside} for commands that start with {prefix}",
    Choice.GRANT_AND_RERUN: "open just this and run it again in the sandbox: {grant}",
    Choice.HOST_RULE: "yes, and always: {allow_rule}",
    Choice.DENY: "no, go on without it",
    Choice.DENY_FOR_SESSION: "no, and not again in this session",
    Choice.HOST_DENY_RULE: "never: {deny_rule}",
    Choice.ABORT: "no, and stop",
}


def visible(text: str) -> str:
    """``text`` as one line in which every character can be seen."""
    shown = "".join(
        char if char.isprintable() and ord(char) not in _INVISIBLE else _escaped(char)
        for char in text
    )
    if not shown.isascii():
        shown = _without_piles(shown)
    # Where a terminal breaks a line, a run of blanks looks like a new one.
    return _BLANKS.sub(lambda run: f"\\x20{{{len(run[0])}}}", shown)


def _without_piles(text: str) -> str:
    """``text`` with few marks on one character: a pile of them covers the lines around it."""
    import unicodedata  # not needed for most questions

    shown, marks = [], 0
    for char in text:
        marks = marks + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        shown.append(char if marks <= _MOST_MARKS else _escaped(char))
    return "".join(shown)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


def command_line(words: Iterable[str]) -> str:
    """A command, quoted for a shell."""
    return visible(shlex.join(words))


def facts(question: Question) -> list[str]:
    """The facts besides the command and ``effects``."""
    lines = [] if question.host is None else [_connection(question, question.host)]
    if question.justification:
        # Runs of blanks would look like a new line where a terminal wraps.
        words = visible(" ".join(question.justification.split()))
        cut = words if len(words) <= _WORDS_LIMIT else words[:_WORDS_LIMIT] + "…"
        lines.append(f"{MODEL_SAYS} {cut}")
    if question.reason:
        lines.append(visible(question.reason))
    lines += [f"note: {visible(note)}" for note in question.notes]
    return lines


def effects(question: Question) -> list[str]:
    """What a yes opens beyond the sandbox of the settings; may be empty."""
    wants = question.wants
    lines = [f"may read {visible(path)}" for path in wants.read]
    lines += [f"may write {visible(path)}" for path in wants.write]
    if wants.network:
        lines.append("may use the network")
    if question.outside:
        lines.append(OUTSIDE_PATCH if question.paths else OUTSIDE)
    return lines


def choice_text(choice: Choice, question: Question) -> str:
    """The meaning of an answer, in one line."""
    prefix = question.proposed_prefix
    outside = " outside the sandbox" if question.outside else ""
    texts = _CHOICES if question.host is None else _CHOICES | _HOST_CHOICES
    allow_rule, deny_rule = question.host_rules or ("this host", "this host")
    text = texts[choice].format(
        place="" if question.host is None else visible("{1}:{2}".format(*question.host)),
        allow_rule=visible(allow_rule),
        deny_rule=visible(deny_rule),
        what="files" if question.paths else "command",
        outside=outside,
        prefix=f"`{command_line(prefix)}`" if prefix else "this",
        grant=visible(question.grant or "it"),
    )
    if choice is Choice.APPROVE_FOR_SESSION:
        text += outside
    return text


def _connection(question: Question, host: tuple[str, str, int]) -> str:
    """Where a command wants to connect to, by which method and program."""
    line = f"connects to {_place(host)}"
    line += f" ({visible(question.method)})" if question.method else ""
    if question.program:
        line += f", by {visible(question.program)}"
    return line + (f" (pid {question.pid})" if question.pid else "")


def _place(host: tuple[str, str, int]) -> str:
    protocol, name, port = host
    return visible(f"{protocol}://{name}:{port}")
