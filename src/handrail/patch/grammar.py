"""The text form of a patch -> hunks.  Pure; knows no file.

How it works.  The text is trimmed and cut into lines.  The first and the last line must be the
markers; if they are not, one pair of heredoc lines around them is forgiven.  What lies between goes
line by line through a small machine with four states:

  TOP      between hunks: only a header may come
  ADD      after ``*** Add File:``: ``+`` lines, or what may come at TOP
  UPDATE   after ``*** Update File:``: chunks, or an unindented header
  ENDED    after an end marker that was not the last line: blank lines only

Only UPDATE reads a line untrimmed, because a leading blank means «context» there; the others trim
it first.  The very last line is the end marker in any state, indented or not.  The sentences of the
errors are part of the contract: models have learnt them.
"""

from __future__ import annotations

import enum

from handrail.errors import PatchError
from handrail.patch.hunks import AddFile, Chunk, DeleteFile, Hunk, Line, LineKind, Patch, UpdateFile
from handrail.patch.white_space import strip, strip_end

BEGIN = "*** Begin Patch"
END = "*** End Patch"
ADD_FILE = "*** Add File: "
DELETE_FILE = "*** Delete File: "
UPDATE_FILE = "*** Update File: "
MOVE_TO = "*** Move to: "
END_OF_FILE = "*** End of File"
ENVIRONMENT_ID = "*** Environment ID:"

HEREDOC_OPENERS = ("<<EOF", "<<'EOF'", '<<"EOF"')
_HEREDOC_TAG = "EOF"

_LINE_KINDS = {kind.value: kind for kind in LineKind}


class PatchSyntaxError(PatchError):
    """The text is no patch.  ``line`` counts from the begin marker = 1; 0 is «the whole»."""


def parse(text: str) -> Patch:
    """Parse a whole patch.

    Raises PatchSyntaxError with the line.  No hunks at all is fine here.
    """
    lines = _without_heredoc(split_lines(strip(text)))
    _check_markers(lines)
    machine = Machine()
    for line in lines[:-1]:
        machine.feed(line)
    machine.end()
    return Patch(tuple(machine.hunks), machine.environment_id)


def split_lines(text: str) -> list[str]:
    """Cut at newlines; one carriage return before each is dropped, no empty last line."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _check_markers(lines: list[str]) -> None:
    if lines and strip(lines[0]) != BEGIN:
        raise PatchSyntaxError(f"The first line of the patch must be '{BEGIN}'")
    if not lines or strip(lines[-1]) != END:
        raise _no_end()


def _no_end() -> PatchSyntaxError:
    return PatchSyntaxError(f"The last line of the patch must be '{END}'")


def _without_heredoc(lines: list[str]) -> list[str]:
    """Remove ``<<EOF`` .. ``EOF``, if a patch fits between them."""
    wrapped = len(lines) >= 4 and lines[0] in HEREDOC_OPENERS and lines[-1].endswith(_HEREDOC_TAG)
    return lines[1:-1] if wrapped else lines


class _Place(enum.Enum):
    START = enum.auto()
    TOP = enum.auto()
    ADD = enum.auto()
    UPDATE = enum.auto()
    ENDED = enum.auto()


class Machine:
    """The state machine described above: lines in, ``hunks`` out.

    A hunk is in ``hunks`` once the line after it was read.
    """

    def __init__(self) -> None:
        self.hunks: list[Hunk] = []
        self.environment_id: str | None = None
        self._place = _Place.START
        self._number = 0
        self._path = ""
        self._added: list[str] = []
        self._update = _OpenUpdate("", 0)

    def feed(self, line: str) -> None:
        """Take the next line, without its newline."""
        self._number += 1
        line = line.removesuffix("\r")
        if self._place is _Place.START:
            self._start(line)
        elif self._place is _Place.UPDATE:
            self._in_update(line)
        elif self._place is _Place.ENDED:
            if strip(line):
                raise _no_end()
        elif self._place is _Place.ADD and line.startswith("+"):
            self._added.append(line[1:])
        else:
            self._at_top(strip(line))

    def end(self) -> None:
        """Take the end marker that is the last line."""
        self._number += 1
        if self._place is not _Place.ENDED:
            self._finish_hunk(END)
            self._place = _Place.ENDED

    @property
    def ended(self) -> bool:
        """Whether an end marker was seen."""
        return self._place is _Place.ENDED

    @property
    def open_hunk(self) -> Hunk | None:
        """The open hunk so far, to show it while the rest is still written."""
        if self._place is _Place.ADD:
            return AddFile(self._path, "".join(f"{text}\n" for text in self._added))
        if self._place is _Place.UPDATE:
            return self._update.so_far()
        return None

    def _start(self, line: str) -> None:
        if strip(line) != BEGIN:
            raise PatchSyntaxError(f"The first line of the patch must be '{BEGIN}'")
        self._place = _Place.TOP

    def _at_top(self, line: str) -> None:
        if self._header(line):
            return
        # Before the first hunk only: later the line is one more unknown header.
        if line.startswith(ENVIRONMENT_ID) and not self.hunks and self._place is _Place.TOP:
            self._environment(strip(line.removeprefix(ENVIRONMENT_ID)))
            return
        raise PatchSyntaxError(
            f"'{line}' is not a valid hunk header. Valid hunk headers: '{ADD_FILE}{{path}}', "
            f"'{DELETE_FILE}{{path}}', '{UPDATE_FILE}{{path}}'",
            line=self._number,
        )

    def _environment(self, name: str) -> None:
        if self.environment_id is not None:
            raise PatchSyntaxError("apply_patch environment_id cannot be specified more than once")
        if not name:
            raise PatchSyntaxError("apply_patch environment_id cannot be empty")
        self.environment_id = name

    def _header(self, line: str) -> bool:
        """Open the hunk that this (trimmed) line announces, closing the previous one."""
        if line == END:
            self._finish_hunk(line)
            self._place = _Place.ENDED
        elif line.startswith(ADD_FILE):
            self._finish_hunk(line)
            self._place, self._path, self._added = _Place.ADD, line.removeprefix(ADD_FILE), []
        elif line.startswith(DELETE_FILE):
            self._finish_hunk(line)
            self._place = _Place.TOP
            self.hunks.append(DeleteFile(line.removeprefix(DELETE_FILE)))
        elif line.startswith(UPDATE_FILE):
            self._finish_hunk(line)
            self._place = _Place.UPDATE
            self._update = _OpenUpdate(line.removeprefix(UPDATE_FILE), self._number)
        else:
            return False
        return True

    def _finish_hunk(self, closing: str) -> None:
        hunk = self.open_hunk
        if self._place is _Place.UPDATE:
            self._update.check_complete(closing, self._number)
        if hunk is not None:
            self.hunks.append(hunk)

    def _in_update(self, line: str) -> None:
        trimmed = strip_end(line)
        if not self._header(trimmed):
            self._update.feed(line, trimmed, self._number)


class _OpenChunk:
    """A chunk that may still grow."""

    def __init__(self, context: str | None) -> None:
        self.context = context
        self.lines: list[Line] = []
        self.at_end_of_file = False


class _OpenUpdate:
    """An update that may still grow; ``number`` is the line of its header."""

    def __init__(self, path: str, number: int) -> None:
        self._path = path
        self._number = number
        self._move_to: str | None = None
        self._chunks: list[_OpenChunk] = []

    @property
    def _chunk_is_empty(self) -> bool:
        """Whether a chunk was opened by its marker and has no lines yet."""
        return bool(self._chunks) and not self._chunks[-1].lines

    def so_far(self) -> UpdateFile:
        """The hunk as far as it was read."""
        return UpdateFile(
            self._path,
            tuple(Chunk(tuple(c.lines), c.context, c.at_end_of_file) for c in self._chunks),
            self._move_to,
        )

    def check_complete(self, closing: str, number: int) -> None:
        """Refuse to be closed (by the line ``closing``) while something is missing."""
        if not self._chunks:
            raise PatchSyntaxError(
                f"Update file hunk for path '{self._path}' is empty", line=self._number
            )
        if self._chunk_is_empty:
            if closing in (END, END_OF_FILE):
                raise PatchSyntaxError("Update hunk does not contain any lines", line=number)
            raise self._bad_line(closing, number)

    def feed(self, line: str, trimmed: str, number: int) -> None:
        """Take a line that opens no hunk; ``trimmed`` is the line without its trailing blanks."""
        if trimmed.startswith(MOVE_TO) and not self._chunks and self._move_to is None:
            self._move_to = trimmed.removeprefix(MOVE_TO)
        elif self._is_marker(trimmed) and not self._chunk_is_empty:
            self._chunks.append(_OpenChunk(trimmed.removeprefix("@@").removeprefix(" ") or None))
        elif self._chunks and self._chunks[-1].at_end_of_file:
            if strip(line):
                raise self._bad_line(line, number)
        elif trimmed == END_OF_FILE:
            if self._chunks:  # else it says nothing and is skipped
                self.check_complete(trimmed, number)
                self._chunks[-1].at_end_of_file = True
        elif not line or line[0] in _LINE_KINDS:
            if not self._chunks:
                self._chunks.append(_OpenChunk(None))
            kind = _LINE_KINDS[line[0]] if line else LineKind.KEEP
            self._chunks[-1].lines.append(Line(kind, line[1:]))
        else:
            raise self._bad_line(line, number)

    @staticmethod
    def _is_marker(trimmed: str) -> bool:
        return trimmed == "@@" or trimmed.startswith("@@ ")

    def _bad_line(self, line: str, number: int) -> PatchSyntaxError:
        if self._chunks and self._chunks[-1].lines:
            return PatchSyntaxError(
                f"Expected update hunk to start with a @@ context marker, got: '{line}'",
                line=number,
            )
        return PatchSyntaxError(
            f"Unexpected line found in update hunk: '{line}'. Every line should start with "
            "' ' (context line), '+' (added line), or '-' (removed line)",
            line=number,
        )
