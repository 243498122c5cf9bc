"""A write arrives once, however often it is sent.  Pure.

The last ids that were accepted are remembered with a fingerprint of their bytes.  The same id
again is acknowledged and not written; when its bytes differ, that is worth a line in the log.
"""

from __future__ import annotations

from collections import OrderedDict

#: Ids remembered per process; the peer's number.
REMEMBERED = 4096


class StdinLedger:
    """Accepted write ids, oldest first."""

    __slots__ = ("_limit", "_seen")

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._seen: OrderedDict[str, int] | None = None
        self._limit = limit

    def known(self, write_id: str) -> bool:
        return self._seen is not None and write_id in self._seen

    def conflicts(self, write_id: str, data: bytes) -> bool:
        """A known id comes back with other bytes."""
        return self._seen is not None and self._seen.get(write_id, hash(data)) != hash(data)

    def accept(self, write_id: str, data: bytes) -> None:
        if self._seen is None:
            self._seen = OrderedDict()
        self._seen[write_id] = hash(data)
        if len(self._seen) > self._limit:
            self._seen.popitem(last=False)
