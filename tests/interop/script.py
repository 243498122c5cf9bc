"""What the scripted model does next, given what it was told so far.  Pure.

A script is a list of steps, and a step is one tool call or several at once.  After the last step
comes the last word.  The client sends the whole conversation with every request, so the script
reads from it which calls have been answered and goes on from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.interop.answers import Answer, text_of

Item = dict[str, Any]
#: A call: its step, and which of the calls of that step.
Place = tuple[int, int]

LAST_WORD = "The script has ended."
#: A poll that was repeated this often will not end.
MOST_POLLS = 60


class ScriptError(Exception):
    """The client said something the script cannot go on from."""


@dataclass(frozen=True)
class Run:
    """``exec_command``."""

    cmd: str
    tty: bool = False
    #: The call returns at the end of the command, or after this time while it runs.
    yield_ms: int = 10_000
    #: Off here, on in the client: a profile may be slow, or print something of its own.
    login: bool | None = False
    #: Further arguments, under the names of the tool.
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Write:
    """``write_stdin`` to a process that was started before, named by its step or its place."""

    to: int | Place
    chars: str
    yield_ms: int = 250


@dataclass(frozen=True)
class Poll:
    """Empty ``write_stdin`` calls until the process has ended; none if it has ended already.

    The client lets an empty poll wait for five seconds at least, unless the process ends.
    """

    to: int | Place


@dataclass(frozen=True)
class Patch:
    """``apply_patch``: a tool that takes text, not JSON."""

    text: str


@dataclass(frozen=True)
class Look:
    """``view_image``."""

    path: str


@dataclass(frozen=True)
class Use:
    """A tool of a tool server."""

    server: str
    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Code:
    """``exec`` of the client's code mode: a program that calls the other tools."""

    source: str


@dataclass(frozen=True)
class Together:
    """Several calls in one reply; the client may run them at the same time."""

    calls: tuple[Run | Patch, ...]


Call = Run | Write | Poll | Patch | Look | Use | Code
Step = Call | Together


class Script:
    """A conversation, and how far it has come."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = tuple(steps)
        #: Every answer, in the order of the calls.
        self.answers: list[Answer] = []
        self.finished = False
        self._step = 0
        #: Calls by their name on the wire: those made, and those not answered yet.
        self._made: dict[str, tuple[Place, str]] = {}
        self._open: set[str] = set()

    def reply(self, conversation: Iterable[Item]) -> list[Item]:
        """The items the model says to this conversation."""
        self._listen(conversation)
        if self._open:
            raise ScriptError(f"no answer to {sorted(self._open)}")
        while self._step < len(self.steps):
            step = self.steps[self._step]
            if isinstance(step, Poll) and not self._has_ended(place(step.to)):
                return [self._ask((self._step, 0), step)]
            self._step += 1
            if isinstance(step, Together):
                return [self._ask((self._step - 1, i), call) for i, call in enumerate(step.calls)]
            if not isinstance(step, Poll):
                return [self._ask((self._step - 1, 0), step)]
        self.finished = True
        return [message(LAST_WORD)]

    def about(self, process: int | Place) -> list[Answer]:
        """Everything that was said about one process, in order."""
        calls = set(self._calls_about(place(process)))
        return [answer for answer in self.answers if (answer.step, answer.call) in calls]

    def _calls_about(self, process: Place) -> Iterator[Place]:
        yield process
        for i, step in enumerate(self.steps):
            if isinstance(step, Write | Poll) and place(step.to) == process:
                yield (i, 0)

    def _listen(self, conversation: Iterable[Item]) -> None:
        """Take down what has been answered since the last time."""
        for item in conversation:
            if item.get("type") not in ("function_call_output", "custom_tool_call_output"):
                continue
            name = item["call_id"]
            if name not in self._made:
                raise ScriptError(f"an answer to a call nobody made: {name}")
            if name in self._open:
                self._open.remove(name)
                (step, call), tool = self._made[name]
                self.answers.append(Answer(step, call, tool, text_of(item["output"])))

    def _has_ended(self, process: Place) -> bool:
        about = self.about(process)
        if len(about) > MOST_POLLS:
            raise ScriptError(f"still no end: {about[-1].text!r}")
        return any(answer.session is None for answer in about)

    def _ask(self, at: Place, call: Call) -> Item:
        name = f"call-{len(self._made)}"
        item = self._item(name, call)
        self._made[name] = (at, item["name"])
        self._open.add(name)
        return item

    def _item(self, name: str, call: Call) -> Item:
        match call:
            case Run():
                return function_call(name, "exec_command", arguments(call))
            case Write() | Poll():
                chars, wait = ("", 5_000) if isinstance(call, Poll) else (call.chars, call.yield_ms)
                session = self._session(place(call.to))
                given = {"session_id": session, "chars": chars, "yield_time_ms": wait}
                return function_call(name, "write_stdin", given)
            case Look():
                return function_call(name, "view_image", {"path": call.path})
            case Use():
                called = function_call(name, call.tool, call.arguments)
                return {**called, "namespace": f"mcp__{call.server}"}
            case Patch():
                return custom_call(name, "apply_patch", call.text)
            case Code():
                return custom_call(name, "exec", call.source)

    def _session(self, process: Place) -> int:
        """The number under which the client keeps a process."""
        for answer in self.about(process):
            if answer.session is not None:
                return answer.session
        raise ScriptError(f"nothing was left running: {self.about(process)}")


def place(process: int | Place) -> Place:
    """Where a process was started."""
    return (process, 0) if isinstance(process, int) else process


def arguments(run: Run) -> dict[str, Any]:
    """What ``exec_command`` is called with."""
    given: dict[str, Any] = {"cmd": run.cmd, "yield_time_ms": run.yield_ms}
    if run.tty:
        given["tty"] = True
    if run.login is not None:
        given["login"] = run.login
    return {**given, **run.more}


def message(text: str) -> Item:
    """A last word, as the Responses API has it."""
    content = [{"type": "output_text", "text": text}]
    return {"type": "message", "role": "assistant", "content": content}


def function_call(call: str, tool: str, given: dict[str, Any]) -> Item:
    """A call of a tool that takes JSON."""
    return {"type": "function_call", "name": tool, "call_id": call, "arguments": json.dumps(given)}


def custom_call(call: str, tool: str, text: str) -> Item:
    """A call of a tool that takes text."""
    return {"type": "custom_tool_call", "name": tool, "call_id": call, "input": text}
