"""What a piece of code printed, showed and raised in a Python session.  Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from handrail.workspace.marked_output import KeptOutput

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class CodeError:
    """An exception that code raised: its class's name, its text and its traceback."""

    name: str
    message: str
    traceback: str


@dataclass(frozen=True, slots=True)
class PythonResult:
    """The result of a piece of code.

    ``text`` is the ``repr`` of its last expression; None: it has none.  ``results`` has everything
    it showed, in order, each by MIME type: text, JSON as objects, pictures as bytes.  ``error`` is
    what it raised.  ``duration`` is in seconds, ``omitted`` counts bytes of stdout and stderr that
    were not kept.  ``restarted``: it did not end at its timeout, and the kernel began anew.
    """

    stdout: str
    stderr: str
    text: str | None
    results: tuple[Mapping[str, Any], ...]
    error: CodeError | None
    timed_out: bool
    duration: float
    omitted: int = 0
    restarted: bool = False

    @property
    def ok(self) -> bool:
        """Whether it ended in time and raised nothing."""
        return self.error is None and not self.timed_out


class Collecting:
    """Gathers the events of one piece of code."""

    def __init__(self, max_output: int | None) -> None:
        self._streams = {"stdout": KeptOutput(max_output), "stderr": KeptOutput(max_output)}
        self._text: str | None = None
        self._results: list[Mapping[str, Any]] = []
        self.error: CodeError | None = None

    def add(self, event: Mapping[str, Any]) -> None:
        """Take one event of the driver."""
        match event["event"]:
            case "stream":
                self._streams[event["stream"]].add(event["text"].encode("utf-8", "replace"))
            case "result":
                self._results.append({mime: _value(mime, v) for mime, v in event["data"].items()})
                if event["last"]:
                    self._text = event["data"].get("text/plain")
            case "error":
                lines = _COLOURS.sub("", "\n".join(event["traceback"]))
                self.error = CodeError(event["ename"], event["evalue"], lines)

    def result(self, duration: float, *, timed_out: bool, restarted: bool) -> PythonResult:
        """All of it."""
        out, err = self._streams["stdout"], self._streams["stderr"]
        texts = out.take().decode("utf-8", "replace"), err.take().decode("utf-8", "replace")
        return PythonResult(
            *texts,
            self._text,
            tuple(self._results),
            self.error,
            timed_out,
            duration,
            out.omitted + err.omitted,
            restarted,
        )


def _value(mime: str, value: Any) -> Any:
    binary = mime.startswith("image/") and mime != "image/svg+xml"
    if isinstance(value, str) and (binary or mime == "application/pdf"):
        return base64.b64decode(value)
    return value
