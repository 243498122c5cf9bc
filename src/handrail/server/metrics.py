"""What the server counts, each thing exactly once.

Handles are resolved here, once per label set, so that counting costs an addition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from handrail.process.child import Child
from handrail.process.exit_status import ExitKind
from handrail.telemetry import names
from handrail.telemetry.metrics import Counter, Gauge, Histogram, Registry

if TYPE_CHECKING:
    from handrail.network.records import Record

_FINISHED = ("success", "error", "terminated", names.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How often a method ended in one way, and how long that took."""

    count: Counter
    seconds: Histogram
    total_seconds: Histogram


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """The handles of one method."""

    queued: Histogram
    outcomes: dict[str, Outcome]


class ServerMetrics:
    """The registry of one server, with its handles."""

    def __init__(self, methods: tuple[str, ...]) -> None:
        self.registry = registry = Registry(methods)
        self._known = frozenset(methods)
        self._methods: dict[str, RequestMetrics] = {}
        #: Connections of managed networks: of which process, and its number there.
        self._carried: set[tuple[str, int]] = set()
        self._active: Gauge = registry.gauge(names.PROCESSES_ACTIVE).labels()
        finished = registry.counter(names.PROCESSES_FINISHED_TOTAL)
        duration = registry.histogram(names.PROCESS_DURATION)
        self._finished = {
            result: (finished.labels(result=result), duration.labels(result=result))
            for result in _FINISHED
        }

    def method(self, name: str) -> RequestMetrics:
        """The handles for requests of one method; unknown methods share a row."""
        found = self._methods.get(name)
        if found is None:
            if name not in self._known:
                name = names.UNKNOWN
            found = self._methods.get(name) or self._resolve(name)
            self._methods[name] = found
        return found

    def _resolve(self, name: str) -> RequestMetrics:
        registry = self.registry

        def outcome(result: str) -> Outcome:
            return Outcome(
                registry.counter(names.REQUESTS_TOTAL).labels(method=name, result=result),
                registry.histogram(names.REQUEST_DURATION).labels(method=name, result=result),
                registry.histogram(names.REQUEST_TOTAL_DURATION).labels(method=name, result=result),
            )

        queued = registry.histogram(names.REQUEST_QUEUE_DURATION).labels(method=name)
        results = ("success", "error", "disconnected")
        return RequestMetrics(queued, {result: outcome(result) for result in results})

    def connected(self, transport: str) -> None:
        self.registry.gauge(names.CONNECTIONS_ACTIVE).labels(transport=transport).inc()
        self.registry.counter(names.CONNECTIONS_TOTAL).labels(transport=transport).inc()

    def disconnected(self, transport: str) -> None:
        self.registry.gauge(names.CONNECTIONS_ACTIVE).labels(transport=transport).dec()

    @property
    def running(self) -> int:
        """Processes of all sessions that have not exited."""
        return int(self._active.value)

    # --- managed networks: called by the porter's owner ------------------------------------

    def network_recorded(self, record: Record) -> None:
        registry = self.registry
        if record.kind == "end":
            self._carried.discard((record.process, record.connection))
            moved = registry.counter(names.NETWORK_BYTES_TOTAL)
            moved.labels(direction="sent").inc(record.sent)
            moved.labels(direction="received").inc(record.received)
            self._count_carried()
            if record.dialled is not None:
                dialled = registry.histogram(names.NETWORK_DIAL_SECONDS).labels()
                dialled.observe(record.dialled)
            return
        registry.counter(names.NETWORK_DECISIONS_TOTAL).labels(
            decision=record.decision, reason=record.reason, protocol=record.protocol
        ).inc()
        if record.decision == "allow":
            self._carried.add((record.process, record.connection))
            self._count_carried()

    def _count_carried(self) -> None:
        self.registry.gauge(names.NETWORK_CONNECTIONS).labels().set(len(self._carried))

    def network_answered(self, seconds: float) -> None:
        self.registry.histogram(names.NETWORK_ASK_SECONDS).labels().observe(seconds)

    def porter_restarted(self) -> None:
        self._carried.clear()
        self._count_carried()
        self.registry.counter(names.NETWORK_PORTER_RESTARTS_TOTAL).labels().inc()

    # --- processes: called by the process table --------------------------------------------

    def started(self, child: Child) -> None:
        self._active.inc()

    def exited(self, child: Child) -> None:
        self._active.dec()
        info = child.exit
        if child.ending.terminated or (info is not None and info.kind is ExitKind.TERMINATED):
            result = "terminated"
        elif info is None or info.code is None:
            result = names.UNKNOWN
        else:
            result = "success" if info.code == 0 else "error"
        count, seconds = self._finished[result]
        count.inc()
        seconds.observe(child.age)
