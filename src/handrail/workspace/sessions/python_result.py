"""What a piece of code printed, showed and raised in a Python session.  Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from handrail.name_hints import NamesChecked
from handrail.secret_masks import Masker, Secrets
from handrail.workspace.output.kept_output import KeptOutput

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class CodeError(NamesChecked):
    """An exception that code raised: its class's name, its text and its traceback."""

    name: str
    message: str
    traceback: str


@dataclass(frozen=True, slots=True)
class PythonResult(NamesChecked):
    """The result of a piece of code.

    ``text`` is the ``repr`` of its last expression; None: it has none.  ``results`` has everything
    it showed, in order, each by MIME type: text, JSON as objects, pictures as bytes, and as text
    when they are no base64.  ``error`` is what it raised.  ``duration`` is in seconds, ``omitted``
    counts bytes of stdout, stderr and results that were not kept; without the result of the last
    expression ``text`` is None.  ``restarted``: it did not end at its timeout, and the kernel began
    anew.
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


class MaskedOutput:
    """The first and the last half of ``limit`` bytes of a stream, with the secrets masked."""

    def __init__(self, limit: int | None, secrets: Secrets) -> None:
        self._kept = KeptOutput(limit)
        self._masker = Masker(secrets)

    def add(self, data: bytes) -> None:
        """Add the next piece."""
        self._kept.add(self._masker.feed(data))

    def take(self) -> tuple[str, int]:
        """The text that is kept, and how many bytes were not."""
        self._kept.add(self._masker.finish())
        return self._kept.take().decode("utf-8", "replace"), self._kept.omitted


class Collecting:
    """Gathers the events of one piece of code; no secret is in what it gives."""

    def __init__(self, max_output: int | None, secrets: Secrets) -> None:
        self._secrets = secrets
        self._out = MaskedOutput(max_output, secrets)
        self._err = MaskedOutput(max_output, secrets)
        self._room = max_output
        self._text: str | None = None
        self._results: list[Mapping[str, Any]] = []
        self.error: CodeError | None = None
        #: Bytes of events that were not kept.
        self.omitted = 0

    def add(self, event: Mapping[str, Any], size: int) -> None:
        """Take one event of the driver, of ``size`` bytes.

        Raises LookupError, TypeError or AttributeError for one that is not of its form, and
        RecursionError.
        """
        match event["event"]:
            case "stream":
                stream = self._err if event["stream"] == "stderr" else self._out
                stream.add(event["text"].encode("utf-8", "replace"))
            case "result" if self._room is not None and size > self._room:
                self.omitted += size
            case "result":
                self._room = None if self._room is None else self._room - size
                data = {mime: _value(mime, value) for mime, value in event["data"].items()}
                shown = self._secrets.masked_value(data)
                self._results.append(shown)
                if event["last"]:
                    self._text = shown.get("text/plain")
            case "error":
                lines = _COLOURS.sub("", "\n".join(event["traceback"]))
                texts = (event["ename"], event["evalue"], lines)
                self.error = CodeError(*map(self._secrets.masked_text, texts))

    def result(self, duration: float, *, timed_out: bool, restarted: bool) -> PythonResult:
        """Everything that the code has printed, shown and raised."""
        (out, out_omitted), (err, err_omitted) = self._out.take(), self._err.take()
        return PythonResult(
            out,
            err,
            self._text,
            tuple(self._results),
            self.error,
            timed_out,
            duration,
            out_omitted + err_omitted + self.omitted,
            restarted,
        )


def _value(mime: str, value: Any) -> Any:
    binary = mime.startswith("image/") and mime != "image/svg+xml"
    if isinstance(value, str) and (binary or mime == "application/pdf"):
        try:
            return base64.b64decode(value)
        except ValueError:
            return value  # code can show any text as a picture
    return value
