"""What every workload gets, and how it counts what must not happen."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, TypeVar

from proc import Server
from wire import Process

MIB = 1 << 20
#: Keys: ``lat.*`` are lists of microseconds (pooled over repetitions, p50 and p99 reported),
#: ``bad.*`` are counts that must be zero, ``error*`` are sentences, everything else is a
#: number (median reported).
Metrics = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Context:
    """One repetition of one workload on one server."""

    server: Server
    #: A folder of our own, outside the system's temporary directory.
    scratch: str
    repetition: int
    quick: bool
    #: The Python that children run.
    python: str

    @property
    def url(self) -> str:
        return self.server.url

    def path(self, *parts: str) -> str:
        """A path in the scratch folder."""
        return os.path.join(self.scratch, *parts)

    def uri(self, *parts: str) -> str:
        """The same as the wire wants it."""
        return "file://" + self.path(*parts)

    def size(self, full: T, quick: T) -> T:
        """How much to do."""
        return quick if self.quick else full


def us(seconds: float) -> float:
    """Microseconds."""
    return seconds * 1e6


def add(metrics: Metrics, key: str, count: int) -> None:
    """Add to a counter that may not be there yet."""
    metrics[key] = metrics.get(key, 0) + count


def check(metrics: Metrics, process: Process, want: int | None = None) -> None:
    """Add the integrity of one finished process to the ``bad.*`` counters."""
    add(metrics, "bad.lost_seqs", process.lost_seqs)
    add(metrics, "bad.reordered", process.reordered)
    add(metrics, "bad.duplicates", process.duplicates)
    add(metrics, "bad.closed_before_exited", int(process.closed_before_exited))
    add(metrics, "bad.output_after_closed", process.output_after_closed)
    if want is not None:
        add(metrics, "bad.lost_bytes", want - process.bytes)
