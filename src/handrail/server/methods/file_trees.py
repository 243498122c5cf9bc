"""Calls about trees and ``fs/move``, plain and sandboxed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from handrail.errors import FilesError
from handrail.filesystem.trees import (
    file_batches,
    listing,
    moving,
    names_listing,
    reading,
    writing,
)
from handrail.filesystem.trees.entry import Batch, Change, Contents, Names, TreeEntry
from handrail.protocol import codec, path_uri
from handrail.protocol.environment import NOTHING, Nothing
from handrail.protocol.file_trees import (
    FileProblemShape,
    LargeFileShape,
    ListedDirectoryShape,
    ListNamesParams,
    ListNamesResult,
    ListTreeParams,
    ListTreeResult,
    MoveParams,
    NamePlace,
    NamesShape,
    ReadFilesParams,
    TreeEntryShape,
    TreeProblemShape,
    WriteFilesParams,
    WriteFilesResult,
    relative_path,
    relative_text,
)
from handrail.sandboxed_files import trees
from handrail.sandboxed_files.frames import path_text
from handrail.sandboxed_files.pool import FileHelper
from handrail.server.methods.files import decode_data, native_path, run
from handrail.server.raw_results import Parts

if TYPE_CHECKING:
    from handrail.server.connection import Connection


async def list_tree(conn: Connection, params: ListTreeParams) -> Parts:
    return await run(conn, _list_tree, native_path(params.path), params)


def _list_tree(root: bytes, params: ListTreeParams) -> Parts:
    after = relative_path(params.after)
    return _page(listing.list_tree(root, after=after, exclude=params.exclude))


async def list_tree_inside(conn: Connection, helper: FileHelper, params: ListTreeParams) -> Parts:
    page = await trees.list_tree(
        helper,
        path_text(native_path(params.path)),
        after=relative_path(params.after),
        exclude=params.exclude,
    )
    return await run(conn, _page, page)


def _page(page: listing.Page) -> Parts:
    result = ListTreeResult(
        root=_entry(page.root),
        entries=[_entry(one) for one in page.entries],
        problems=[_problem(one) for one in page.problems],
        more=page.more,
    )
    return Parts([codec.encode(result)])


async def list_names(conn: Connection, params: ListNamesParams) -> Parts:
    return await run(conn, _list_names, native_path(params.path), params)


def _list_names(root: bytes, params: ListNamesParams) -> Parts:
    after = _place(params.after)
    return _names(names_listing.list_names(root, after=after, exclude=params.exclude))


async def list_names_inside(conn: Connection, helper: FileHelper, params: ListNamesParams) -> Parts:
    root, after = path_text(native_path(params.path)), _place(params.after)
    page = await trees.list_names(helper, root, after=after, exclude=params.exclude)
    return await run(conn, _names, page)


def _place(after: NamePlace | None) -> tuple[bytes, bytes] | None:
    return None if after is None else (relative_path(after.directory), relative_path(after.name))


def _names(page: names_listing.NamesPage) -> Parts:
    directories = [
        ListedDirectoryShape(
            path=relative_text(one.entry.path),
            mode=one.entry.mode,
            modified_ns=one.entry.modified_ns,
            names=relative_text(b"/".join(one.names)),
        )
        for one in page.directories
    ]
    result = ListNamesResult(
        root=_entry(page.root),
        directories=directories,
        others=[_entry(one) for one in page.others],
        problems=[_problem(one) for one in page.problems],
    )
    if page.more is not None:
        directory, name = (relative_text(one) for one in page.more)
        result.more = NamePlace(directory=directory, name=name)
    return Parts([codec.encode(result)])


def _entry(one: TreeEntry) -> TreeEntryShape:
    return TreeEntryShape(
        path=relative_text(one.path),
        kind=one.kind,  # type: ignore[arg-type]  # one of the four
        mode=one.mode,
        modified_ns=one.modified_ns,
        size=one.size,
        target=relative_text(one.target),
    )


def _problem(error: FilesError) -> TreeProblemShape:
    path = path_uri.to_uri(os.fsencode(error.path))
    return TreeProblemShape(path=path, kind=error.kind, message=str(error))


async def read_files(conn: Connection, params: ReadFilesParams) -> Parts:
    return await run(conn, _read_files, native_path(params.path), params)


def _read_files(root: bytes, params: ReadFilesParams) -> Parts:
    part = params.part
    if part is not None:
        path = relative_path(part.path)
        return _data(reading.read_part(root, path, part.offset, part.length))
    return _contents(reading.read_files(root, _groups(params.groups)))


async def read_files_inside(conn: Connection, helper: FileHelper, params: ReadFilesParams) -> Parts:
    root, part = path_text(native_path(params.path)), params.part
    if part is not None:
        path = relative_path(part.path)
        found = await trees.read_part(helper, root, path, part.offset, part.length)
        return await run(conn, _data, found)
    return await run(conn, _contents, await trees.read_files(helper, root, _groups(params.groups)))


def _groups(groups: Sequence[NamesShape]) -> list[Names]:
    # A quoted slash makes two names of one, which then does not fit to the lengths.
    return [
        Names(relative_path(one.directory), relative_path(one.names).split(b"/")) for one in groups
    ]


def _data(data: bytes) -> Parts:
    return Parts([b'{"dataBase64":"', codec.encode_base64(data), b'"}'])


def _contents(found: Contents) -> Parts:
    # The content first: the client finds it before it reads the rest.
    rest = {
        "modes": found.modes,
        "times": found.times,
        "lengths": found.lengths,
        "problems": _problems(found.problems),
        "large": [LargeFileShape(index=index, size=size) for index, size in found.large.items()],
    }
    head, data = b'{"dataBase64":"', codec.encode_base64(found.data)
    return Parts([head, data, b'",', codec.encode(rest)[1:]])


async def write_files(conn: Connection, params: WriteFilesParams) -> WriteFilesResult:
    return await run(conn, _write_files, native_path(params.path), params)


def _write_files(root: bytes, params: WriteFilesParams) -> WriteFilesResult:
    data = decode_data(params.data_base64)
    if params.changes:
        return _outcome(writing.make_changes(root, _changes(params), data))
    return WriteFilesResult(
        problems=_problems(file_batches.write_files(root, _batch(params, data)))
    )


async def write_files_inside(
    conn: Connection, helper: FileHelper, params: WriteFilesParams
) -> WriteFilesResult:
    root = path_text(native_path(params.path))
    data = await run(conn, decode_data, params.data_base64)
    if params.changes:
        return _outcome(await trees.make_changes(helper, root, _changes(params), data))
    found = await trees.write_files(helper, root, _batch(params, data))
    return WriteFilesResult(problems=_problems(found))


def _batch(params: WriteFilesParams, data: bytes) -> Batch:
    groups = _groups(params.groups)
    return Batch(groups, params.modes, params.times, params.lengths, data)


def _changes(params: WriteFilesParams) -> list[Change]:
    return [
        Change(
            relative_path(one.path),
            one.kind,
            one.mode,
            one.modified_ns,
            one.length,
            relative_path(one.target),
            one.offset,
            one.stage,
        )
        for one in params.changes
    ]


def _outcome(done: Sequence[FilesError | None]) -> WriteFilesResult:
    failed = {index: error for index, error in enumerate(done) if error is not None}
    return WriteFilesResult(problems=_problems(failed))


def _problems(failed: Mapping[int, FilesError]) -> list[FileProblemShape]:
    return [
        FileProblemShape(index=index, kind=error.kind, message=str(error))
        for index, error in failed.items()
    ]


async def move(conn: Connection, params: MoveParams) -> Nothing:
    source, destination = native_path(params.source_path), native_path(params.destination_path)
    await run(conn, moving.move, source, destination)
    return NOTHING


async def move_inside(conn: Connection, helper: FileHelper, params: MoveParams) -> Nothing:
    source, destination = native_path(params.source_path), native_path(params.destination_path)
    (await helper.call("move", path_text(source), path_text(destination))).result()
    return NOTHING
