"""Encode and decode calls about trees in the heads of frames, for both sides.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from handrail.errors import FilesError
from handrail.filesystem.trees.entry import Batch, Change, Contents, Names, TreeEntry
from handrail.filesystem.trees.listing import Page
from handrail.filesystem.trees.names_listing import Directory, NamesPage
from handrail.filesystem.trees.tree_watch import FileEvent, Happened
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


def names_head(page: NamesPage) -> list[Any]:
    """A page of names."""
    directories = [
        (_row(one.entry), path_text(b"/".join(one.names)) if one.names else None)
        for one in page.directories
    ]
    others = [_row(entry) for entry in page.others]
    problems = [_problem(error) for error in page.problems]
    more = None if page.more is None else [path_text(one) for one in page.more]
    return [_row(page.root), directories, others, problems, more]


def names_of(head: Sequence[Any]) -> NamesPage:
    """The page of names of a head."""
    root, rows, others, problems, more = head
    directories = [
        Directory(_entry(row), [] if names is None else path_bytes(names).split(b"/"))
        for row, names in rows
    ]
    return NamesPage(
        _entry(root),
        directories,
        [_entry(row) for row in others],
        [_error(one) for one in problems],
        None if more is None else (path_bytes(more[0]), path_bytes(more[1])),
    )


def groups_head(groups: Sequence[Names]) -> list[Any]:
    """Names of files, by directory."""
    return [(path_text(one.directory), path_text(b"/".join(one.names))) for one in groups]


def groups_of(rows: Sequence[Any]) -> list[Names]:
    """The names of a head."""
    return [
        Names(path_bytes(directory), path_bytes(names).split(b"/")) for directory, names in rows
    ]


def contents_head(found: Contents) -> tuple[list[Any], bytes]:
    """What was read, and all content as the body."""
    rest = failed_head(found.problems), list(found.large.items())
    return [found.modes, found.times, found.lengths, *rest], found.data


def contents_of(head: Sequence[Any], body: bytes) -> Contents:
    """What was read."""
    modes, times, lengths, problems, large = head
    return Contents(modes, times, lengths, body, failed_of(problems), dict(large))


def batch_head(batch: Batch) -> list[Any]:
    """The head of a request to write files."""
    return [groups_head(batch.groups), batch.modes, batch.times, batch.lengths]


def batch_of(head: Sequence[Any], body: bytes) -> Batch:
    """The files of a head."""
    groups, modes, times, lengths = head
    return Batch(groups_of(groups), modes, times, lengths, body)


def changes_head(changes: Sequence[Change]) -> list[Any]:
    """The head of a request to write entries."""
    return [(path_text(c.path), *c[1:5], path_text(c.target), c.offset, c.stage) for c in changes]


def changes_of(rows: Sequence[Any]) -> list[Change]:
    """The changes of a head."""
    return [
        Change(path_bytes(path), kind, mode, modified, length, path_bytes(target), offset, stage)
        for path, kind, mode, modified, length, target, offset, stage in rows
    ]


def failed_head(failed: Mapping[int, FilesError]) -> list[Any]:
    """What failed, by position."""
    return [(index, *_problem(error)) for index, error in failed.items()]


def failed_of(rows: Sequence[Any]) -> dict[int, FilesError]:
    """What failed, by position."""
    return {index: _error(problem) for index, *problem in rows}


def happened_head(happened: Happened) -> list[Any]:
    """The head of an answer with the events of a watch."""
    events = [(event.kind, path_text(event.path)) for event in happened.events]
    return [events, happened.gap, happened.ended]


def happened_of(head: Sequence[Any]) -> Happened:
    """The events of a watch that a head holds."""
    events, gap, ended = head
    return Happened([FileEvent(kind, path_bytes(path)) for kind, path in events], gap, ended)
