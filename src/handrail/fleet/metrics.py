"""Metrics of a fleet: those of each server with the label ``node``, and those of this driver."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections import Counter
from typing import TYPE_CHECKING

from handrail.errors import HandrailError

if TYPE_CHECKING:
    import ssl as ssl_module

    from handrail.fleet.engine import Engine
    from handrail.fleet.node import Node
    from handrail.fleet.reports import FleetStatus

_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(\{.*\})?( .*)")
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_FETCH_SECONDS = 10.0
#: What one server may tell; some thousand series.
_MOST_BYTES = 16 * 1024 * 1024


class FleetMetrics:
    """What one driver counts."""

    def __init__(self) -> None:
        self._tasks: Counter[str] = Counter()
        self._buckets = [0] * len(_BUCKETS)
        self._made = 0
        self._seconds = 0.0

    def created(self, seconds: float) -> None:
        """A workspace was made in that time."""
        self._made += 1
        self._seconds += seconds
        for number, most in enumerate(_BUCKETS):
            if seconds <= most:
                self._buckets[number] += 1

    def ended(self, state: str) -> None:
        """A task of ``map`` has ended so."""
        self._tasks[state] += 1

    def text(self, status: FleetStatus, waiting: int) -> str:
        """The series as Prometheus reads them."""
        states = Counter(node.state for node in status.nodes)
        ready = sum(sum(node.pools.values()) for node in status.nodes if node.state == "ready")
        lines = ["# TYPE handrail_fleet_nodes gauge"]
        lines += [f'handrail_fleet_nodes{{state="{s}"}} {n}' for s, n in sorted(states.items())]
        for name, value in (
            ("workspaces", status.workspaces),
            ("waiting", waiting),
            ("pool_ready", ready),
        ):
            lines += [f"# TYPE handrail_fleet_{name} gauge", f"handrail_fleet_{name} {value}"]
        lines.append("# TYPE handrail_fleet_tasks_total counter")
        lines += [
            f'handrail_fleet_tasks_total{{state="{state}"}} {self._tasks[state]}'
            for state in ("ok", "failed", "lost")
        ]
        name = "handrail_fleet_create_seconds"
        lines.append(f"# TYPE {name} histogram")
        lines += [
            f'{name}_bucket{{le="{most:g}"}} {count}'
            for most, count in zip(_BUCKETS, self._buckets, strict=True)
        ]
        lines += [
            f'{name}_bucket{{le="+Inf"}} {self._made}',
            f"{name}_sum {self._seconds:.6f}",
            f"{name}_count {self._made}",
        ]
        return "\n".join(lines) + "\n"


async def of_nodes(nodes: list[Node], engine: Engine) -> str:
    """The metrics of all nodes that offer them, each sample with its node."""
    texts = await asyncio.gather(*(_fetched(node, engine) for node in nodes))
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for node, text in zip(nodes, texts, strict=True):
        family = ""
        for line in text.splitlines():
            if line.startswith("#"):
                words = line.split(" ", 3)
                family = words[2] if len(words) > 2 else family
                known = heads.setdefault(family, [])
                if line not in known:
                    known.append(line)
            elif line:
                samples.setdefault(family, []).append(labelled(line, node.id))
    return "".join("\n".join([*heads[family], *samples.get(family, [])]) + "\n" for family in heads)


def labelled(line: str, node: str) -> str:
    """A sample with one label more."""
    found = _SAMPLE.fullmatch(line)
    if found is None:
        return line
    name, labels, rest = found.groups()
    inner = (labels or "{}")[1:-1]
    return f'{name}{{node="{node}"{"," if inner else ""}{inner}}}{rest}'


class _Stays(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the token and this request are for that server alone."""

    def redirect_request(self, *_: object) -> None:
        """Take the redirect as an error."""


def fetch(url: str, token: str | None, context: ssl_module.SSLContext | None) -> str:
    """``GET /metrics`` of a server at ``ws://`` or ``wss://``; raises OSError."""
    request = urllib.request.Request(  # noqa: S310 (a server of the fleet)
        "http" + url.removeprefix("ws").rstrip("/") + "/metrics",
        headers={} if token is None else {"Authorization": f"Bearer {token}"},
    )
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context), _Stays()
    )
    with opener.open(request, timeout=_FETCH_SECONDS) as answer:
        text: bytes = answer.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise OSError(f"the metrics of {url} are longer than {_MOST_BYTES} bytes")
    return text.decode(errors="replace")


async def _fetched(node: Node, engine: Engine) -> str:
    """The text of a server's metrics; "" where it cannot be had."""
    try:
        async with asyncio.timeout(_FETCH_SECONDS):
            return await engine.metrics(node)
    except (HandrailError, OSError, TimeoutError):
        return ""
