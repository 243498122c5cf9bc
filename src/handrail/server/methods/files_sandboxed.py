"""``fs/*`` with a ``sandbox``: the same calls, done by a sandboxed helper.

``FILE_HANDLERS`` is the table that the server uses: each call goes to the plain handler when its
profile restricts no file, and to the helper of its plan otherwise.  A plan that cannot be made
is an error, never a plain call.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from handrail.errors import FilesError, RpcError, SandboxError
from handrail.filesystem import directories, local, walk
from handrail.filesystem.handles import MAX_BLOCK
from handrail.protocol import codec, path_uri
from handrail.protocol.envelope import INVALID_PARAMS
from handrail.protocol.environment import Nothing
from handrail.protocol.filesystem import (
    CopyParams,
    CreateDirectoryParams,
    LinkParams,
    MetadataResult,
    PathParams,
    PathResult,
    RemoveParams,
    WalkParams,
    WriteFileParams,
)
from handrail.sandboxed_files.client import SMALL_HEAD, Reply
from handrail.sandboxed_files.frames import path_bytes, path_text
from handrail.server.methods import files as plain
from handrail.server.methods import files_sandboxed_handles
from handrail.server.methods.files import default, native_path, rpc_error
from handrail.server.raw_results import Parts, Streamed
from handrail.server.sandboxed_files_plan import confinement_of
from handrail.server.sandboxed_files_pool import FileHelper

if TYPE_CHECKING:
    from handrail.server.connection import Connection

_NOTHING = Nothing()
_numbers = itertools.count()

Plain = Callable[["Connection", Any], Any]
Inside = Callable[["Connection", FileHelper, Any], Awaitable[Any]]


def _either(plain_handler: Plain, inside: Inside, *, writes: bool = False) -> Plain:
    """The handler that looks at the profile first; ``writes``: whether it changes anything."""

    def handler(conn: Connection, params: Any) -> Any:
        if params.sandbox is None:
            return plain_handler(conn, params)
        changes = writes or getattr(params, "mode", "read") != "read"

        async def confined() -> Any:
            confinement = await confinement_of(conn, params.sandbox, writes=changes)
            if confinement is None:
                done = plain_handler(conn, params)
                return await done if isinstance(done, Awaitable) else done
            try:
                helper = await conn.files.helpers.get(confinement)
                return await inside(conn, helper, params)
            except FilesError as error:
                raise rpc_error(error) from None
            except SandboxError as error:
                text = f"failed to prepare file sandbox: {error}"
                raise RpcError(INVALID_PARAMS, text) from None

        return confined()

    return handler


def _text(uri: str) -> str:
    return path_text(native_path(uri))


async def _get_metadata(conn: Connection, helper: FileHelper, params: LinkParams) -> MetadataResult:
    follow = default(params.follow_symlinks, True)
    reply = await helper.call("metadata", _text(params.path), follow)
    return plain.metadata_result(local.Metadata(*reply.result()))


async def _canonicalize(conn: Connection, helper: FileHelper, params: PathParams) -> PathResult:
    reply = await helper.call("canonicalize", _text(params.path))
    return PathResult(path=path_uri.to_uri(path_bytes(reply.result())))


async def _create_directory(
    conn: Connection, helper: FileHelper, params: CreateDirectoryParams
) -> Nothing:
    recursive, follow = default(params.recursive, True), default(params.follow_symlinks, True)
    reply = await helper.call("createDirectory", _text(params.path), recursive, follow)
    reply.result()
    return _NOTHING


async def _remove(conn: Connection, helper: FileHelper, params: RemoveParams) -> Nothing:
    reply = await helper.call(
        "remove",
        _text(params.path),
        default(params.recursive, True),
        default(params.force, True),
        default(params.follow_symlinks, True),
    )
    reply.result()
    return _NOTHING


async def _copy(conn: Connection, helper: FileHelper, params: CopyParams) -> Nothing:
    source, destination = _text(params.source_path), _text(params.destination_path)
    (await helper.call("copy", source, destination, params.recursive)).result()
    return _NOTHING


async def _read_directory(conn: Connection, helper: FileHelper, params: PathParams) -> Parts:
    path = native_path(params.path)
    reply = await helper.call("readDirectory", path_text(path))

    def shape() -> Parts:
        rows = reply.result()
        found = [directories.DirectoryEntry(path_bytes(n), d, f) for n, d, f in rows]
        return plain.directory_parts(path, found)

    return await _shaped(conn, reply, shape)


async def _walk_tree(conn: Connection, helper: FileHelper, params: WalkParams) -> Parts:
    options = params.options
    reply = await helper.call(
        "walk",
        _text(params.path),
        options.max_depth,
        options.max_directories,
        options.max_entries,
        options.follow_directory_symlinks,
        options.prune_hidden_directories,
    )

    def shape() -> Parts:
        names, rows, problems, truncated = reply.result()
        parents = [path_bytes(name) for name in names]
        entries = [walk.WalkEntry(parents[at], path_bytes(name), d) for at, name, d in rows]
        errors = [walk.WalkProblem(path_bytes(path), text) for path, text in problems]
        return plain.walk_parts(walk.WalkResult(entries, errors, truncated))

    return await _shaped(conn, reply, shape)


async def _shaped(conn: Connection, reply: Reply, shape: Callable[[], Parts]) -> Parts:
    """Decode and encode a long listing in a thread."""
    if len(reply.head) <= SMALL_HEAD:
        return shape()
    return await conn.files.pool.run(shape, deadline=plain.DEADLINE)


# --- content ----------------------------------------------------------------------------------


async def _read_file(conn: Connection, helper: FileHelper, params: LinkParams) -> Parts | Streamed:
    follow = default(params.follow_symlinks, True)
    reply = await helper.call("read", _text(params.path), follow)
    size, number = reply.result()
    if not number:
        return _content([reply.body])
    if size > plain.WHOLE:
        return _streamed(conn, helper, reply.body, number)
    pieces = [reply.body]
    try:
        while True:
            reply = await helper.call("readOn", number)
            reply.result()
            if not reply.body:
                return _content(pieces)
            pieces.append(reply.body)
    except BaseException:
        conn.server.spawn_task(_end_read(helper, number))
        raise


def _content(pieces: list[bytes]) -> Parts:
    parts = [codec.encode_base64(piece) for piece in pieces]
    return Parts([b'{"dataBase64":"', *parts, b'"}'])


def _streamed(conn: Connection, helper: FileHelper, first: bytes, number: int) -> Streamed:
    """Stream a file: pieces are requested as the client reads them, so nothing is buffered."""
    loop = conn.server.loop
    begun: list[bytes] = [first]

    def piece() -> bytes:  # in a thread
        if begun:
            return codec.encode_base64(begun.pop())
        reply = asyncio.run_coroutine_threadsafe(helper.call("readOn", number), loop).result()
        reply.result()
        return codec.encode_base64(reply.body)

    def close() -> None:
        loop.call_soon_threadsafe(lambda: conn.server.spawn_task(_end_read(helper, number)))

    return Streamed(b'{"dataBase64":"', piece, b'"}', close)


async def _end_read(helper: FileHelper, number: int) -> None:
    try:
        await helper.call("readEnd", number)
    except FilesError:
        pass  # the helper is gone, and the file with it


async def _write_file(conn: Connection, helper: FileHelper, params: WriteFileParams) -> Nothing:
    path, follow = _text(params.path), default(params.follow_symlinks, True)
    try:
        data = codec.decode_base64(params.data_base64, "dataBase64")
    except RpcError as error:
        text = f"fs/writeFile requires valid base64 dataBase64: {error}"
        raise FilesError(text, kind="invalid_input") from None
    if len(data) <= MAX_BLOCK:
        (await helper.call("write", path, follow, body=data)).result()
        return _NOTHING
    # In blocks, renamed into place at the end; one block is as much as a pipe takes fairly.
    handle = [files_sandboxed_handles.OURS, str(next(_numbers))]
    (await helper.call("open", handle, path, "replace", follow)).result()
    try:
        view = memoryview(data)
        for start in range(0, len(view), MAX_BLOCK):
            block = view[start : start + MAX_BLOCK]
            (await helper.call("writeBlock", handle, start, body=block)).result()
        (await helper.call("close", handle)).result()
    except BaseException:
        conn.server.spawn_task(files_sandboxed_handles.forget(helper, handle))
        raise
    return _NOTHING


FILE_HANDLERS: dict[str, Plain] = {
    "fs/readFile": _either(plain.read_file, _read_file),
    "fs/writeFile": _either(plain.write_file, _write_file, writes=True),
    "fs/createDirectory": _either(plain.create_directory, _create_directory, writes=True),
    "fs/getMetadata": _either(plain.get_metadata, _get_metadata),
    "fs/canonicalize": _either(plain.canonicalize, _canonicalize),
    "fs/readDirectory": _either(plain.read_directory, _read_directory),
    "fs/walk": _either(plain.walk_tree, _walk_tree),
    "fs/remove": _either(plain.remove, _remove, writes=True),
    "fs/copy": _either(plain.copy, _copy, writes=True),
    "fs/open": _either(files_sandboxed_handles.open_plain, files_sandboxed_handles.open_file),
    "fs/readBlock": files_sandboxed_handles.read_block,
    "fs/writeBlock": files_sandboxed_handles.write_block,
    "fs/close": files_sandboxed_handles.close_file,
    "fs/watchMissing": plain.watch_missing,
}
