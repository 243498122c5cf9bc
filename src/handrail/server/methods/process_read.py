"""process/read: the events after a sequence number, now or when there are some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from handrail.process.child import Child
from handrail.process.output.stream import STREAM_NAMES
from handrail.protocol import codec
from handrail.protocol.methods import Lane
from handrail.protocol.process import Omitted, ReadParams
from handrail.server.methods import process_lookup
from handrail.server.notifier import denial_shapes, denied, exit_shape, usage_shape
from handrail.server.raw_results import Parts

if TYPE_CHECKING:
    from handrail.server.connection import Connection


def process_read(conn: Connection, params: ReadParams) -> Any:
    child = process_lookup.child(conn, params.process_id)
    after = params.after_seq or 0
    most = params.max_bytes
    wait = min((params.wait_ms or 0) / 1000, process_lookup.LONGEST_WAIT)
    if child.output.waits:
        child.output.acknowledge(1, after)
    result = _read_now(conn, child, after, most, last_chance=wait == 0)
    return result if result is not None else _read_later(conn, child, after, most, wait)


async def _read_later(
    conn: Connection, child: Child, after: int, most: int | None, wait: float
) -> Parts:
    loop = conn.server.loop
    deadline = loop.time() + wait
    conn.calls.park(Lane.ORDINARY)
    try:
        while True:
            await conn.writable()  # back-pressure: queue no replies for a client that does not read
            left = deadline - loop.time()
            result = _read_now(conn, child, after, most, last_chance=left <= 0)
            if result is not None:
                return result
            await process_lookup.changed(conn, child, left)
    finally:
        conn.calls.unpark(Lane.ORDINARY)


def _read_now(
    conn: Connection, child: Child, after: int, most: int | None, *, last_chance: bool
) -> Parts | None:
    page = child.output.log.read(after, most)
    exited = child.exit is not None
    if not (page.chunks or child.closed or (exited and after < page.next_seq - 1) or last_chance):
        return None
    parts = [b'{"chunks":[']
    comma = b""
    for chunk in page.chunks:
        parts.append(
            b'%b{"seq":%d,"stream":"%b","chunk":"'
            % (comma, chunk.seq, STREAM_NAMES[chunk.stream].encode())
        )
        parts.append(codec.encode_base64(child.output.read_chunk(chunk)))
        comma = b'"},'
    if page.chunks:
        parts.append(b'"}')
    tail: dict[str, object] = {
        "nextSeq": page.next_seq,
        "exited": exited,
        "exitCode": child.exit.code if child.exit is not None else None,
        "closed": child.closed,
        "failure": None,
        "sandboxDenied": denied(child),
        "exit": exit_shape(child),
        "usage": usage_shape(child),
    }
    lost_bytes, lost_chunks = child.output.log.omitted(after)
    if child.ending.held_open:
        tail["heldOpen"] = True
    if lost_chunks:
        tail["omitted"] = Omitted(bytes=lost_bytes, chunks=lost_chunks)
    so_far = child.spec.network is not None and conn.notifier.extended
    if child.ending.verdict is not None or so_far:
        tail["denials"] = denial_shapes(child)
    parts.append(b"]," + codec.encode(tail)[1:])
    if not child.output.waits:
        return Parts(parts)

    receipts = conn.notifier.receipts
    return Parts(parts, lambda: receipts.answered(child, after + 1, page.next_seq - 1))
