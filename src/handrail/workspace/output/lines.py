"""Splits the output of a process into lines, in blocks.  Pure."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import ClassVar

import msgspec

from handrail.executor.base import OutputEvent, OutputKind
from handrail.name_hints import AttributesChecked

#: A line of more characters comes in parts: one without an end must not take all memory.
LONGEST_LINE = 8 * 1024 * 1024


# Made in C, a million times for a million lines: a named tuple takes three times as long.
class Line(AttributesChecked, msgspec.Struct, frozen=True, gc=False):
    """One line of output, without its end (``\\n`` or ``\\r\\n``); ``stream, text = line`` works.

    ``stream`` is ``stdout`` or ``stderr``; all of a terminal's is ``stdout``.  It is ``gap`` for a
    line that stands for output that was not kept, and ``text`` says how much.  ``complete`` is
    false for the parts of a line of more than 8 Mi characters, except the last one.
    """

    stream: str
    text: str
    complete: ClassVar[bool] = True

    def __iter__(self) -> Iterator[str]:
        return iter((self.stream, self.text))


# A field of its own would take 4 ms for a million lines.
class LinePart(Line, frozen=True, gc=False):
    """A part of a long line, which goes on in the next one of its stream."""

    complete: ClassVar[bool] = False


class LineBlock:
    """Consecutive lines of one stream, as one text without the end of the last one.

    It is split when it is iterated over, by the reader: strings that are used as soon as they are
    made are still in the processor's cache, which saves a sixth of the time.
    """

    __slots__ = ("_stream", "_text")

    def __init__(self, stream: str, text: str) -> None:
        self._stream = stream
        self._text = text

    def __iter__(self) -> Iterator[Line]:
        found = self._text.split("\n")
        if "\r" in self._text:
            found = [line.removesuffix("\r") for line in found]
        return map(Line, repeat(self._stream), found)


class LineSplitter:
    """Collects output and gives whole lines; each stream has its own unfinished line."""

    def __init__(self) -> None:
        self._decoders = {
            kind: codecs.getincrementaldecoder("utf-8")("replace") for kind in OutputKind
        }
        self._unfinished: dict[OutputKind, list[str]] = {kind: [] for kind in OutputKind}
        self._length = dict.fromkeys(OutputKind, 0)

    def add(self, event: OutputEvent) -> list[Iterable[Line]]:
        """The lines that this piece finishes."""
        blocks: list[Iterable[Line]] = []
        if event.omitted:
            note = f"[{event.omitted} bytes of output were not kept]"
            blocks += [*self.end(), LineBlock("gap", note)]
        text = self._decoders[event.kind].decode(event.data)
        unfinished = self._unfinished[event.kind]
        end = text.rfind("\n")
        if end < 0:
            unfinished.append(text)  # joined when it ends: a long line comes in many pieces
            self._length[event.kind] += len(text)
            if self._length[event.kind] > LONGEST_LINE:
                blocks.append(self._part(event.kind))
            return blocks
        whole = "".join((*unfinished, text[:end])) if unfinished else text[:end]
        unfinished.clear()
        if last := text[end + 1 :]:
            unfinished.append(last)
        self._length[event.kind] = len(last)
        blocks.append(LineBlock(event.kind.value, whole))
        return blocks

    def _part(self, kind: OutputKind) -> Iterable[Line]:
        """What there is of an unfinished line, which goes on."""
        text = "".join(self._unfinished[kind])
        kept = "\r" if text.endswith("\r") else ""  # it may belong to the end
        self._unfinished[kind] = [kept] if kept else []
        self._length[kind] = len(kept)
        return [LinePart(kind.value, text.removesuffix(kept))]

    def end(self) -> Iterator[Iterable[Line]]:
        """The unfinished lines: nothing more comes to them."""
        for kind, unfinished in self._unfinished.items():
            unfinished.append(self._decoders[kind].decode(b"", final=True))
            text = "".join(unfinished)
            unfinished.clear()
            self._length[kind] = 0
            if text:
                yield [Line(kind.value, text)]
