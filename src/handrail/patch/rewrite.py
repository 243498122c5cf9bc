"""One file's text + the chunks of an update -> its new text.  Pure.

Every chunk is located on the original lines, with a cursor that only moves down; then all edits are
made in one pass.  A line the patch keeps stays byte for byte as it is in the file, even when it was
found leniently.  Added lines get the file's first line ending, and so does a last line that had
none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from handrail.errors import PatchError
from handrail.patch.hunks import Chunk, Line, LineKind
from handrail.patch.seek import Haystack, Level

_LINE_ENDING = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The new text, the most lenient level any chunk needed, and whether one was ambiguous."""

    text: str
    level: Level
    ambiguous: bool


class ChunkNotFoundError(PatchError):
    """A chunk was not found in the file.

    ``wanted`` was searched in ``lines`` from the index ``start`` on.
    """

    def __init__(
        self, message: str, *, path: str, lines: Sequence[str], wanted: Sequence[str], start: int
    ) -> None:
        super().__init__(message, path=path)
        self.lines = lines
        self.wanted = wanted
        self.start = start


@dataclass(slots=True)
class _Edit:
    """``removed`` lines from ``position`` on are replaced by ``added``."""

    position: int
    removed: int
    added: list[str]


def rewrite(text: str, chunks: Iterable[Chunk], path: str) -> Rewritten:
    """Apply ``chunks`` to ``text``; ``path`` is for the error.

    Raises ChunkNotFoundError.
    """
    lines, whole, ending = _split(text)
    search = _Search(Haystack(lines), ending, path)
    edits = [edit for chunk in chunks for edit in search.locate(chunk)]
    # Additions without context go to the end while the cursor stays: order is restored here.
    # The sort is stable, so two at one position stay in the order of the patch.
    edits.sort(key=lambda edit: edit.position)
    result: list[str] = []
    done = 0
    for edit in edits:
        result += whole[done : edit.position]
        result += edit.added
        done = edit.position + edit.removed
    result += whole[done:]
    return Rewritten("".join(result), search.level, search.ambiguous)


def _split(text: str) -> tuple[list[str], list[str], str]:
    """The lines without and with their endings, and the ending for new ones."""
    lines: list[str] = []
    whole: list[str] = []
    start = 0
    first = "\n"
    for found in _LINE_ENDING.finditer(text):
        if not lines:
            first = found.group()
        lines.append(text[start : found.start()])
        whole.append(text[start : found.end()])
        start = found.end()
    if start < len(text):
        lines.append(text[start:])
        whole.append(text[start:] + first)
    return lines, whole, first


class _Search:
    """The cursor that walks down one file, and what was noticed on the way."""

    def __init__(self, haystack: Haystack, ending: str, path: str) -> None:
        self.level = Level.EXACT
        self.ambiguous = False
        self._haystack = haystack
        self._ending = ending
        self._path = path
        self._cursor = 0

    def locate(self, chunk: Chunk) -> list[_Edit]:
        """Find ``chunk``, move the cursor behind it, return its edits."""
        if chunk.context is not None:
            self._skip_to(chunk.context)
        old = chunk.old
        if not old:
            return self._edits(chunk.lines, len(self._haystack), 0)
        start = self._cursor
        position = self._find(old, at_end=chunk.end_of_file, pinned=chunk.context is not None)
        length = len(old)
        if position is None and not old[-1]:
            # Models often write the end of the file as one more empty line.
            length -= 1
            position = self._find(old[:length], at_end=chunk.end_of_file, pinned=True)
        if position is None:
            sentence = f"Failed to find expected lines in {self._path}:\n" + "\n".join(old)
            raise self._not_found(sentence, old, start)
        self._cursor = position + length
        lines = chunk.lines
        if length < len(old) and chunk.new[-1:] == ("",):
            last = max(i for i, line in enumerate(lines) if line.kind is not LineKind.REMOVE)
            lines = lines[:last] + lines[last + 1 :]
        return self._edits(lines, position, length)

    def _skip_to(self, context: str) -> None:
        position = self._find((context,), at_end=False, pinned=True)
        if position is None:
            sentence = f"Failed to find context '{context}' in {self._path}"
            raise self._not_found(sentence, (context,), self._cursor)
        self._cursor = position + 1

    def _find(self, block: tuple[str, ...], *, at_end: bool, pinned: bool) -> int | None:
        match = self._haystack.find(block, self._cursor, at_end=at_end)
        if match is None:
            return None
        self.level = max(self.level, match.level)
        self.ambiguous = self.ambiguous or (match.ambiguous and not pinned)
        return match.position

    def _not_found(self, sentence: str, wanted: Sequence[str], start: int) -> ChunkNotFoundError:
        lines = self._haystack.lines
        return ChunkNotFoundError(
            sentence, path=self._path, lines=lines, wanted=wanted, start=start
        )

    def _edits(self, lines: Iterable[Line], position: int, length: int) -> list[_Edit]:
        """One edit per run of lines that are not kept; ``length`` lines of the file are meant.

        What exceeds that is the dropped empty line: it is not there to be removed, and has to be
        added if it is to be kept.
        """
        edits: list[_Edit] = []
        end = position + length
        kept = True
        for line in lines:
            in_file = line.kind is not LineKind.ADD and position < end
            if in_file and line.kind is LineKind.KEEP:
                position += 1
                kept = True
                continue
            if kept:
                edits.append(_Edit(position, 0, []))
                kept = False
            if in_file:
                edits[-1].removed += 1
                position += 1
            elif line.kind is not LineKind.REMOVE:
                edits[-1].added.append(line.text + self._ending)
        return edits
