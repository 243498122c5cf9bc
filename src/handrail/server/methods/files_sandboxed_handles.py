"""Handles of sandboxed files; they belong to the helper that opened them.

Names and their limit are shared with plain handles: a client has one set of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from handrail.errors import FilesError
from handrail.filesystem.handles import MAX_BLOCK, MAX_HANDLES, MAX_ID_BYTES
from handrail.protocol import codec
from handrail.protocol.environment import NOTHING, Nothing
from handrail.protocol.filesystem import (
    HandleParams,
    HandleResult,
    OpenParams,
    ReadBlockParams,
    WriteBlockParams,
)
from handrail.sandboxed_files.frames import path_text
from handrail.sandboxed_files.pool import FileHelper
from handrail.server.methods import files as plain
from handrail.server.methods.files import native_path, rpc_error
from handrail.server.raw_results import Parts

if TYPE_CHECKING:
    from handrail.server.connection import Connection


async def open_file(conn: Connection, helper: FileHelper, params: OpenParams) -> HandleResult:
    """Open a file in the helper."""
    handles, name = conn.files.helpers.handles, params.handle_id
    if len(name.encode("utf-8", "surrogatepass")) > MAX_ID_BYTES:
        text = f"file handle ID must not exceed {MAX_ID_BYTES} bytes"
        raise FilesError(text, kind="invalid_input")
    _check_free(conn, name)
    handles[name] = helper  # reserves the name
    helper.handles.add(name)
    try:
        reply = await helper.call(
            "open", _inner(name), path_text(native_path(params.path)), params.mode, True
        )
        reply.result()
    except BaseException as error:
        _let_go(conn, helper, name)
        if not isinstance(error, FilesError):  # opened, unknown to the client
            helper.tell("forget", _inner(name))
        raise
    return HandleResult(handle_id=name)


def _check_free(conn: Connection, name: str) -> None:
    files = conn.files
    if name in files.handles or files.helper_of(name) is not None:
        raise FilesError(f"file handle `{name}` already exists", kind="invalid_input")
    if len(files.handles) + files.sandboxed_handles >= MAX_HANDLES:
        text = f"at most {MAX_HANDLES} file handles may be open per connection"
        raise FilesError(text, kind="invalid_input")


def _inner(name: str) -> list[str]:
    """The client's name in the helper, distinct from the server's own."""
    return ["client", name]


def _let_go(conn: Connection, helper: FileHelper, name: str) -> None:
    helper.handles.discard(name)
    conn.files.helpers.handles.pop(name, None)


async def open_plain(conn: Connection, params: OpenParams) -> HandleResult:
    """Open a file without a sandbox, in the same set of names."""
    if conn.files.sandboxed_handles:
        try:
            _check_free(conn, params.handle_id)
        except FilesError as error:
            raise rpc_error(error) from None
    return await plain.open_file(conn, params)


async def read_block(conn: Connection, params: ReadBlockParams) -> Parts:
    helper = conn.files.helper_of(params.handle_id)
    if helper is None:
        return await plain.read_block(conn, params)
    if not 1 <= params.len <= MAX_BLOCK:
        text = f"file read block length must be between 1 and {MAX_BLOCK}"
        raise rpc_error(FilesError(text, kind="invalid_input"))
    try:
        name = _inner(params.handle_id)
        reply = await helper.call("readBlock", name, params.offset, params.len)
        eof = reply.result()
    except FilesError as error:
        _let_go(conn, helper, params.handle_id)  # as a plain one: a failed read closes it
        raise rpc_error(error) from None
    tail = b'","eof":%b}' % codec.encode(eof)
    return Parts([b'{"chunk":"', codec.encode_base64(reply.body), tail])


async def write_block(conn: Connection, params: WriteBlockParams) -> Nothing:
    helper = conn.files.helper_of(params.handle_id)
    if helper is None:
        return await plain.write_block(conn, params)
    data = codec.decode_base64(params.chunk, "chunk")
    if not 1 <= len(data) <= MAX_BLOCK:
        text = f"file write block length must be between 1 and {MAX_BLOCK}"
        raise rpc_error(FilesError(text, kind="invalid_input"))
    try:
        name = _inner(params.handle_id)
        (await helper.call("writeBlock", name, params.offset, body=data)).result()
    except FilesError as error:
        raise rpc_error(error) from None
    return NOTHING


async def close_file(conn: Connection, params: HandleParams) -> Nothing:
    helper = conn.files.helper_of(params.handle_id)
    if helper is None:
        return await plain.close_file(conn, params)
    _let_go(conn, helper, params.handle_id)
    try:
        (await helper.call("close", _inner(params.handle_id))).result()
    except FilesError as error:
        raise rpc_error(error) from None
    return NOTHING
