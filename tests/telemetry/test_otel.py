"""Export to a collector: a real exporter, a loopback HTTP server, real protobuf."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from handrail.errors import UsageError
from handrail.telemetry import names
from handrail.telemetry.metrics import Registry

pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http",
    reason="the extra is not installed: pip install 'handrail[otel]'",
)

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from handrail.telemetry import otel

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
NEVER = 3600.0


class Collector:
    """Keeps what was posted to it."""

    def __init__(self) -> None:
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.traces: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.take(self.path, body, {k.lower(): v for k, v in self.headers.items()})
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def take(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        kinds: dict[str, tuple[Any, list[Any]]] = {
            "/v1/metrics": (ExportMetricsServiceRequest, self.metrics),
            "/v1/traces": (ExportTraceServiceRequest, self.traces),
        }
        message, kept = kinds[path]
        kept.append(message.FromString(body))
        self.headers.append(headers)

    def latest(self) -> dict[str, Any]:
        """The metrics of the last batch by name."""
        (resource,) = self.metrics[-1].resource_metrics
        (scope,) = resource.scope_metrics
        assert scope.scope.name == "handrail"
        return {metric.name: metric for metric in scope.metrics}

    def spans(self) -> list[Any]:
        return [
            span
            for batch in self.traces
            for resource in batch.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join(10)


@pytest.fixture
def registry() -> Registry:
    return Registry(methods=["initialize", "process/start"])


@pytest.fixture
def export(collector: Collector, registry: Registry) -> Iterator[otel.Export]:
    running = otel.start(registry, collector.url + "/", interval=NEVER, headers={"x-tenant": "t1"})
    yield running
    running.shutdown()


def attributes(point: Any) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in point.attributes}


def test_the_numbers_of_the_registry_arrive(
    collector: Collector, registry: Registry, export: otel.Export
) -> None:
    requests = registry.counter(names.REQUESTS_TOTAL)
    requests.labels(method="initialize", result="success").inc(3)
    requests.labels(method="made-up", result="error").inc()
    registry.gauge(names.PROCESSES_ACTIVE).labels().set(2)
    durations = registry.histogram(names.PROCESS_DURATION).labels(result="success")
    for value in (0.001, 0.1, 99999.0):
        durations.observe(value)
    export.flush()
    metrics = collector.latest()

    total = metrics["handrail_requests_total"]
    assert total.description == names.REQUESTS_TOTAL.help
    assert total.sum.is_monotonic
    assert {tuple(attributes(p).values()): p.as_int for p in total.sum.data_points} == {
        ("initialize", "success"): 3,
        ("unknown", "error"): 1,
    }
    (active,) = metrics["handrail_processes_active"].gauge.data_points
    assert active.as_int == 2

    lasted = metrics["handrail_process_duration_seconds"]
    assert lasted.unit == "s"
    (point,) = lasted.histogram.data_points
    assert attributes(point) == {"result": "success"}
    assert list(point.explicit_bounds) == list(names.PROCESS_BUCKETS)
    assert list(point.bucket_counts) == [1, 0, 1, *[0] * 8, 1]
    assert (point.count, point.sum) == (3, pytest.approx(99999.101))
    assert not point.HasField("min")
    assert 0 < point.start_time_unix_nano < point.time_unix_nano
    assert collector.headers[-1]["x-tenant"] == "t1"


def test_the_next_batch_has_the_newer_numbers(
    collector: Collector, registry: Registry, export: otel.Export
) -> None:
    counter = registry.counter(names.CONNECTIONS_TOTAL).labels(transport="websocket")
    counter.inc()
    export.flush()
    counter.inc(4)
    registry.counter(names.CONNECTIONS_TOTAL).labels(transport="stdio").inc()
    export.flush()
    points = collector.latest()["handrail_connections_total"].sum.data_points
    assert {attributes(p)["transport"]: p.as_int for p in points} == {"websocket": 5, "stdio": 1}


def test_shutting_down_sends_the_rest(collector: Collector, registry: Registry) -> None:
    running = otel.start(registry, collector.url, interval=NEVER)
    registry.gauge(names.PROCESSES_ACTIVE).labels().set(7)
    running.request("initialize").end("success")
    running.shutdown()
    (active,) = collector.latest()["handrail_processes_active"].gauge.data_points
    assert active.as_int == 7
    assert [span.name for span in collector.spans()] == ["initialize"]


def test_a_request_is_a_server_span_below_its_caller(
    collector: Collector, export: otel.Export
) -> None:
    span = export.request("process/start", f"00-{TRACE}-{PARENT}-01", "vendor=1")
    span.end("success")
    export.flush()
    (seen,) = collector.spans()
    assert seen.name == "process/start"
    assert seen.kind == seen.SPAN_KIND_SERVER
    assert (seen.trace_id.hex(), seen.parent_span_id.hex()) == (TRACE, PARENT)
    assert seen.trace_state == "vendor=1"
    assert attributes(seen) == {
        "rpc.system": "jsonrpc",
        "rpc.method": "process/start",
        "result": "success",
    }
    assert seen.status.code == seen.status.STATUS_CODE_UNSET
    scope = collector.traces[0].resource_spans[0].scope_spans[0].scope
    assert scope.name == "handrail.request"
    resource = collector.traces[0].resource_spans[0].resource
    assert attributes(resource)["service.name"] == "handrail"


@pytest.mark.parametrize(
    "traceparent",
    [
        None,
        "",
        "nonsense",
        f"00-{TRACE}-{PARENT}",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-\x00" + "x" * 9000,
    ],
)
def test_a_caller_without_a_valid_context_is_no_parent(
    collector: Collector, export: otel.Export, traceparent: str | None
) -> None:
    export.request("initialize", traceparent, "vendor=1").end("success")
    export.flush()
    (seen,) = collector.spans()
    assert seen.parent_span_id == b""
    assert seen.trace_id.hex() != TRACE


def test_an_unknown_method_names_no_span_and_a_failure_shows(
    collector: Collector, export: otel.Export
) -> None:
    export.request("made-up\x1b[31m").end("error")
    export.request("initialize").end("disconnected")
    export.flush()
    unknown, gone = collector.spans()
    assert unknown.name == "unknown"
    assert attributes(unknown)["rpc.method"] == "unknown"
    assert unknown.status.code == unknown.status.STATUS_CODE_ERROR
    assert attributes(gone)["result"] == gone.status.message == "disconnected"


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "ftp://x", ""])
def test_an_endpoint_is_a_url(registry: Registry, endpoint: str) -> None:
    with pytest.raises(UsageError, match="give the base URL"):
        otel.start(registry, endpoint)


def test_a_missing_extra_is_named_with_its_cure() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from handrail.errors import UsageError\n"
        "try:\n"
        "    import handrail.telemetry.otel\n"
        "except UsageError as error:\n"
        "    print(error, error.__cause__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == (
        "OpenTelemetry export was asked for, but opentelemetry.context cannot be imported;"
        " run: pip install 'handrail[otel]' None\n"
    )
