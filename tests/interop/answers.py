"""What the client hands back to the model for one tool call, taken apart.  Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_EXITED = re.compile(r"^Process exited with code (-?\d+)$", re.MULTILINE)
_RUNNING = re.compile(r"^Process running with session ID (\d+)$", re.MULTILINE)
_TOKENS = re.compile(r"^Original token count: (\d+)$", re.MULTILINE)
_OUTPUT = "Output:\n"


@dataclass(frozen=True)
class Answer:
    """One tool call and the text that came back for it."""

    #: Which call of which step of the script it belongs to.
    step: int
    call: int
    tool: str
    text: str

    @property
    def head(self) -> str:
        """The lines before the output."""
        return self.text.partition(_OUTPUT)[0]

    @property
    def output(self) -> str:
        """What the command printed, as the client gives it."""
        return self.text.partition(_OUTPUT)[2]

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs, and for calls that failed."""
        return _number(_EXITED, self.head)

    @property
    def session(self) -> int | None:
        """The number to write to it by; None when it has ended."""
        return _number(_RUNNING, self.head)

    @property
    def tokens(self) -> int | None:
        """A quarter of the bytes the client saw, before it left any out."""
        return _number(_TOKENS, self.head)


def text_of(output: object) -> str:
    """The text of an output, which is a string or a list of content items."""
    if isinstance(output, str):
        return output
    assert isinstance(output, list), output
    return "".join(item.get("text", "") for item in output)


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(found[1]) if found else None
