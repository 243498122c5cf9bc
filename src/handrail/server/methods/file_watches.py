"""``fs/watch``, ``fs/watchRead`` and ``fs/unwatch``: watches of one connection, by its names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handrail.errors import FilesError
from handrail.filesystem.trees.loop_watch import LoopWatch
from handrail.protocol.environment import NOTHING, Nothing
from handrail.protocol.file_trees import (
    FileChangeShape,
    UnwatchParams,
    WatchParams,
    WatchReadParams,
    WatchReadResult,
    relative_text,
)
from handrail.sandboxed_files.frames import path_text
from handrail.sandboxed_files.pool import FileHelper
from handrail.sandboxed_files.trees import HelperWatch
from handrail.server.methods.files import native_path, rpc_error

if TYPE_CHECKING:
    from handrail.server.connection import Connection

#: Watches of one connection.
MOST_WATCHES = 64


async def watch(conn: Connection, params: WatchParams) -> Nothing:
    try:
        _check_room(conn)
        found = await LoopWatch.lay(
            conn.files.pool, native_path(params.path), recursive=params.recursive
        )
        _hold(conn, params.watch, found)
    except FilesError as error:
        raise rpc_error(error) from None
    return NOTHING


async def watch_inside(conn: Connection, helper: FileHelper, params: WatchParams) -> Nothing:
    _check_room(conn)
    path = path_text(native_path(params.path))
    found = await HelperWatch.lay(helper, path, recursive=params.recursive)
    _hold(conn, params.watch, found)
    return NOTHING


def _check_room(conn: Connection) -> None:
    if len(conn.files.watches) >= MOST_WATCHES:
        text = f"at most {MOST_WATCHES} paths may be watched per connection; end another watch"
        raise FilesError(text, kind="too_large")


def _hold(conn: Connection, name: str, watch: LoopWatch | HelperWatch) -> None:
    """Keep it; one of the same name ends: the answer to the first request was lost.

    Raises FilesError: others may have been laid meanwhile.
    """
    before = conn.files.watches.pop(name, None)
    if before is not None:
        before.stop()
    try:
        _check_room(conn)
    except FilesError:
        watch.stop()
        raise
    conn.files.watches[name] = watch


async def watch_read(conn: Connection, params: WatchReadParams) -> WatchReadResult:
    found = conn.files.watches.get(params.watch)
    try:
        if found is None:
            text = f"nothing is watched as `{params.watch}` on this connection; watch it again"
            raise FilesError(text, kind="not_found")
        happened = await found.read(params.wait_ms / 1000)
    except FilesError as error:
        raise rpc_error(error) from None
    changes = [
        FileChangeShape(kind=event.kind, path=relative_text(event.path))  # type: ignore[arg-type]
        for event in happened.events
    ]
    return WatchReadResult(changes=changes, gap=happened.gap, ended=happened.ended)


def unwatch(conn: Connection, params: UnwatchParams) -> Nothing:
    found = conn.files.watches.pop(params.watch, None)
    if found is not None:
        found.stop()
    return NOTHING
