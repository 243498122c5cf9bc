"""A registry of the metrics in ``names``, and the handles that are incremented.

Look a handle up once, keep it, increment it for ever: ``labels`` costs a dictionary lookup and a
check, ``inc`` an addition.

    finished = registry.counter(names.PROCESSES_FINISHED_TOTAL)
    succeeded = finished.labels(result="success")
    succeeded.inc()

Handles are made and incremented on one thread, the event loop's.  Exporters may read from another
one: they see each number whole, and the table of handles is replaced, never changed.  Memory is
bounded, since every label has a closed set of values, or takes so many.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar, cast

from handrail.telemetry import names
from handrail.telemetry.names import Kind, Metric


class Counter:
    """Only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def inc(self, amount: float = 1) -> None:
        self.value += amount


class Gauge(Counter):
    """Goes up and down."""

    __slots__ = ()

    def dec(self, amount: float = 1) -> None:
        self.value -= amount

    def set(self, value: float) -> None:
        self.value = value


class Histogram:
    """How often values fell into each bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        #: One per bound and one for all beyond; not cumulative.
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float = 0.0

    def observe(self, value: float) -> None:
        """Count a value; a bound belongs to its bucket (``le``), a negative value counts as 0."""
        if value < 0:
            value = 0.0
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)


Cell = TypeVar("Cell", Counter, Gauge, Histogram)
LabelValues = tuple[str, ...]


class Family(Generic[Cell]):
    """All series of one metric."""

    __slots__ = ("_allowed", "_cells", "_make", "metric")

    def __init__(
        self, metric: Metric, allowed: tuple[frozenset[str], ...], make: Callable[[], Cell]
    ) -> None:
        self.metric = metric
        self._allowed = allowed
        self._make: Callable[[], Cell] = make
        self._cells: dict[LabelValues, Cell] = {}
        if not metric.labels:
            self.labels()  # a series without labels is shown from the start

    def labels(self, **values: str) -> Cell:
        """The handle of one series.  All labels must be given; a value outside the label's set
        is taken as ``unknown``.  Raises ValueError for other labels than the metric's."""
        if len(values) != len(self._allowed):
            raise ValueError(self._expectation())
        key = []
        for label, allowed in zip(self.metric.labels, self._allowed, strict=True):
            value = values.get(label.name)
            if value is None:
                raise ValueError(self._expectation())
            known = value in allowed or (label.most > 0 and self._takes(label.name, value))
            key.append(value if known else names.UNKNOWN)
        cell = self._cells.get(tuple(key))
        if cell is None:
            cell = self._make()
            self._cells = {**self._cells, tuple(key): cell}
        return cell

    def _takes(self, name: str, value: str) -> bool:
        """Whether a label without a set of its own may have this value."""
        place = [label.name for label in self.metric.labels].index(name)
        taken = {key[place] for key in self._cells} - {names.UNKNOWN}
        return value in taken or len(taken) < self.metric.labels[place].most

    def series(self) -> Mapping[LabelValues, Cell]:
        """The handles so far, by their label values in the order of the metric's labels."""
        return self._cells

    def _expectation(self) -> str:
        wanted = ", ".join(label.name for label in self.metric.labels) or "no labels"
        return f"{self.metric.name} takes exactly: {wanted}"


AnyFamily = Family[Counter] | Family[Gauge] | Family[Histogram]


class Registry:
    """The families of one program; ``methods`` are the values the label ``method`` may have."""

    def __init__(self, methods: Iterable[str] = (), metrics: Iterable[Metric] = names.ALL) -> None:
        self.methods = frozenset(methods)
        self._families: dict[str, AnyFamily] = {
            metric.name: _family(metric, self.methods) for metric in metrics
        }

    @property
    def families(self) -> tuple[AnyFamily, ...]:
        return tuple(self._families.values())

    def counter(self, metric: Metric) -> Family[Counter]:
        return cast("Family[Counter]", self._find(metric, Kind.COUNTER))

    def gauge(self, metric: Metric) -> Family[Gauge]:
        return cast("Family[Gauge]", self._find(metric, Kind.GAUGE))

    def histogram(self, metric: Metric) -> Family[Histogram]:
        return cast("Family[Histogram]", self._find(metric, Kind.HISTOGRAM))

    def _find(self, metric: Metric, kind: Kind) -> AnyFamily:
        family = self._families.get(metric.name)
        if family is None:
            raise ValueError(f"{metric.name} is not in this registry; list it in telemetry.names")
        if metric.kind is not kind:
            raise ValueError(f"{metric.name} is a {metric.kind.value}, not a {kind.value}")
        return family


def _family(metric: Metric, methods: frozenset[str]) -> AnyFamily:
    allowed = tuple(
        methods if label.values is None else frozenset(label.values) for label in metric.labels
    )
    if metric.kind is Kind.COUNTER:
        return Family(metric, allowed, Counter)
    if metric.kind is Kind.GAUGE:
        return Family(metric, allowed, Gauge)
    return Family(metric, allowed, lambda: Histogram(metric.buckets))
