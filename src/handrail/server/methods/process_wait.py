"""``process/wait``: wait for a pattern, idleness, the exit or a deadline, in one message.

Output is scanned where it is stored, each byte once, a slice at a time; other requests run
between two slices.  A client cancels a wait by another wait of the same name; otherwise it would
run as long as the process.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from handrail.errors import RpcError
from handrail.process.child import Child
from handrail.process.linear_regex import PatternRefused, Search
from handrail.protocol.envelope import INVALID_PARAMS
from handrail.protocol.methods import Lane
from handrail.protocol.process import WaitParams, WaitResult
from handrail.server.methods import process_lookup

if TYPE_CHECKING:
    from handrail.server.connection import Connection

MOST_PATTERNS = 32
#: Bytes scanned before other requests run; about a millisecond a pattern.
_SLICE = 16 * 1024
#: Bytes taken from the retained output at a time.
_PAGE = 256 * 1024


class Watch:
    """Scans the output of one child from a position on."""

    def __init__(self, child: Child, patterns: list[str], position: int | None) -> None:
        self.child = child
        self.searches = [Search(pattern) for pattern in patterns]
        self.position = child.output.log.bytes_total if position is None else position
        self.omitted = 0
        self.replaced = False
        #: The task that waits, once there is one.
        self.task: asyncio.Task[object] | None = None
        self._seq = 0  # every event up to here lies before the position

    def replace(self) -> None:
        """End this wait, because another of the same name has replaced it."""
        self.replaced = True
        if self.task is not None:
            self.task.cancel()

    async def look(self) -> int | None:
        """Scan all new output; returns the index of a pattern that matches, and its position."""
        while page := self._page():
            for start, data in page:
                if start > self.position:
                    self.omitted += start - self.position
                    self.position = start
                    for search in self.searches:
                        search.reset()
                for at in range(self.position - start, len(data), _SLICE):
                    found = self._feed(data[at : at + _SLICE])
                    if found is not None:
                        return found
                    await asyncio.sleep(0)
        for index, search in enumerate(self.searches):
            if search.ends_here():
                return index
        return None

    def _feed(self, piece: bytes) -> int | None:
        hits = [
            (end, index)
            for index, search in enumerate(self.searches)
            if (end := search.feed(piece)) is not None
        ]
        end, found = min(hits, default=(len(piece), None))
        self.position += end
        return found

    def _page(self) -> list[tuple[int, bytes]]:
        """The next pieces of output with their positions, read while they are retained."""
        log = self.child.output.log
        page: list[tuple[int, bytes]] = []
        while not page:
            chunks = log.read(self._seq, _PAGE).chunks
            if not chunks:
                break
            self._seq = chunks[-1].seq
            if not self.searches:
                self.position = max(self.position, log.bytes_through(self._seq))
                continue
            for chunk in chunks:
                end = log.bytes_through(chunk.seq)
                if end > self.position:
                    page.append((end - chunk.size, self.child.output.read_chunk(chunk)))
        return page


def process_wait(conn: Connection, params: WaitParams, child: Child) -> object:
    """Check the parameters; the waiting itself is a coroutine."""
    if len(params.patterns) > MOST_PATTERNS:
        raise RpcError(INVALID_PARAMS, f"`patterns` holds more than {MOST_PATTERNS}")
    try:
        watch = Watch(child, params.patterns, params.from_byte)
    except PatternRefused as error:
        raise RpcError(INVALID_PARAMS, str(error)) from None
    key = params.wait_id
    if key is None:
        return _wait(conn, params, watch)
    if len(key) > process_lookup.LONGEST_ID:
        raise RpcError(
            INVALID_PARAMS, f"`waitId` is longer than {process_lookup.LONGEST_ID} characters"
        )
    earlier = conn.waits.get(key)
    if earlier is not None:
        earlier.replace()
    conn.waits[key] = watch
    return _replaceable(conn, params, watch, key)


async def _replaceable(conn: Connection, params: WaitParams, watch: Watch, key: str) -> WaitResult:
    watch.task = task = asyncio.current_task()
    try:
        return _result("replaced", watch) if watch.replaced else await _wait(conn, params, watch)
    except asyncio.CancelledError:
        if not watch.replaced or task is None or task.uncancel() > 0:
            raise  # the connection is gone
        return _result("replaced", watch)
    finally:
        watch.task = None
        if conn.waits.get(key) is watch:
            del conn.waits[key]


async def _wait(conn: Connection, params: WaitParams, watch: Watch) -> WaitResult:
    loop = conn.server.loop
    child = watch.child
    quiet_since = loop.time()
    idle = None if params.idle_ms is None else params.idle_ms / 1000
    wanted = process_lookup.LONGEST_WAIT if params.timeout_ms is None else params.timeout_ms / 1000
    deadline = quiet_since + min(wanted, process_lookup.LONGEST_WAIT)
    total = child.output.log.bytes_total
    conn.calls.park(Lane.ORDINARY)
    try:
        while True:
            await conn.writable()  # back-pressure: queue no replies for a client that does not read
            found = await watch.look()
            if found is not None:
                return _result("pattern", watch, found)
            if child.output.log.bytes_total != total:
                total, quiet_since = child.output.log.bytes_total, loop.time()
                continue
            if child.closed or (params.exit and not child.running):
                return _result("exit", watch)
            ends = [(deadline, "deadline")]
            if idle is not None:
                ends.append((quiet_since + idle, "idle"))
            due, why = min(ends)
            left = due - loop.time()
            if left <= 0:
                return _result(why, watch)
            await process_lookup.changed(conn, child, left)
    finally:
        conn.calls.unpark(Lane.ORDINARY)


def _result(reason: str, watch: Watch, pattern: int | None = None) -> WaitResult:
    child = watch.child
    return WaitResult(
        reason=reason,  # type: ignore[arg-type]
        position=watch.position,
        exited=not child.running,
        next_seq=child.output.log.next_seq,
        pattern=pattern,
        omitted_bytes=watch.omitted,
        output_bytes=child.output.log.bytes_total,
    )
