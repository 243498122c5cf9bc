"""``fs/listTree``, ``fs/readFiles``, ``fs/writeFiles`` and ``fs/move``, plain and sandboxed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from handrail.errors import FilesError
from handrail.filesystem.trees import listing, moving, reading, writing
from handrail.filesystem.trees.entry import Change, TreeEntry, Wanted
from handrail.protocol import codec, path_uri
from handrail.protocol.environment import NOTHING, Nothing
from handrail.protocol.file_trees import (
    ChangeProblemShape,
    ContentShape,
    ListTreeParams,
    ListTreeResult,
    MoveParams,
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
    return _contents(reading.read_files(root, _wanted(params)))


async def read_files_inside(conn: Connection, helper: FileHelper, params: ReadFilesParams) -> Parts:
    root = path_text(native_path(params.path))
    return await run(conn, _contents, await trees.read_files(helper, root, _wanted(params)))


def _wanted(params: ReadFilesParams) -> list[Wanted]:
    return [Wanted(relative_path(one.path), one.offset, one.length) for one in params.files]


def _contents(found: Sequence[bytes | FilesError]) -> Parts:
    files = [
        ContentShape(length=len(one))
        if isinstance(one, bytes)
        else ContentShape(problem=_problem(one))
        for one in found
    ]
    data = codec.encode_base64(b"".join(one for one in found if isinstance(one, bytes)))
    return Parts([b'{"files":', codec.encode(files), b',"dataBase64":"', data, b'"}'])


async def write_files(conn: Connection, params: WriteFilesParams) -> WriteFilesResult:
    return await run(conn, _write_files, native_path(params.path), params)


def _write_files(root: bytes, params: WriteFilesParams) -> WriteFilesResult:
    data = decode_data(params.data_base64)
    return _outcome(writing.write_files(root, _changes(params), data))


async def write_files_inside(
    conn: Connection, helper: FileHelper, params: WriteFilesParams
) -> WriteFilesResult:
    root = path_text(native_path(params.path))
    data = await run(conn, decode_data, params.data_base64)
    return _outcome(await trees.write_files(helper, root, _changes(params), data))


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
    return WriteFilesResult(
        problems=[
            ChangeProblemShape(index=index, kind=error.kind, message=str(error))
            for index, error in enumerate(done)
            if error is not None
        ]
    )


async def move(conn: Connection, params: MoveParams) -> Nothing:
    source, destination = native_path(params.source_path), native_path(params.destination_path)
    await run(conn, moving.move, source, destination)
    return NOTHING


async def move_inside(conn: Connection, helper: FileHelper, params: MoveParams) -> Nothing:
    source, destination = native_path(params.source_path), native_path(params.destination_path)
    (await helper.call("move", path_text(source), path_text(destination))).result()
    return NOTHING
