"""What the scripted model does next, given what it was told so far.  Pure.

A script is a list of steps, and a step is one or more tool calls, or the last word.  The client
sends the whole conversation with every request, so the script reads from it which calls have been
answered and goes on from there: a request that is repeated gets the same reply again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .answers import Answer, text_of

Item = dict[str, Any]
#: A poll that was repeated this often will not end.
MOST_POLLS = 60


class ScriptError(Exception):
    """The client said something the script cannot go on from."""


@dataclass(frozen=True)
class Run:
    """``exec_command``."""

    cmd: str
    tty: bool = False
    yield_ms: int = 10_000
    #: Further arguments, under the names of the tool.
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Write:
    """``write_stdin`` to the process that an earlier step started."""

    to: int
    chars: str
    yield_ms: int = 250


@dataclass(frozen=True)
class Poll:
    """Empty ``write_stdin`` calls, one after the other, until the process has ended.

    With ``until``, until the text has been seen in the answers to this step.
    """

    to: int
    until: str | None = None
    yield_ms: int = 5_000


@dataclass(frozen=True)
class Patch:
    """``apply_patch`` with a text of its own language."""

    text: str


@dataclass(frozen=True)
class Code:
    """``exec`` of the code mode: a script that calls the other tools."""

    source: str


@dataclass(frozen=True)
class Together:
    """Several calls in one reply; the client may run them at the same time."""

    calls: tuple[Run | Patch, ...]


@dataclass(frozen=True)
class Say:
    """The last word."""

    text: str


Call = Run | Write | Poll | Patch | Code
Step = Call | Together


class Script:
    """A conversation, and how far it has come."""

    def __init__(self, steps: Sequence[Step], last_word: str = "done") -> None:
        self.steps = tuple(steps)
        self.last_word = last_word
        #: Every answer, in the order of the calls.
        self.answers: list[Answer] = []
        self.finished = False
        self._asked: dict[str, tuple[int, str]] = {}
        self._known: set[str] = set()

    def reply(self, conversation: Iterable[Item]) -> list[Item]:
        """The items the model says to this conversation."""
        self._listen(conversation)
        step = self._next_step()
        if step == len(self.steps):
            self.finished = True
            return [message(self.last_word)]
        return self._ask(step)

    def of_step(self, step: int) -> list[Answer]:
        """The answers to one step; a poll may have several."""
        return [answer for answer in self.answers if answer.step == step]

    def _listen(self, conversation: Iterable[Item]) -> None:
        """Take down what has been answered since the last time."""
        for item in conversation:
            if item.get("type") not in ("function_call_output", "custom_tool_call_output"):
                continue
            call = item["call_id"]
            if call in self._known:
                continue
            if call not in self._asked:
                raise ScriptError(f"an answer to a call nobody made: {call}")
            self._known.add(call)
            step, tool = self._asked[call]
            self.answers.append(Answer(step, tool, text_of(item["output"])))

    def _next_step(self) -> int:
        if not self._asked:
            return 0
        open_calls = set(self._asked) - self._known
        if open_calls:  # the request was repeated
            return min(self._asked[call][0] for call in open_calls)
        last = max(step for step, _ in self._asked.values())
        return last if self._goes_on(last) else last + 1

    def _goes_on(self, step: int) -> bool:
        """Whether a poll has to be repeated."""
        poll = self.steps[step]
        if not isinstance(poll, Poll):
            return False
        answers = self.of_step(step)
        if answers[-1].session is None:
            return False
        if poll.until is not None and poll.until in "".join(a.output for a in answers):
            return False
        if len(answers) >= MOST_POLLS:
            raise ScriptError(f"step {step} was polled {MOST_POLLS} times: {answers[-1].text!r}")
        return True

    def _ask(self, step: int) -> list[Item]:
        wanted = self.steps[step]
        calls = wanted.calls if isinstance(wanted, Together) else (wanted,)
        again = len(self.of_step(step))
        items = []
        for i, call in enumerate(calls):
            name = f"call-{step}-{i}" if again == 0 else f"call-{step}-{again}"
            item = self._item(name, call)
            self._asked[name] = (step, item["name"])
            items.append(item)
        return items

    def _item(self, name: str, call: Call) -> Item:
        if isinstance(call, Run):
            arguments = {"cmd": call.cmd, "yield_time_ms": call.yield_ms, **call.more}
            if call.tty:
                arguments["tty"] = True
            return function_call(name, "exec_command", arguments)
        if isinstance(call, Patch):
            return custom_call(name, "apply_patch", call.text)
        if isinstance(call, Code):
            return custom_call(name, "exec", call.source)
        chars = call.chars if isinstance(call, Write) else ""
        arguments = {"session_id": self._session(call.to), "chars": chars}
        return function_call(name, "write_stdin", {**arguments, "yield_time_ms": call.yield_ms})

    def _session(self, step: int) -> int:
        """The session that a step opened."""
        for answer in self.of_step(step):
            if answer.session is not None:
                return answer.session
        raise ScriptError(f"step {step} left nothing running: {self.of_step(step)}")


def message(text: str) -> Item:
    """A last word, as the Responses API has it."""
    content = [{"type": "output_text", "text": text}]
    return {"type": "message", "role": "assistant", "content": content}


def function_call(call: str, tool: str, arguments: dict[str, Any]) -> Item:
    """A call of a tool that takes JSON."""
    text = json.dumps(arguments)
    return {"type": "function_call", "name": tool, "call_id": call, "arguments": text}


def custom_call(call: str, tool: str, text: str) -> Item:
    """A call of a tool that takes text."""
    return {"type": "custom_tool_call", "name": tool, "call_id": call, "input": text}
