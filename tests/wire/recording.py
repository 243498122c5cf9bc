"""What one connection received, and how to find something in it.  Pure.

A selector is a short text: ``resp:3`` (the answer to request 3), ``out:p``, ``exited:p`` and
``closed:p`` (the first such notification of process p), ``text:p:needle`` (its output holds a
text), ``note:METHOD``, ``done:r`` (the last piece of an HTTP body), ``malformed:2`` (the second
complaint about a message without a usable id), ``eof``.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
#: The id of answers to messages whose own id could not be read.
NO_ID = -1


@dataclass
class Recording:
    """The messages of one connection in their order."""

    messages: list[Message] = field(default_factory=list)
    #: When each came, in seconds of a monotonic clock.
    times: list[float] = field(default_factory=list)
    closed: bool = False
    #: Status and body, where the upgrade was refused.
    rejected: tuple[int, str] | None = None

    def find(self, selector: str) -> int | None:
        """The position of the first message a selector means; None if there is none yet."""
        kind, _, argument = selector.partition(":")
        if kind == "eof":
            return len(self.messages) if self.closed else None
        if kind == "text":
            process, _, needle = argument.partition(":")
            written = b"".join(self.output(process).values())
            return len(self.messages) if needle.encode() in written else None
        if kind == "malformed":
            return self.find_complaint(int(argument))
        for i, message in enumerate(self.messages):
            if selects(kind, argument, message):
                return i
        return None

    def find_complaint(self, count: int) -> int | None:
        """The position of the answer without an id that has this number."""
        found = [i for i, m in enumerate(self.messages) if is_response(m) and m["id"] == NO_ID]
        return found[count - 1] if len(found) >= count else None

    def response(self, request_id: Any) -> Message | None:
        """The answer to a request."""
        at = self.find(f"resp:{request_id}")
        return None if at is None else self.messages[at]

    def notes(self, process: str, kind: str = "") -> list[Message]:
        """The params of a process's notifications, of one kind or all."""
        return [m["params"] for m in self.messages if is_note(m, process, kind)]

    def output(self, process: str) -> dict[str, bytes]:
        """What a process wrote, by stream."""
        return joined(self.notes(process, "output"))


def selects(kind: str, argument: str, message: Message) -> bool:
    """Is this message the one that is looked for?"""
    method = message.get("method")
    params = message.get("params")
    if kind == "resp":
        return is_response(message) and str(message["id"]) == argument
    if kind == "note":
        return method == argument
    if not isinstance(params, dict):
        return False
    if kind == "done":
        delta = method == "http/request/bodyDelta" and params.get("requestId") == argument
        return delta and bool(params.get("done"))
    methods = {
        "out": "process/output",
        "exited": "process/exited",
        "closed": "process/closed",
    }
    return method == methods.get(kind, "") and params.get("processId") == argument


def is_response(message: Message) -> bool:
    """An answer, good or bad."""
    return "id" in message and "method" not in message


def is_note(message: Message, process: str, kind: str = "") -> bool:
    """A notification about a process, of one kind or any."""
    method = str(message.get("method", ""))
    fits = method == f"process/{kind}" if kind else method.startswith("process/")
    return fits and message.get("params", {}).get("processId") == process


def joined(chunks: Iterable[Message]) -> dict[str, bytes]:
    """Chunks put together by stream, so that their boundaries never matter."""
    streams: dict[str, bytes] = {}
    for chunk in chunks:
        data = base64.b64decode(chunk["chunk"])
        streams[chunk["stream"]] = streams.get(chunk["stream"], b"") + data
    return streams


def readable(data: bytes) -> Any:
    """Bytes as cases write them: text, or base64 where they are none."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
