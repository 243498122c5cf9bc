"""What a task is, and what came of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.interop.answers import Answer
from tests.interop.codex import MODEL, Turn
from tests.interop.model import Model
from tests.interop.recorder import Cut
from tests.interop.recording import Recording
from tests.interop.script import Place, Script, Step

#: What a task may need beyond running commands.
FILES = "files"
HTTP = "http"
SANDBOX = "sandbox"
#: Stands in a task's configuration for the address of the tool server over HTTP.
TOOL_URL = "@TOOL_URL@"


@dataclass(frozen=True)
class Task:
    """Steps for the model, and what must come of them."""

    name: str
    steps: tuple[Step, ...]
    check: Callable[[Outcome], None]
    needs: frozenset[str] = frozenset()
    #: What the workspace holds before.
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    #: Symbolic links of the workspace, by what they point to.
    links: Mapping[str, str] = field(default_factory=dict)
    sandbox: str = "danger-full-access"
    #: Where the line is cut; such tasks are for WebSocket only.
    cuts: tuple[Cut, ...] = ()
    #: More of the client's configuration.
    config: str = ""
    model: Mapping[str, Any] = field(default_factory=lambda: MODEL)
    #: Seconds.
    limit: float = 60.0


@dataclass(frozen=True)
class Outcome:
    """Everything there is to look at after a task."""

    script: Script
    model: Model
    turn: Turn
    recording: Recording
    workspace: Path
    #: A directory beside the workspace that nothing may be written to.
    outside: Path
    #: ``ws`` or ``stdio``.
    transport: str
    #: Of FILES, HTTP and SANDBOX, what the server can do.
    offers: frozenset[str]

    def answer(self, step: int, call: int = 0) -> Answer:
        """The only answer to a call."""
        found = [a for a in self.script.answers if (a.step, a.call) == (step, call)]
        assert len(found) == 1, found
        return found[0]

    def printed(self, process: int | Place) -> str:
        """All the output of a process, over all the calls that were about it."""
        return "".join(answer.output for answer in self.script.about(process))

    def exit_code(self, process: int | Place) -> int | None:
        """How a process ended."""
        return self.script.about(process)[-1].exit_code

    def ran(self, step: int, output: str, exit_code: int = 0) -> None:
        """Assert that a command ended in one call, so and so."""
        answer = self.answer(step)
        assert (answer.exit_code, answer.output) == (exit_code, output), answer.text
