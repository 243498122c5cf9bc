"""What client and server said to each other, in order.  Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
#: Longer texts are cut in reports; of paths it is the end that tells something.
LONGEST_TEXT = 60
HEAD = 15


@dataclass(frozen=True)
class Frame:
    """One message on the wire."""

    #: Which connection of the client, counted from 0.
    connection: int
    from_client: bool
    message: Message
    #: Seconds since the recording began.
    at: float

    @property
    def method(self) -> str | None:
        """Of a request or a notification."""
        return self.message.get("method")


@dataclass(frozen=True)
class Exchange:
    """A request and what came back for it; nothing if the line was cut before."""

    connection: int
    method: str
    params: Any
    reply: Message | None
    at: float
    seconds: float | None

    @property
    def error(self) -> Message | None:
        """The error it was answered with."""
        return self.reply.get("error") if self.reply else None

    @property
    def result(self) -> Any:
        """The result it was answered with."""
        return self.reply.get("result") if self.reply else None


@dataclass
class Recording:
    """Every frame of every connection."""

    frames: list[Frame] = field(default_factory=list)

    def requests(self, *methods: str) -> list[Exchange]:
        """The client's requests in their order; of some methods or of all."""
        return [
            self._exchange(frame)
            for frame in self.frames
            if frame.from_client and "id" in frame.message and wanted(frame, methods)
        ]

    def unanswered(self) -> dict[str, list[Exchange]]:
        """By method: requests that the server said it does not offer."""
        found: dict[str, list[Exchange]] = {}
        for exchange in self.requests():
            if exchange.error and exchange.error["code"] == -32601:
                found.setdefault(exchange.method, []).append(exchange)
        return found

    def notes(self, *methods: str, from_client: bool = False) -> list[Message]:
        """The params of one side's notifications."""
        return [
            frame.message.get("params")
            for frame in self.frames
            if frame.from_client is from_client
            and "id" not in frame.message
            and wanted(frame, methods)
        ]

    def order(self) -> list[str]:
        """What the client sent, by method, in order."""
        return [f.method for f in self.frames if f.from_client and f.method is not None]

    def report(self) -> Iterator[str]:
        """One line for each request: when, method, params, reply, all shortened."""
        for e in self.requests():
            took = "never" if e.seconds is None else f"{e.seconds * 1000:.0f} ms"
            reply = "-" if e.reply is None else short(e.error or e.result)
            yield f"{e.connection} {e.at:7.3f} {e.method} {short(e.params)} -> {reply} ({took})"

    def _exchange(self, asked: Frame) -> Exchange:
        reply = next((f for f in self.frames if answers(f, asked)), None)
        return Exchange(
            connection=asked.connection,
            method=asked.message["method"],
            params=asked.message.get("params"),
            reply=reply.message if reply else None,
            at=asked.at,
            seconds=reply.at - asked.at if reply else None,
        )


def wanted(frame: Frame, methods: tuple[str, ...]) -> bool:
    """Whether it is a call of one of the methods; of any, if none is named."""
    return frame.method is not None and (not methods or frame.method in methods)


def answers(frame: Frame, asked: Frame) -> bool:
    """Whether one frame is the reply to another."""
    return (
        not frame.from_client
        and frame.connection == asked.connection
        and frame.method is None
        and frame.message.get("id") == asked.message["id"]
    )


def short(value: Any) -> Any:
    """A value with the middle of its long texts cut out."""
    if isinstance(value, dict):
        return {key: short(member) for key, member in value.items()}
    if isinstance(value, list):
        return [short(member) for member in value]
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        return f"{value[:HEAD]}…{value[HEAD - LONGEST_TEXT :]}"
    return value


def load(lines: Iterable[str]) -> Recording:
    """A recording from the log of ``stdio_tap``; a last line may be unfinished."""
    frames = []
    for line in lines:
        if line.endswith("\n"):
            entry = json.loads(line)
            frames.append(Frame(0, entry["from_client"], entry["message"], entry["at"]))
    return Recording(frames)
