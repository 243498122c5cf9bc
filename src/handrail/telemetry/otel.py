"""Export the registry and the requests to an OpenTelemetry collector, by OTLP over HTTP.

The extra ``otel``: importing this module raises UsageError where the packages are missing.
Counting stays in ``metrics``; here the same numbers are read from the exporter's thread every
``interval``.

Counters and gauges are observable instruments.  There is no observable histogram, and feeding every
observation to a second histogram would cost the hot path what our own one saves, so histograms are
added as finished points to each outgoing batch.

One span per request: scope ``handrail.request``, kind server, named by its method (those the
registry knows, so that no peer chooses names), child of the request's W3C trace context if that is
valid.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from handrail.errors import UsageError
from handrail.telemetry.metrics import AnyFamily, Histogram, LabelValues, Registry
from handrail.telemetry.names import UNKNOWN, Kind, Metric
from handrail.version import __version__

try:
    from opentelemetry.context import Context
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics import export as points
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise UsageError(
        f"OpenTelemetry export was asked for, but {error.name or 'opentelemetry'} cannot be"
        " imported; run: pip install 'handrail[otel]'"
    ) from None

SCOPE = "handrail"
REQUEST_SCOPE = "handrail.request"
#: Seconds one export may take, retries included.
EXPORT_TIMEOUT = 5.0


class RequestSpan:
    """The span of one request that has begun."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def end(self, result: str) -> None:
        """``result`` as in the metrics: success, error or disconnected."""
        self._span.set_attribute("result", result)
        if result != "success":
            self._span.set_status(Status(StatusCode.ERROR, result))
        self._span.end()


class Export:
    """A running export; made by ``start``."""

    def __init__(self, meters: MeterProvider, tracers: TracerProvider, registry: Registry) -> None:
        self._meters = meters
        self._tracers = tracers
        self._tracer = tracers.get_tracer(REQUEST_SCOPE, __version__)
        self._methods = registry.methods
        self._propagator = TraceContextTextMapPropagator()

    def request(
        self, method: str, traceparent: str | None = None, tracestate: str | None = None
    ) -> RequestSpan:
        """Begin the span of a request; the two texts are those of the request's ``trace``."""
        carrier = {}
        if traceparent:
            carrier["traceparent"] = traceparent
            if tracestate:
                carrier["tracestate"] = tracestate
        name = method if method in self._methods else UNKNOWN
        span = self._tracer.start_span(
            name,
            # From an empty context: this task's own context is not the caller's.
            context=self._propagator.extract(carrier, context=Context()),
            kind=SpanKind.SERVER,
            attributes={"rpc.system": "jsonrpc", "rpc.method": name},
        )
        return RequestSpan(span)

    def flush(self, timeout: float = EXPORT_TIMEOUT) -> None:
        """Export now.  Blocks, at most about twice ``timeout`` seconds."""
        self._tracers.force_flush(int(timeout * 1000))
        self._meters.force_flush(timeout * 1000)

    def shutdown(self, timeout: float = EXPORT_TIMEOUT) -> None:
        """Export a last time and end the threads.  Blocks; not for the event loop."""
        self._tracers.shutdown()
        self._meters.shutdown(timeout * 1000)


def start(
    registry: Registry,
    endpoint: str | None = None,
    *,
    interval: float = 10.0,
    headers: dict[str, str] | None = None,
    service_name: str = "handrail",
) -> Export:
    """Begin to export.  ``endpoint`` is the base URL of a collector (``http://host:4318``);
    without one the OTEL_EXPORTER_OTLP_* variables and their default count, as for ``headers``.
    """
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise UsageError(
            f"the OpenTelemetry endpoint `{endpoint}` is no http:// or https:// URL;"
            " give the base URL of an OTLP/HTTP collector, for instance http://127.0.0.1:4318"
        )
    base = endpoint.rstrip("/") if endpoint is not None else None
    resource = Resource.create({"service.name": service_name, "service.version": __version__})
    exporter = _MetricExporter(registry, f"{base}/v1/metrics" if base else None, headers)
    reader = points.PeriodicExportingMetricReader(
        exporter,
        export_interval_millis=interval * 1000,
        export_timeout_millis=EXPORT_TIMEOUT * 1000,
    )
    meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    observe(registry, meters.get_meter(SCOPE, __version__))
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    spans = OTLPSpanExporter(
        endpoint=f"{base}/v1/traces" if base else None, headers=headers, timeout=EXPORT_TIMEOUT
    )
    tracers.add_span_processor(BatchSpanProcessor(spans))
    return Export(meters, tracers, registry)


def observe(registry: Registry, meter: Meter) -> None:
    """Register counters and gauges as observable instruments of any meter."""
    for family in registry.families:
        metric = family.metric
        if metric.kind is Kind.COUNTER:
            meter.create_observable_counter(
                metric.name, [_callback(family)], unit=_unit(metric), description=metric.help
            )
        elif metric.kind is Kind.GAUGE:
            meter.create_observable_gauge(
                metric.name, [_callback(family)], unit=_unit(metric), description=metric.help
            )


def _callback(family: AnyFamily) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def read(_options: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(cell.value, _attributes(family.metric, values))
            for values, cell in family.series().items()
            if not isinstance(cell, Histogram)
        ]

    return read


class _MetricExporter(OTLPMetricExporter):
    """Sends each batch with the registry's histograms added to it."""

    def __init__(
        self, registry: Registry, endpoint: str | None, headers: dict[str, str] | None
    ) -> None:
        super().__init__(endpoint=endpoint, headers=headers, timeout=EXPORT_TIMEOUT)
        self._registry = registry
        self._since = time.time_ns()

    def export(
        self,
        metrics_data: points.MetricsData,
        timeout_millis: float | None = EXPORT_TIMEOUT * 1000,
        **kwargs: Any,
    ) -> points.MetricExportResult:
        more = histograms(self._registry, self._since, time.time_ns())
        return super().export(_with(metrics_data, more), timeout_millis, **kwargs)


def _with(data: points.MetricsData, more: Sequence[points.Metric]) -> points.MetricsData:
    """The batch with more metrics in our scope, which is the only one of our provider."""
    resource, *resources = data.resource_metrics
    scope, *scopes = resource.scope_metrics
    scope = dataclasses.replace(scope, metrics=[*scope.metrics, *more])
    resource = dataclasses.replace(resource, scope_metrics=[scope, *scopes])
    return dataclasses.replace(data, resource_metrics=[resource, *resources])


def histograms(registry: Registry, since: int, now: int) -> list[points.Metric]:
    """The histograms of a registry as points; times in nanoseconds of the epoch."""
    return [
        points.Metric(
            name=family.metric.name,
            description=family.metric.help,
            unit=_unit(family.metric),
            data=points.Histogram(
                [
                    _point(cell, _attributes(family.metric, values), since, now)
                    for values, cell in family.series().items()
                    if isinstance(cell, Histogram)
                ],
                points.AggregationTemporality.CUMULATIVE,
            ),
        )
        for family in registry.families
        if family.metric.kind is Kind.HISTOGRAM and family.series()
    ]


def _point(
    cell: Histogram, attributes: dict[str, str], since: int, now: int
) -> points.HistogramDataPoint:
    counts = list(cell.counts)
    # Minimum and maximum are optional on the wire though not in this class; we keep neither.
    absent = cast("float", None)
    return points.HistogramDataPoint(
        attributes=attributes,
        start_time_unix_nano=since,
        time_unix_nano=now,
        count=sum(counts),
        sum=cell.sum,
        bucket_counts=counts,
        explicit_bounds=cell.bounds,
        min=absent,
        max=absent,
    )


def _attributes(metric: Metric, values: LabelValues) -> dict[str, str]:
    return {label.name: value for label, value in zip(metric.labels, values, strict=True)}


def _unit(metric: Metric) -> str:
    return "s" if metric.name.endswith("_seconds") else "1"
