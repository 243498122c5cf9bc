"""process/write (each write id once), process/closeStdin and process/resize."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any

from handrail.errors import RpcError, StdinClosed
from handrail.process.child import Child
from handrail.process.starting import Starting
from handrail.protocol import codec
from handrail.protocol.envelope import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST
from handrail.protocol.environment import NOTHING, Nothing
from handrail.protocol.methods import Lane
from handrail.protocol.process import ProcessParams, ResizeParams, WriteParams, WriteResult
from handrail.server.methods import process_lookup

if TYPE_CHECKING:
    from handrail.server.connection import Connection

log = logging.getLogger(__name__)

#: Longer ids are remembered by their hash.
LONGEST_WRITE_ID = 128

_ACCEPTED = WriteResult(status="accepted")


def process_write(conn: Connection, params: WriteParams) -> Any:
    data = codec.decode_base64(params.chunk, "chunk")
    write_id = params.write_id
    if not write_id:
        raise RpcError(INVALID_PARAMS, "writeId must not be empty")
    if len(write_id) > LONGEST_WRITE_ID:
        # Thousands are remembered for each process, so not the long ones themselves.
        write_id = "sha256 " + hashlib.sha256(write_id.encode()).hexdigest()
    child = process_lookup.entry(conn, params.process_id)
    if child is None:
        return WriteResult(status="unknownProcess")
    if isinstance(child, Starting):
        return WriteResult(status="starting")
    if not (child.spec.tty or child.spec.pipe_stdin):
        return WriteResult(status="stdinClosed")
    if child.stdin.ledger.known(write_id):
        _note_conflict(child, write_id, data)
        return _ACCEPTED
    if child.ending.terminated:
        raise RpcError(INTERNAL_ERROR, "failed to write to process stdin")
    if not child.running:
        # As the peer: accepted, although the process has no reader for it.
        child.stdin.ledger.accept(write_id, data)
        return _ACCEPTED

    free = child.stdin.room(len(data)) if params.on_full == "busy" else None
    if free is not None:
        return WriteResult(status="busy", free_bytes=free)

    def accept() -> bool:
        if child.stdin.ledger.known(write_id):
            _note_conflict(child, write_id, data)
            return False
        child.stdin.ledger.accept(write_id, data)
        return True

    try:
        turn = child.stdin.write(data, accept)
    except StdinClosed:
        return WriteResult(status="stdinClosed")
    except OSError as error:
        raise _no_room(error) from None
    return _ACCEPTED if turn is None else _write_later(conn, turn)


async def _write_later(conn: Connection, turn: Any) -> WriteResult:
    conn.calls.park(Lane.ORDINARY)
    try:
        await turn
    except StdinClosed:
        raise RpcError(INTERNAL_ERROR, "failed to write to process stdin") from None
    except OSError as error:
        raise _no_room(error) from None
    finally:
        conn.calls.unpark(Lane.ORDINARY)
    return _ACCEPTED


def _no_room(error: OSError) -> RpcError:
    return RpcError(
        INTERNAL_ERROR,
        f"the input cannot be stored ({error.strerror}); nothing was accepted, send"
        " the same write again later",
    )


def _note_conflict(child: Child, write_id: str, data: bytes) -> None:
    if child.stdin.ledger.conflicts(write_id, data):
        log.warning(
            "write id %r of process %r came again with other bytes; they were not written",
            write_id[:80],
            child.key[:80],
        )


def process_close_stdin(conn: Connection, params: ProcessParams) -> Nothing:
    process_lookup.child(conn, params.process_id).stdin.finish()
    return NOTHING


def process_resize(conn: Connection, params: ResizeParams) -> Nothing:
    child = process_lookup.child(conn, params.process_id)
    if not child.spec.tty:
        raise RpcError(
            INVALID_REQUEST,
            f"process {params.process_id} has no terminal; start it with tty to resize it",
        )
    child.output.resize(params.rows, params.cols)
    return NOTHING
