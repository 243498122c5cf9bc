"""Encode and decode calls about trees in the heads of frames, for both sides.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from handrail.errors import FilesError
from handrail.filesystem.trees.changes import FileEvent, Happened
from handrail.filesystem.trees.entry import Change, TreeEntry, Wanted
from handrail.filesystem.trees.listing import Page
from handrail.sandboxed_files.frames import path_bytes, path_text

Problem = tuple[str, str, str]  # message, kind, path


def _problem(error: FilesError) -> Problem:
    return str(error), error.kind, error.path


def _error(problem: Sequence[str]) -> FilesError:
    message, kind, path = problem
    return FilesError(message, kind=kind, path=path)


def _row(entry: TreeEntry) -> tuple[Any, ...]:
    return (path_text(entry.path), *entry[1:5], path_text(entry.target))


def _entry(row: Sequence[Any]) -> TreeEntry:
    path, kind, mode, modified_ns, size, target = row
    return TreeEntry(path_bytes(path), kind, mode, modified_ns, size, path_bytes(target))


def page_head(page: Page) -> list[Any]:
    """A page of a listing."""
    rows = [_row(entry) for entry in page.entries]
    return [_row(page.root), rows, [_problem(error) for error in page.problems], page.more]


def page_of(head: Sequence[Any]) -> Page:
    """The page of a head."""
    root, rows, problems, more = head
    return Page(
        _entry(root), [_entry(row) for row in rows], [_error(one) for one in problems], more
    )


def wanted_head(wanted: Sequence[Wanted]) -> list[Any]:
    """Which parts of which files are asked for."""
    return [(path_text(one.path), one.offset, one.length) for one in wanted]


def wanted_of(rows: Sequence[Any]) -> list[Wanted]:
    """The parts that a head asks for."""
    return [Wanted(path_bytes(path), offset, length) for path, offset, length in rows]


def content_head(found: Sequence[bytes | FilesError]) -> tuple[list[Any], bytes]:
    """A length or a problem for each, and all content in one body."""
    head = [len(one) if isinstance(one, bytes) else _problem(one) for one in found]
    return head, b"".join(one for one in found if isinstance(one, bytes))


def content_of(head: Sequence[Any], body: bytes) -> list[bytes | FilesError]:
    """The content, taken apart."""
    found: list[bytes | FilesError] = []
    at = 0
    for one in head:
        if isinstance(one, int):
            found.append(body[at : at + one])
            at += one
        else:
            found.append(_error(one))
    return found


def changes_head(changes: Sequence[Change]) -> list[Any]:
    """The head of a request to write entries."""
    return [(path_text(c.path), *c[1:5], path_text(c.target), c.offset, c.stage) for c in changes]


def changes_of(rows: Sequence[Any]) -> list[Change]:
    """The changes of a head."""
    return [
        Change(path_bytes(path), kind, mode, modified, length, path_bytes(target), offset, stage)
        for path, kind, mode, modified, length, target, offset, stage in rows
    ]


def problems_head(done: Sequence[FilesError | None]) -> list[Any]:
    """The head of an answer with problems, by index."""
    return [(index, *_problem(error)) for index, error in enumerate(done) if error is not None]


def problems_of(rows: Sequence[Any], count: int) -> list[FilesError | None]:
    """The outcome of each change."""
    done: list[FilesError | None] = [None] * count
    for index, *problem in rows:
        done[index] = _error(problem)
    return done


def happened_head(happened: Happened) -> list[Any]:
    """The head of an answer with the events of a watch."""
    events = [(event.kind, path_text(event.path)) for event in happened.events]
    return [events, happened.gap, happened.ended]


def happened_of(head: Sequence[Any]) -> Happened:
    """The events of a watch that a head holds."""
    events, gap, ended = head
    return Happened([FileEvent(kind, path_bytes(path)) for kind, path in events], gap, ended)
