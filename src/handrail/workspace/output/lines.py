"""Splits the output of a process into lines, in blocks.  Pure."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from itertools import repeat

import msgspec

from handrail.executor.base import OutputEvent, OutputKind


# Made in C, a million times for a million lines: a named tuple takes three times as long.
class Line(msgspec.Struct, frozen=True, gc=False):
    """One line of output, without its end (``\\n`` or ``\\r\\n``); ``stream, text = line`` works.

    ``stream`` is ``stdout`` or ``stderr``; all of a terminal's is ``stdout``.  It is ``gap`` for a
    line that stands for output that was not kept, and ``text`` says how much.
    """

    stream: str
    text: str

    def __iter__(self) -> Iterator[str]:
        return iter((self.stream, self.text))


class LineBlock:
    """Consecutive lines of one stream; made into ``Line`` objects when they are iterated over."""

    __slots__ = ("_stream", "_texts")

    def __init__(self, stream: str, texts: list[str]) -> None:
        self._stream = stream
        self._texts = texts

    def __iter__(self) -> Iterator[Line]:
        return map(Line, repeat(self._stream), self._texts)


class LineSplitter:
    """Collects output and gives whole lines; each stream has its own unfinished line."""

    def __init__(self) -> None:
        self._decoders = {
            kind: codecs.getincrementaldecoder("utf-8")("replace") for kind in OutputKind
        }
        self._unfinished: dict[OutputKind, list[str]] = {kind: [] for kind in OutputKind}

    def add(self, event: OutputEvent) -> list[LineBlock]:
        """The lines that this piece finishes."""
        blocks = []
        if event.omitted:
            note = f"[{event.omitted} bytes of output were not kept]"
            blocks += [*self.end(), LineBlock("gap", [note])]
        text = self._decoders[event.kind].decode(event.data)
        unfinished = self._unfinished[event.kind]
        found = text.split("\n")
        if len(found) == 1:
            unfinished.append(text)  # joined when it ends: a long line comes in many pieces
            return blocks
        if unfinished:
            found[0] = "".join((*unfinished, found[0]))
            unfinished.clear()
        if last := found.pop():
            unfinished.append(last)
        if "\r" in text or found[0].endswith("\r"):
            found = [line.removesuffix("\r") for line in found]
        blocks.append(LineBlock(event.kind.value, found))
        return blocks

    def end(self) -> Iterator[LineBlock]:
        """The unfinished lines: nothing more comes to them."""
        for kind, unfinished in self._unfinished.items():
            unfinished.append(self._decoders[kind].decode(b"", final=True))
            text = "".join(unfinished)
            unfinished.clear()
            if text:
                yield LineBlock(kind.value, [text])
