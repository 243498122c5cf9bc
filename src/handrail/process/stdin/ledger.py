"""Apply each write id once, however often it is sent.

The last ids that were accepted are remembered with a fingerprint of their bytes.  The same id
again is acknowledged and not written; when its bytes differ, that is worth a line in the log.
The store that survives us gets each id together with its bytes (``store``), before it counts.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from hashlib import blake2b

#: Ids remembered per process; the peer's number.
REMEMBERED = 4096

Store = Callable[[bytes, bytes, int], None]


class StdinLedger:
    """Accepted write ids, oldest first."""

    __slots__ = ("_limit", "_seen", "store")

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._seen: OrderedDict[bytes, int] | None = None
        self._limit = limit
        #: Called with the bytes, the digest of the id and the checksum of each write.
        self.store: Store | None = None

    def known(self, write_id: str) -> bool:
        return self._seen is not None and _digest(write_id) in self._seen

    def conflicts(self, write_id: str, data: bytes) -> bool:
        """Whether a known id is repeated with other bytes."""
        check = zlib.crc32(data)
        return self._seen is not None and self._seen.get(_digest(write_id), check) != check

    def accept(self, write_id: str, data: bytes) -> None:
        """Accept a write; raises what ``store`` raises, and then nothing is accepted."""
        digest, check = _digest(write_id), zlib.crc32(data)
        if self.store is not None:
            self.store(data, digest, check)
        self._remember(digest, check)

    def recall(self, writes: Iterable[tuple[bytes, int]]) -> None:
        """Restore the writes that a previous server accepted."""
        for digest, check in writes:
            self._remember(digest, check)

    def _remember(self, digest: bytes, check: int) -> None:
        if self._seen is None:
            self._seen = OrderedDict()
        self._seen[digest] = check
        if len(self._seen) > self._limit:
            self._seen.popitem(last=False)


def _digest(write_id: str) -> bytes:
    return blake2b(write_id.encode("utf-8", "surrogatepass"), digest_size=12).digest()
