"""``fs/*`` with a ``sandbox``: the same calls, done by a sandboxed helper.

``FILE_HANDLERS`` is the table that the server uses: each call goes to the plain handler when its
profile restricts no file, and to the helper of its plan otherwise.  A plan that cannot be made
is an error, never a plain call.
"""

from __future__ import annotations

import asyncio
import marshal
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from handrail import private_places
from handrail.errors import FilesError, SandboxError
from handrail.filesystem import directories, local, walk
from handrail.filesystem.pool import DEADLINE
from handrail.protocol import codec, path_uri
from handrail.protocol.environment import NOTHING, Nothing
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
from handrail.sandboxed_files import content
from handrail.sandboxed_files.client import SMALL_HEAD, Reply
from handrail.sandboxed_files.frames import path_bytes, path_text
from handrail.sandboxed_files.mount_view import MountView
from handrail.sandboxed_files.plan import FileSandbox, restricts_files
from handrail.sandboxed_files.pool import FileHelper
from handrail.server.methods import files as plain
from handrail.server.methods import files_sandboxed_handles
from handrail.server.methods.files import default, native_path, rpc_error
from handrail.server.raw_results import Parts, Streamed

if TYPE_CHECKING:
    from handrail.server.connection import Connection


Plain = Callable[["Connection", Any], Any]
Inside = Callable[["Connection", FileHelper, Any], Awaitable[Any]]
#: Answers by the mounts of a helper on the event loop, or raises BlockingIOError.
AtOnce = Callable[[MountView, Any], Any]
#: The same in a thread, or ``briefly`` on the event loop.
InView = Callable[..., Any]

#: The longest `sandbox` member that is remembered, as bytes.
_LONGEST_WORDS = 16 * 1024


def _either(
    plain_handler: Plain,
    inside: Inside,
    *,
    writes: bool = False,
    at_once: AtOnce | None = None,
    in_view: InView | None = None,
) -> Plain:
    """The handler that looks at the profile first; ``writes``: whether it changes anything."""
    if in_view is not None:
        at_once = partial(in_view, briefly=True)

    def handler(conn: Connection, params: Any) -> Any:
        if params.sandbox is None:
            return plain_handler(conn, params)
        changes = writes or getattr(params, "mode", "read") != "read"
        known = view = None
        if at_once is not None:
            known, _ = _known(conn, params.sandbox, writes=changes)
            try:
                if known is not None:
                    view = conn.files.helpers.known_view(known)
                if view is not None:
                    return at_once(view, params)
            except BlockingIOError:
                pass
            except FilesError as error:
                raise rpc_error(error) from None

        async def sandboxed() -> Any:
            try:
                sandbox = known or await _file_sandbox(conn, params.sandbox, writes=changes)
                if sandbox is None:
                    done = plain_handler(conn, params)
                    return await done if isinstance(done, Awaitable) else done
                helpers = conn.files.helpers
                if at_once is not None and view is None:
                    with suppress(BlockingIOError):
                        if (shown := await helpers.view(sandbox)) is not None:
                            return at_once(shown, params)
                if in_view is not None:
                    with suppress(BlockingIOError):
                        if (shown := await helpers.view(sandbox)) is not None:
                            pool = conn.files.pool
                            conn.calls.answer_is_near(by_thread=True)
                            return await pool.run(in_view, shown, params, deadline=DEADLINE)
                helper = await helpers.get(sandbox)
                conn.calls.answer_is_near()
                return await inside(conn, helper, params)
            except FilesError as error:
                raise rpc_error(error) from None
            except SandboxError as error:
                from handrail.server.methods.process_sandbox import refused

                raise refused(error, "file") from None

        return sandboxed()

    return handler


async def _file_sandbox(
    conn: Connection, given: dict[str, Any], *, writes: bool
) -> FileSandbox | None:
    """The sandbox of a call; None when its profile restricts no file."""
    from handrail.server.methods.process_sandbox import profile_of

    server = conn.server
    known, words = _known(conn, given, writes=writes)
    if known is not None:
        return known
    profile = profile_of(server.sandbox, given, b"/")
    if not restricts_files(profile):
        return None
    return await server.file_sandboxes.find(server.pool, profile, writes=writes, words=words)


def _known(
    conn: Connection, given: dict[str, Any], *, writes: bool
) -> tuple[FileSandbox | None, Hashable]:
    """The sandbox of a call, if that is known at once; by what it is known then."""
    from handrail.server.methods.process_sandbox import check_private_tmp

    assert conn.session is not None  # noqa: S101 (checked with the handshake)
    check_private_tmp(conn.session, given)
    said = marshal.dumps(given, 2)  # of equal bytes for equal members alone
    words = said, private_places.revision()
    known = conn.server.file_sandboxes.known(words, writes=writes)
    return known, words if len(said) <= _LONGEST_WORDS else None


def _text(uri: str) -> str:
    return path_text(native_path(uri))


def _metadata_at_once(view: MountView, params: LinkParams) -> MetadataResult:
    return plain.metadata_result(view.get_metadata(native_path(params.path)))


def _canonical_at_once(view: MountView, params: PathParams) -> PathResult:
    return PathResult(path=path_uri.to_uri(view.canonicalize(native_path(params.path))))


def _read_at_once(view: MountView, params: LinkParams) -> Parts:
    return plain.content_result(view.read_file(native_path(params.path), plain.SMALL))


def _list_in_view(view: MountView, params: PathParams, *, briefly: bool = False) -> Parts:
    path = native_path(params.path)
    return plain.directory_parts(path, view.read_directory(path, briefly=briefly))


def _create_in_view(
    view: MountView, params: CreateDirectoryParams, *, briefly: bool = False
) -> Nothing:
    recursive = default(params.recursive, True)
    view.create_directory(native_path(params.path), recursive=recursive, briefly=briefly)
    return NOTHING


def _remove_in_view(view: MountView, params: RemoveParams, *, briefly: bool = False) -> Nothing:
    force = default(params.force, True)
    view.remove(native_path(params.path), force=force, briefly=briefly)
    return NOTHING


def _copy_in_view(view: MountView, params: CopyParams, *, briefly: bool = False) -> Nothing:
    source, destination = native_path(params.source_path), native_path(params.destination_path)
    view.copy(source, destination, briefly=briefly)
    return NOTHING


def _write_in_view(view: MountView, params: WriteFileParams, *, briefly: bool = False) -> Nothing:
    data = plain.decode_data(params.data_base64, briefly=briefly)
    view.write_file(native_path(params.path), data, briefly=briefly)
    return NOTHING


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
    return NOTHING


async def _remove(conn: Connection, helper: FileHelper, params: RemoveParams) -> Nothing:
    reply = await helper.call(
        "remove",
        _text(params.path),
        default(params.recursive, True),
        default(params.force, True),
        default(params.follow_symlinks, True),
    )
    reply.result()
    return NOTHING


async def _copy(conn: Connection, helper: FileHelper, params: CopyParams) -> Nothing:
    source, destination = _text(params.source_path), _text(params.destination_path)
    (await helper.call("copy", source, destination, params.recursive)).result()
    return NOTHING


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
    return await conn.files.pool.run(shape, deadline=DEADLINE)


# --- content ----------------------------------------------------------------------------------


async def _read_file(conn: Connection, helper: FileHelper, params: LinkParams) -> Parts | Streamed:
    follow = default(params.follow_symlinks, True)
    found = await content.read(helper, _text(params.path), follow=follow)
    if found.size > plain.WHOLE:
        return _streamed(conn, found)
    parts = [codec.encode_base64(piece) async for piece in found]
    return Parts([b'{"dataBase64":"', *parts, b'"}'])


def _streamed(conn: Connection, found: content.Content) -> Streamed:
    """Stream a file: pieces are requested as the client reads them, so nothing is buffered."""
    loop = conn.server.loop

    def piece() -> bytes:  # in a thread
        return codec.encode_base64(
            asyncio.run_coroutine_threadsafe(found.next_piece(), loop).result()
        )

    def close() -> None:
        loop.call_soon_threadsafe(found.close)

    return Streamed(b'{"dataBase64":"', piece, b'"}', close)


async def _write_file(conn: Connection, helper: FileHelper, params: WriteFileParams) -> Nothing:
    follow = default(params.follow_symlinks, True)
    data = plain.decode_data(params.data_base64)
    await content.write(helper, _text(params.path), data, follow=follow)
    return NOTHING


def _imported_later(module: str, name: str) -> Callable[..., Any]:
    """A handler whose module most clients do not need."""

    def handler(*arguments: Any) -> Any:
        return getattr(import_module(f"{__package__}.{module}"), name)(*arguments)

    return handler


_trees = partial(_imported_later, "file_trees")
_watches = partial(_imported_later, "file_watches")

FILE_HANDLERS: dict[str, Plain] = {
    "fs/readFile": _either(plain.read_file, _read_file, at_once=_read_at_once),
    "fs/writeFile": _either(plain.write_file, _write_file, writes=True, in_view=_write_in_view),
    "fs/createDirectory": _either(
        plain.create_directory, _create_directory, writes=True, in_view=_create_in_view
    ),
    "fs/getMetadata": _either(plain.get_metadata, _get_metadata, at_once=_metadata_at_once),
    "fs/canonicalize": _either(plain.canonicalize, _canonicalize, at_once=_canonical_at_once),
    "fs/readDirectory": _either(plain.read_directory, _read_directory, in_view=_list_in_view),
    "fs/walk": _either(plain.walk_tree, _walk_tree),
    "fs/remove": _either(plain.remove, _remove, writes=True, in_view=_remove_in_view),
    "fs/copy": _either(plain.copy, _copy, writes=True, in_view=_copy_in_view),
    "fs/move": _either(_trees("move"), _trees("move_inside"), writes=True),
    "fs/listTree": _either(_trees("list_tree"), _trees("list_tree_inside")),
    "fs/listNames": _either(_trees("list_names"), _trees("list_names_inside")),
    "fs/readFiles": _either(_trees("read_files"), _trees("read_files_inside")),
    "fs/writeFiles": _either(_trees("write_files"), _trees("write_files_inside"), writes=True),
    "fs/watch": _either(_watches("watch"), _watches("watch_inside")),
    "fs/watchRead": _watches("watch_read"),
    "fs/unwatch": _watches("unwatch"),
    "fs/open": _either(files_sandboxed_handles.open_plain, files_sandboxed_handles.open_file),
    "fs/readBlock": files_sandboxed_handles.read_block,
    "fs/writeBlock": files_sandboxed_handles.write_block,
    "fs/close": files_sandboxed_handles.close_file,
    "fs/watchMissing": plain.watch_missing,
}
