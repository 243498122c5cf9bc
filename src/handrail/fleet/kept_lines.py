"""Lines of a node that no workspace uses now, kept for the next ones.

A lane of ``map`` ends with a line whose session is in no workspace.  Dialing another one takes
a handshake, so the next lane, or the next workspace, takes it over.  One that is not
taken for ``park_after`` seconds is closed, and its session ends.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from handrail.fleet.data_line import DataLine
    from handrail.fleet.node import Node
    from handrail.fleet.workspace import FleetWorkspace

#: The most of one node.
_MOST = 64


class KeptLines:
    """Those of one node."""

    def __init__(self) -> None:
        self._lines: list[DataLine] = []

    def __len__(self) -> int:
        return len(self._lines)

    def put(self, line: DataLine) -> bool:
        """Keep a line that is in no workspace; False: it is not worth it, or there are enough."""
        if len(self._lines) >= _MOST or not _usable(line):
            return False
        line.used = asyncio.get_running_loop().time()
        self._lines.append(line)
        return True

    def take(self) -> DataLine | None:
        """The line that was used last, which belongs to the caller now; None: there is none."""
        for at in range(len(self._lines) - 1, -1, -1):
            if _usable(self._lines[at]):
                return self._lines.pop(at)
        return None

    async def close(self, before: float | None = None) -> None:
        """Close those that were last used before that time, and broken ones; None: all."""
        over = [
            line
            for line in self._lines
            if before is None or line.used < before or not _usable(line)
        ]
        self._lines = [line for line in self._lines if line not in over]
        for line in over:
            line.node.lines.discard(line)
        await asyncio.gather(*(line.close() for line in over))


def _usable(line: DataLine) -> bool:
    return (
        line.failure is None
        and line.connected
        and not line.parked
        and line.idle
        and line.incarnation == line.node.incarnation
    )


async def give_up_idle(
    spaces: Mapping[str, FleetWorkspace], nodes: Callable[[], Iterable[Node]], after: float
) -> None:
    """Give up the connections of idle workspaces, and those without one, again and again."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(min(10.0, after / 4))
        before = loop.time() - after
        for space in list(spaces.values()):
            line = space.line
            if line.idle and not line.parked and line.used < before:
                line.park()
        for node in nodes():
            await node.kept_lines.close(before)
