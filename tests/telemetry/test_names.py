"""The table of metrics keeps to its own rules."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from handrail.telemetry import names
from handrail.telemetry.names import Kind, Metric

# exec-server.md, section 8, without what belongs to the remote registration and to clients
# (client_requests_total): a client of ours is a library and exports nothing.
MIRRORED = {
    "connections_active": ("gauge", ("transport",)),
    "connections_total": ("counter", ("transport",)),
    "requests_total": ("counter", ("method", "result")),
    "request_duration_seconds": ("histogram", ("method", "result")),
    "request_queue_duration_seconds": ("histogram", ("method",)),
    "request_total_duration_seconds": ("histogram", ("method", "result")),
    "processes_active": ("gauge", ()),
    "processes_finished_total": ("counter", ("result",)),
    "process_duration_seconds": ("histogram", ("result",)),
}


#: Of managed networks, which the peer does not count.
NETWORK = {
    "network_ask_seconds": ("histogram", ()),
    "network_dial_seconds": ("histogram", ()),
    "network_bytes_total": ("counter", ("direction",)),
    "network_connections": ("gauge", ()),
    "network_decisions_total": ("counter", ("decision", "reason", "protocol")),
    "network_porter_restarts_total": ("counter", ()),
}


#: Of a server's workspaces, which the peer does not have.
WORKSPACES = {
    "workspaces": ("gauge", ("state", "tenant")),
    "workspace_create_duration_seconds": ("histogram", ("kind",)),
    "workspaces_ended_total": ("counter", ("reason",)),
    "workspace_refusals_total": ("counter", ("reason",)),
    "workspace_pool_ready": ("gauge", ()),
    "workspace_templates": ("gauge", ()),
}


def test_every_metric_of_the_real_peer_has_its_mirror() -> None:
    ours = {
        metric.name.removeprefix(names.PREFIX): (
            metric.kind.value,
            tuple(label.name for label in metric.labels),
        )
        for metric in names.ALL
    }
    assert ours == MIRRORED | NETWORK | WORKSPACES


def test_every_metric_defined_is_listed() -> None:
    defined = [value for value in vars(names).values() if isinstance(value, Metric)]
    assert sorted(defined) == sorted(names.ALL)
    assert len({metric.name for metric in names.ALL}) == len(names.ALL)


@pytest.mark.parametrize("metric", names.ALL, ids=lambda metric: metric.name)
def test_names_kinds_and_buckets_fit_together(metric: Metric) -> None:
    assert re.fullmatch(r"handrail_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") is (metric.kind is Kind.COUNTER)
    assert metric.name.endswith("_seconds") is (metric.kind is Kind.HISTOGRAM)
    assert bool(metric.buckets) is (metric.kind is Kind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert metric.help.endswith(".")
    assert "\n" not in metric.help
    assert "le" not in [label.name for label in metric.labels]


@pytest.mark.parametrize("module", ["names", "metrics", "prometheus"])
def test_importing_is_cheap(module: str) -> None:
    """Measured by what is loaded, not by the clock."""
    dear = {"asyncio", "dataclasses", "inspect", "json", "logging", "socket", "opentelemetry"}
    program = (
        f"import sys; import handrail.telemetry.{module};"
        f"print(*({dear!r} & set(sys.modules)), file=sys.stderr);"
        f"sys.exit(bool({dear!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
