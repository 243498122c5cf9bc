"""Splits the output of a process into lines, in blocks.  Pure."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from itertools import repeat
from typing import NamedTuple

from handrail.executor.base import OutputEvent, OutputKind


class Line(NamedTuple):
    """One line of output, without its end (``\\n`` or ``\\r\\n``).

    ``stream`` is ``stdout`` or ``stderr``; all of a terminal's is ``stdout``.  It is ``gap`` for a
    line that stands for output that was not kept, and ``text`` says how much.
    """

    stream: str
    text: str


class LineSplitter:
    """Collects output and gives whole lines; each stream has its own unfinished line."""

    def __init__(self) -> None:
        self._decoders = {
            kind: codecs.getincrementaldecoder("utf-8")("replace") for kind in OutputKind
        }
        self._unfinished: dict[OutputKind, list[str]] = {kind: [] for kind in OutputKind}

    def add(self, event: OutputEvent) -> list[Line]:
        """The lines that this piece finishes."""
        lines = [*self.end(), _gap(event.omitted)] if event.omitted else []
        text = self._decoders[event.kind].decode(event.data)
        unfinished = self._unfinished[event.kind]
        found = text.split("\n")
        if len(found) == 1:
            unfinished.append(text)  # joined when it ends: a long line comes in many pieces
            return lines
        if unfinished:
            found[0] = "".join((*unfinished, found[0]))
            unfinished.clear()
        if last := found.pop():
            unfinished.append(last)
        if "\r" in text or found[0].endswith("\r"):
            found = [line.removesuffix("\r") for line in found]
        lines += _tagged(event.kind.value, found)
        return lines

    def end(self) -> Iterator[Line]:
        """The unfinished lines: nothing more comes to them."""
        for kind, unfinished in self._unfinished.items():
            unfinished.append(self._decoders[kind].decode(b"", final=True))
            text = "".join(unfinished)
            unfinished.clear()
            if text:
                yield Line(kind.value, text)


def _tagged(stream: str, texts: list[str]) -> Iterator[Line]:
    # What ``Line(stream, text)`` does, without a Python call for each of them: half the time.
    return map(tuple.__new__, repeat(Line), zip(repeat(stream), texts, strict=False))


def _gap(omitted: int) -> Line:
    return Line("gap", f"[{omitted} bytes of output were not kept]")
