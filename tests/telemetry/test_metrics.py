"""Counting: handles, bounded labels, buckets."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.telemetry import names
from handrail.telemetry.metrics import Histogram, Registry


@pytest.fixture
def registry() -> Registry:
    return Registry(methods=["initialize", "process/start"])


def test_a_handle_counts_its_own_series(registry: Registry) -> None:
    family = registry.counter(names.REQUESTS_TOTAL)
    started = family.labels(method="process/start", result="success")
    failed = family.labels(method="process/start", result="error")
    started.inc()
    started.inc(2)
    failed.inc()
    assert (started.value, failed.value) == (3, 1)
    assert family.labels(result="success", method="process/start") is started
    assert list(family.series()) == [("process/start", "success"), ("process/start", "error")]


def test_a_gauge_goes_up_and_down(registry: Registry) -> None:
    gauge = registry.gauge(names.PROCESSES_ACTIVE).labels()
    gauge.inc()
    gauge.inc(4)
    gauge.dec()
    assert gauge.value == 4
    gauge.set(9)
    gauge.dec(2)
    assert gauge.value == 7


def test_a_family_is_the_same_wherever_it_is_asked_for(registry: Registry) -> None:
    assert registry.counter(names.REQUESTS_TOTAL) is registry.counter(names.REQUESTS_TOTAL)
    assert [family.metric for family in registry.families] == list(names.ALL)


@given(st.lists(st.text(), max_size=50), st.lists(st.text(), max_size=50))
def test_no_peer_can_choose_a_label(methods: list[str], results: list[str]) -> None:
    registry = Registry(methods=["initialize"])
    family = registry.counter(names.REQUESTS_TOTAL)
    for method in methods:
        for result in results:
            family.labels(method=method, result=result).inc()
    values = {"initialize", "unknown"}, {"success", "error", "disconnected", "unknown"}
    assert all(key[0] in values[0] and key[1] in values[1] for key in family.series())
    assert sum(cell.value for cell in family.series().values()) == len(methods) * len(results)


def test_unknown_methods_share_one_series(registry: Registry) -> None:
    family = registry.histogram(names.REQUEST_QUEUE_DURATION)
    assert family.labels(method="nope") is family.labels(method="unknown")
    assert family.labels(method="nope") is not family.labels(method="initialize")


def test_without_methods_all_of_them_are_unknown() -> None:
    family = Registry().counter(names.REQUESTS_TOTAL)
    family.labels(method="initialize", result="success")
    assert list(family.series()) == [("unknown", "success")]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"method": "initialize"},
        {"method": "initialize", "outcome": "success"},
        {"method": "initialize", "result": "success", "more": "x"},
    ],
)
def test_labels_must_be_those_of_the_metric(registry: Registry, values: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="takes exactly: method, result"):
        registry.counter(names.REQUESTS_TOTAL).labels(**values)


def test_a_metric_without_labels_takes_none(registry: Registry) -> None:
    with pytest.raises(ValueError, match="takes exactly: no labels"):
        registry.gauge(names.PROCESSES_ACTIVE).labels(method="x")


def test_a_metric_is_asked_for_by_its_kind(registry: Registry) -> None:
    with pytest.raises(ValueError, match="is a counter, not a gauge"):
        registry.gauge(names.REQUESTS_TOTAL)
    with pytest.raises(ValueError, match="is a gauge, not a histogram"):
        registry.histogram(names.PROCESSES_ACTIVE)
    stranger = names.Metric("other_total", names.Kind.COUNTER, "Something.")
    with pytest.raises(ValueError, match="not in this registry"):
        registry.counter(stranger)


@pytest.mark.parametrize(
    ("value", "bucket"),
    [(-5.0, 0), (0.0, 0), (1.0, 0), (1.0000001, 1), (10.0, 1), (10.5, 2), (float("inf"), 2)],
)
def test_a_bound_belongs_to_its_bucket(value: float, bucket: int) -> None:
    histogram = Histogram((1.0, 10.0))
    histogram.observe(value)
    assert histogram.counts == [int(index == bucket) for index in range(3)]
    assert histogram.count == 1


@given(st.lists(st.floats(min_value=0, max_value=1e6)))
def test_a_histogram_agrees_with_counting_by_hand(values: list[float]) -> None:
    histogram = Histogram(names.PROCESS_BUCKETS)
    for value in values:
        histogram.observe(value)
    assert histogram.count == len(values)
    assert histogram.sum == pytest.approx(sum(values))
    for index, bound in enumerate(names.PROCESS_BUCKETS):
        assert sum(histogram.counts[: index + 1]) == sum(value <= bound for value in values)


def test_reading_from_another_thread_while_series_are_made() -> None:
    methods = [f"m{number}" for number in range(2000)]
    registry = Registry(methods=methods)
    family = registry.counter(names.REQUESTS_TOTAL)
    ready = threading.Event()
    done = threading.Event()
    sizes: list[int] = []

    def read() -> None:
        while not done.is_set():
            sizes.append(sum(1 for _ in family.series().items()))
            ready.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert ready.wait(10)
    for method in methods:
        family.labels(method=method, result="success").inc()
    done.set()
    reader.join(10)
    assert not reader.is_alive()
    assert sizes == sorted(sizes)
    assert len(family.series()) == 2000
