"""Which hosts that a process was refused belong to the last command of its session.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from handrail.workspace.result import Denial

_NAMES = ("op", "host", "port", "reason", "method", "source")


class RefusedHosts(NamedTuple):
    """Hosts that were refused, and the sentences about them."""

    denials: tuple[Denial, ...] = ()
    notes: tuple[str, ...] = ()


class HostsTold:
    """Tells new records from those of earlier commands, which are listed again."""

    def __init__(self) -> None:
        self._counts: dict[tuple[object, ...], int] = {}
        self._omitted = 0

    def new(self, records: Iterable[Mapping[str, object]]) -> list[dict[str, object]]:
        """The records that are new, or count more than before: by how much they do."""
        found: list[dict[str, object]] = []
        for record in records:
            omitted, count = _number(record, "omitted"), _number(record, "count") or 1
            if omitted:
                if omitted > self._omitted:
                    found.append({**record, "omitted": omitted - self._omitted})
                self._omitted = omitted
                continue
            key = tuple(record.get(name) for name in _NAMES)
            before = self._counts.get(key, 0)
            self._counts[key] = count
            if count > before:
                found.append({**record, "count": count - before})
        return found


def _number(record: Mapping[str, object], name: str) -> int:
    value = record.get(name)
    return value if isinstance(value, int) else 0
