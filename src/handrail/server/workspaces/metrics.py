"""Metrics of the workspaces of a server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from handrail.errors import RpcError
from handrail.telemetry import names
from handrail.telemetry.metrics import Registry


class WorkspaceMetrics:
    """The series of workspaces in the registry of one server."""

    def __init__(self, registry: Registry) -> None:
        self._workspaces = registry.gauge(names.WORKSPACES)
        self._made = registry.histogram(names.WORKSPACE_CREATE_DURATION)
        self._ended = registry.counter(names.WORKSPACES_ENDED_TOTAL)
        self._refused = registry.counter(names.WORKSPACE_REFUSALS_TOTAL)
        self._ready = registry.gauge(names.WORKSPACE_POOL_READY).labels()
        self._templates = registry.gauge(names.WORKSPACE_TEMPLATES).labels()

    def made(self, kind: str, seconds: float) -> None:
        """The files of one were made: ``empty``, ``copied`` or ``warm``."""
        self._made.labels(kind=kind).observe(seconds)

    def ended(self, reason: str) -> None:
        self._ended.labels(reason=reason).inc()

    def refused(self, error: RpcError) -> None:
        """Count a refusal, if the error says for what; others are the request's own faults."""
        what = error.data.get("what") if isinstance(error.data, dict) else None
        for reason in str(what).split(","):
            if reason in (names.WORKSPACE_REFUSAL.values or ()):
                self._refused.labels(reason=reason).inc()

    def count(self, found: Iterable[tuple[str, str]], ready: int, templates: int) -> None:
        """What there is now: state and tenant of each workspace, and what is kept for new ones."""
        numbers = dict.fromkeys(self._workspaces.series().values(), 0)
        for (state, tenant), number in Counter(found).items():
            cell = self._workspaces.labels(state=state, tenant=tenant)
            numbers[cell] = numbers.get(cell, 0) + number  # several tenants may be one series
        for cell, number in numbers.items():
            cell.set(number)
        self._ready.set(ready)
        self._templates.set(templates)
