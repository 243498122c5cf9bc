"""What a patch says, as data: hunks, their chunks, their lines.  Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class LineKind(enum.Enum):
    """What a line of a chunk does; the value is its first character in the text."""

    KEEP = " "
    ADD = "+"
    REMOVE = "-"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chunk, without its first character."""

    kind: LineKind
    text: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """One place in a file; ``context`` is a line to look for first."""

    lines: tuple[Line, ...]
    context: str | None = None
    end_of_file: bool = False

    @property
    def old(self) -> tuple[str, ...]:
        """The lines that must be in the file."""
        return tuple(line.text for line in self.lines if line.kind is not LineKind.ADD)

    @property
    def new(self) -> tuple[str, ...]:
        """The lines that are there afterwards, as the patch spells them."""
        return tuple(line.text for line in self.lines if line.kind is not LineKind.REMOVE)


@dataclass(frozen=True, slots=True)
class AddFile:
    """A whole new file (an old one of that name is replaced)."""

    path: str
    content: str


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A file to remove."""

    path: str


@dataclass(frozen=True, slots=True)
class UpdateFile:
    """A file to change in place, or while moving it to ``move_to``."""

    path: str
    chunks: tuple[Chunk, ...]
    move_to: str | None = None


Hunk = AddFile | DeleteFile | UpdateFile


@dataclass(frozen=True, slots=True)
class Patch:
    """A parsed patch; ``environment_id`` names the machine it is meant for."""

    hunks: tuple[Hunk, ...]
    environment_id: str | None = None
