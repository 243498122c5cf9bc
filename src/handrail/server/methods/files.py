"""``fs/*``: URIs and base64 here, the work itself in threads of the file pool.

Everything that takes time, encoding included, happens in the thread; the loop only sends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from handrail.errors import FilesError, RpcError
from handrail.filesystem import (
    at_once,
    copying,
    directories,
    local,
    other_root,
    regular_file,
    removal,
    walk,
)
from handrail.filesystem.handles import HandleTable, Mode
from handrail.filesystem.missing_watch import MissingWatch, WatchSlot
from handrail.filesystem.pool import DEADLINE, FilePool
from handrail.protocol import codec, path_uri
from handrail.protocol.envelope import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    NOT_FOUND,
)
from handrail.protocol.environment import NOTHING, Nothing
from handrail.protocol.filesystem import (
    CopyParams,
    CreateDirectoryParams,
    DirectoryEntryShape,
    HandleParams,
    HandleResult,
    LinkParams,
    MetadataResult,
    OpenParams,
    PathParams,
    PathResult,
    ReadBlockParams,
    RemoveParams,
    WalkParams,
    WatchMissingParams,
    WatchMissingResult,
    WriteBlockParams,
    WriteFileParams,
)
from handrail.sandboxed_files.pool import FileHelper, FileHelpers
from handrail.server.raw_results import Parts, Streamed

if TYPE_CHECKING:
    from handrail.filesystem.trees.loop_watch import LoopWatch
    from handrail.sandboxed_files.trees import HelperWatch
    from handrail.server.connection import Connection

T = TypeVar("T")

#: Files up to this size are read and encoded at once, larger ones are sent in pieces.
WHOLE = 8 * 1024 * 1024
#: Files up to this size are read on the event loop, if they are in memory.
SMALL = 64 * 1024
#: A piece of a larger file: a multiple of 3, so that its base64 needs no padding.
PIECE = 384 * 1024

#: The longest base64 that is decoded and written on the event loop.
_MOST_TEXT = other_root.BRIEF_SIZE * 4 // 3

#: Names that are encoded at a time.
_ROWS = 512
_CODES = {
    "not_found": NOT_FOUND,
    "invalid_input": INVALID_REQUEST,
    "permission_denied": INVALID_REQUEST,
}


class ConnectionFiles:
    """The open files and watches of one connection; closed with it."""

    def __init__(self, conn: Connection, pool: FilePool) -> None:
        self.pool = pool
        self._conn = conn
        self._helpers: FileHelpers | None = None
        self._spawn = conn.server.spawn_task
        self.handles = HandleTable()
        #: Trees that are watched, by the client's names.
        self.watches: dict[str, LoopWatch | HelperWatch] = {}
        self.watch = WatchSlot(conn.server.loop, conn.missing_changed)

    @property
    def helpers(self) -> FileHelpers:
        """The sandboxed file helpers; most connections need none."""
        if self._helpers is None:
            server = self._conn.server
            self._helpers = FileHelpers(server.launcher, server.loop, server.ending_helpers)
        return self._helpers

    @property
    def sandboxed_handles(self) -> int:
        """How many sandboxed handles are open."""
        return 0 if self._helpers is None else len(self._helpers.handles)

    def helper_of(self, handle_id: str) -> FileHelper | None:
        """The helper that has this handle open, if it is a sandboxed one."""
        return None if self._helpers is None else self._helpers.handles.get(handle_id)

    def close(self) -> None:
        self.watch.close()
        while self.watches:
            self.watches.popitem()[1].stop()
        if self._helpers is not None:
            self._helpers.close()
        if len(self.handles) and self._conn.server.draining:
            self.handles.close_all()  # the server stops: blocking the loop is harmless now
        elif len(self.handles):
            # Dropping a half-written file touches the disk.
            self._spawn(self.pool.run(self.handles.close_all, deadline=DEADLINE))


async def run(conn: Connection, work: Callable[..., T], *args: Any, **options: Any) -> T:
    """Do the work in a thread; a FilesError becomes the wire's error."""
    try:
        return await conn.files.pool.run(work, *args, deadline=DEADLINE, **options)
    except FilesError as error:
        raise rpc_error(error) from None


def rpc_error(error: FilesError) -> RpcError:
    """The wire's code for a failed file call."""
    path = error.path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    data = {"kind": error.kind, "path": path}
    return RpcError(_CODES.get(error.kind, INTERNAL_ERROR), str(error), data)


def native_path(uri: str) -> bytes:
    try:
        return path_uri.to_path(uri)
    except path_uri.NotNative as error:
        raise RpcError(INVALID_REQUEST, str(error)) from None
    except path_uri.BadUri as error:
        raise RpcError(INVALID_PARAMS, str(error)) from None


def default(value: bool | None, otherwise: bool) -> bool:
    return otherwise if value is None else value


def read_file(conn: Connection, params: LinkParams) -> Any:
    path = native_path(params.path)
    try:
        return content_result(at_once.read_file(path, SMALL))  # as in ``get_metadata``
    except BlockingIOError:
        follow = default(params.follow_symlinks, True)
        return run(conn, _read_file, path, follow, discard=_drop_result)
    except FilesError as error:
        raise rpc_error(error) from None


def content_result(data: bytes) -> Parts:
    """Encode the whole content of a file."""
    return Parts([b'{"dataBase64":"', codec.encode_base64(data), b'"}'])


def _read_file(path: bytes, follow: bool) -> Parts | Streamed:
    plan = regular_file.ReadPlan(path, follow=follow)
    if plan.size > WHOLE:
        return Streamed(b'{"dataBase64":"', lambda: _piece(plan), b'"}', plan.close)
    with plan:
        parts = [codec.encode_base64(piece) for piece in plan]
    return Parts([b'{"dataBase64":"', *parts, b'"}'])


def _drop_result(result: Parts | Streamed) -> None:
    if isinstance(result, Streamed):
        result.close()


def _piece(plan: regular_file.ReadPlan) -> bytes:
    return codec.encode_base64(plan.next_block(PIECE))


def _briefly(
    work: Callable[..., None], *given: Any, later: Callable[[], Awaitable[None]], **options: Any
) -> Any:
    """Change something on the event loop, as in ``get_metadata``, or by the thread of ``later``."""
    try:
        work(*given, **options, root=None, refused=frozenset(), briefly=True)
    except BlockingIOError:
        return _changed(later())
    except FilesError as error:
        raise rpc_error(error) from None
    return NOTHING


async def _changed(work: Awaitable[None]) -> Nothing:
    await work
    return NOTHING


def write_file(conn: Connection, params: WriteFileParams) -> Any:
    path, text = native_path(params.path), params.data_base64
    follow = default(params.follow_symlinks, True)
    later = partial(run, conn, _write_file, path, text, follow)
    return _briefly(_write_briefly, path, text, later=later)


def _write_briefly(path: bytes, text: str, **options: Any) -> None:
    other_root.write_file(path, decode_data(text, briefly=True), **options)


def _write_file(path: bytes, text: str, follow: bool) -> None:
    local.write_file(path, decode_data(text), follow=follow)


def decode_data(text: str, *, briefly: bool = False) -> bytes:
    """The content for fs/writeFile; raises FilesError.

    ``briefly``: it is for the event loop, so BlockingIOError if there is much of it.
    """
    if briefly and len(text) > _MOST_TEXT:
        raise BlockingIOError
    try:
        return codec.decode_base64(text, "dataBase64")
    except RpcError as error:
        text = f"fs/writeFile requires valid base64 dataBase64: {error}"
        raise FilesError(text, kind="invalid_input") from None


def create_directory(conn: Connection, params: CreateDirectoryParams) -> Any:
    path = native_path(params.path)
    recursive, follow = default(params.recursive, True), default(params.follow_symlinks, True)
    later = partial(
        run, conn, directories.create_directory, path, recursive=recursive, follow=follow
    )
    return _briefly(other_root.create_directory, path, recursive=recursive, later=later)


def get_metadata(conn: Connection, params: LinkParams) -> Any:
    path = native_path(params.path)
    try:
        # A file in the page cache is answered on the loop: a thread costs more than the answer.
        return metadata_result(at_once.get_metadata(path))
    except BlockingIOError:
        return _metadata_later(conn, path, default(params.follow_symlinks, True))
    except FilesError as error:
        raise rpc_error(error) from None


async def _metadata_later(conn: Connection, path: bytes, follow: bool) -> MetadataResult:
    return metadata_result(await run(conn, local.get_metadata, path, follow=follow))


def metadata_result(found: local.Metadata) -> MetadataResult:
    return MetadataResult(
        is_directory=found.is_directory,
        is_file=found.is_file,
        is_symlink=found.is_symlink,
        size=found.size,
        created_at_ms=found.created_at_ms,
        modified_at_ms=found.modified_at_ms,
    )


async def canonicalize(conn: Connection, params: PathParams) -> PathResult:
    found = await run(conn, local.canonicalize, native_path(params.path))
    return PathResult(path=path_uri.to_uri(found))


def read_directory(conn: Connection, params: PathParams) -> Any:
    path = native_path(params.path)
    try:
        return directory_parts(path, other_root.read_directory(path, root=None, briefly=True))
    except BlockingIOError:
        return run(conn, _read_directory, path)


def _read_directory(path: bytes) -> Parts:
    return directory_parts(path, directories.read_directory(path))


def directory_parts(path: bytes, found: list[directories.DirectoryEntry]) -> Parts:
    """Encode a ``ReadDirectoryResult``, some rows at a time.

    All at once they would take memory from the system, and give it back, with every call.
    """
    rows = [
        codec.encode([_entry(path, *entry) for entry in found[start : start + _ROWS]])[1:-1]
        for start in range(0, len(found), _ROWS)
    ]
    return Parts([b'{"entries":[', b",".join(rows), b"]}"])


def _entry(parent: bytes, name: bytes, is_directory: bool, is_file: bool) -> DirectoryEntryShape:
    try:
        text, uri = name.decode(), None
    except UnicodeDecodeError:
        text = name.decode("utf-8", "replace")
        uri = path_uri.to_uri(parent.rstrip(b"/") + b"/" + name)
    return DirectoryEntryShape(file_name=text, is_directory=is_directory, is_file=is_file, uri=uri)


async def walk_tree(conn: Connection, params: WalkParams) -> Parts:
    options = params.options
    return await run(
        conn,
        _walk,
        native_path(params.path),
        walk.WalkOptions(
            max_depth=options.max_depth,
            max_directories=options.max_directories,
            max_entries=options.max_entries,
            follow_directory_symlinks=options.follow_directory_symlinks,
            prune_hidden_directories=options.prune_hidden_directories,
        ),
    )


def _walk(path: bytes, options: walk.WalkOptions) -> Parts:
    return walk_parts(walk.walk(path, options))


def walk_parts(result: walk.WalkResult) -> Parts:
    """Encode a walk by hand: it may have tens of thousands of entries with one prefix."""
    parts: list[bytes] = []
    parent, prefix = None, b""
    for entry in result.entries:
        if entry.parent is not parent:
            parent = entry.parent
            prefix = b'{"path":"' + path_uri.to_uri(parent).encode()
        kind = b"directory" if entry.is_directory else b"file"
        parts.append(b'%b%b","kind":"%b"}' % (prefix, path_uri.quote(entry.name), kind))
    errors = [
        {"path": path_uri.to_uri(error.path), "message": error.message} for error in result.errors
    ]
    tail = b'],"errors":%b,"truncated":%b}' % (
        codec.encode(errors),
        codec.encode(result.truncated),
    )
    return Parts([b'{"entries":[', b",".join(parts), tail])


def remove(conn: Connection, params: RemoveParams) -> Any:
    path, force = native_path(params.path), default(params.force, True)
    recursive, follow = default(params.recursive, True), default(params.follow_symlinks, True)
    later = partial(
        run, conn, removal.remove, path, recursive=recursive, force=force, follow=follow
    )
    return _briefly(other_root.remove, path, force=force, later=later)


def copy(conn: Connection, params: CopyParams) -> Any:
    source, destination = native_path(params.source_path), native_path(params.destination_path)
    later = partial(run, conn, copying.copy, source, destination, recursive=params.recursive)
    return _briefly(other_root.copy, source, destination, later=later)


# --- blocks -----------------------------------------------------------------------------------


async def open_file(conn: Connection, params: OpenParams) -> HandleResult:
    mode = Mode.READ if params.mode == "read" else Mode.REPLACE
    handles, name = conn.files.handles, params.handle_id
    await run(
        conn,
        handles.open,
        name,
        native_path(params.path),
        mode,
        discard=lambda _: handles.forget(name),
    )
    return HandleResult(handle_id=params.handle_id)


async def read_block(conn: Connection, params: ReadBlockParams) -> Parts:
    return await run(
        conn, _read_block, conn.files.handles, params.handle_id, params.offset, params.len
    )


def _read_block(handles: HandleTable, handle_id: str, offset: int, length: int) -> Parts:
    data, eof = handles.read_block(handle_id, offset, length)
    return Parts([b'{"chunk":"', codec.encode_base64(data), b'","eof":%b}' % codec.encode(eof)])


async def write_block(conn: Connection, params: WriteBlockParams) -> Nothing:
    data = codec.decode_base64(params.chunk, "chunk")
    handles = conn.files.handles
    await run(conn, handles.write_block, params.handle_id, params.offset, data)
    return NOTHING


async def close_file(conn: Connection, params: HandleParams) -> Nothing:
    await run(conn, conn.files.handles.close, params.handle_id)
    return NOTHING


async def watch_missing(conn: Connection, params: WatchMissingParams) -> WatchMissingResult:
    paths = [native_path(uri) for uri in params.missing]
    slot = conn.files.watch
    if not slot.claim(params.watch_id):
        return WatchMissingResult(watching=False)
    watch = await run(conn, MissingWatch.arm, paths, discard=_close_watch)
    return WatchMissingResult(watching=slot.hold(params.watch_id, watch))


def _close_watch(watch: MissingWatch | None) -> None:
    if watch is not None:
        watch.close()
