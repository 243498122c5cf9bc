"""The text a scraper reads."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.telemetry import names, prometheus
from handrail.telemetry.metrics import Registry
from handrail.telemetry.names import Kind, Label, Metric


def test_a_small_registry_byte_for_byte() -> None:
    label = Label("result", ("success", "error"))
    metrics = (
        Metric("x_total", Kind.COUNTER, "How many \\ of\nthem.", (label,)),
        Metric("x_active", Kind.GAUGE, "Now."),
        Metric("x_seconds", Kind.HISTOGRAM, "How long.", (label,), (0.5, 2.0)),
    )
    registry = Registry(metrics=metrics)
    registry.counter(metrics[0]).labels(result="success").inc(2)
    registry.counter(metrics[0]).labels(result="bad").inc()
    registry.gauge(metrics[1]).labels().set(-1.5)
    histogram = registry.histogram(metrics[2]).labels(result="error")
    for value in (0.25, 0.5, 1.0, 8.0):
        histogram.observe(value)
    assert prometheus.render(registry).decode() == (
        "# HELP x_total How many \\\\ of\\nthem.\n"
        "# TYPE x_total counter\n"
        'x_total{result="success"} 2\n'
        'x_total{result="unknown"} 1\n'
        "# HELP x_active Now.\n"
        "# TYPE x_active gauge\n"
        "x_active -1.5\n"
        "# HELP x_seconds How long.\n"
        "# TYPE x_seconds histogram\n"
        'x_seconds_bucket{result="error",le="0.5"} 2\n'
        'x_seconds_bucket{result="error",le="2.0"} 3\n'
        'x_seconds_bucket{result="error",le="+Inf"} 4\n'
        'x_seconds_sum{result="error"} 9.75\n'
        'x_seconds_count{result="error"} 4\n'
    )


def test_all_metrics_are_announced_before_anything_happened() -> None:
    text = prometheus.render(Registry()).decode()
    for metric in names.ALL:
        assert f"# TYPE {metric.name} {metric.kind.value}\n" in text
    assert "\nhandrail_processes_active 0\n" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(float("inf"), "+Inf"), (float("-inf"), "-Inf"), (float("nan"), "NaN"), (1e-07, "1e-07")],
)
def test_odd_numbers(value: float, text: str) -> None:
    registry = Registry()
    registry.gauge(names.PROCESSES_ACTIVE).labels().set(value)
    assert f"\nhandrail_processes_active {text}\n" in prometheus.render(registry).decode()


@given(st.text())
def test_a_label_value_comes_back_and_stays_on_its_line(value: str) -> None:
    metric = Metric("x_total", Kind.COUNTER, "X.", (Label("method", None),))
    registry = Registry(methods=[value], metrics=[metric])
    registry.counter(metric).labels(method=value).inc()
    text = prometheus.render(registry).decode()
    line = text.split("\n")[2]
    assert text == "\n".join([*text.split("\n")[:2], line, ""])
    match = re.fullmatch(r'x_total\{method="((?:[^"\\]|\\["\\n])*)"\} 1', line, re.DOTALL)
    assert match is not None
    unescape = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
    assert re.sub(r'\\["\\n]', lambda found: unescape[found[0]], match[1]) == value


def test_the_content_type_names_the_version() -> None:
    assert prometheus.CONTENT_TYPE == "text/plain; version=0.0.4; charset=utf-8"
