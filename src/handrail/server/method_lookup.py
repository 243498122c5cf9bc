"""The method table joined with its handlers and counters: one look-up per request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from handrail.protocol.methods import INITIALIZE, METHODS, Lane
from handrail.server.metrics import RequestMetrics, ServerMetrics


class MethodRow:
    """Everything a request needs to know about its method."""

    __slots__ = ("_measures", "_resolve", "family", "handler", "known", "lane", "shape")

    def __init__(
        self,
        lane: Lane,
        family: str,
        shape: type[Any] | None,
        handler: Callable[[Any, Any], Any] | None,
        resolve: Callable[[], RequestMetrics],
        *,
        known: bool,
    ) -> None:
        self.lane = lane
        self.family = family
        self.shape = shape
        self.handler = handler
        self._resolve = resolve
        self._measures: RequestMetrics | None = None
        self.known = known

    @property
    def measures(self) -> RequestMetrics:
        """The counters; made on first use, so that /metrics shows what was used."""
        if self._measures is None:
            self._measures = self._resolve()
        return self._measures


class MethodLookup:
    """All rows of one server; unknown methods share one."""

    def __init__(
        self, handlers: Mapping[str, Callable[[Any, Any], Any]], measures: ServerMetrics
    ) -> None:
        self._rows = {
            name: MethodRow(
                method.lane,
                "" if name == INITIALIZE else method.family,
                method.params,
                handlers.get(name),
                partial(measures.method, name),
                known=True,
            )
            for name, method in METHODS.items()
        }
        self._unknown = MethodRow(
            Lane.ORDINARY, "", None, None, partial(measures.method, ""), known=False
        )

    def find(self, method: str) -> MethodRow:
        return self._rows.get(method, self._unknown)
