"""What is measured: every metric with its kind, labels, buckets and help, as data.

The bottom layer; imports next to nothing.  Counting is in ``metrics``, the two exporters are
``prometheus`` and ``otel``.  Each metric mirrors one of the Codex exec-server with our prefix in
place of ``exec_server_``; what belongs to its remote registration is left out.

Every label has a closed set of values, so no peer can make us keep a series of its choice: anything
else is recorded as ``unknown``.  The one set that is not here is that of the methods, which belongs
to ``protocol.methods`` and is passed to the registry.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

PREFIX = "handrail_"
#: What a value outside the set of its label is recorded as.
UNKNOWN = "unknown"


class Kind(Enum):
    """The value is the word of the Prometheus text format."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Label(NamedTuple):
    """A label and its values.  ``values`` None: given to the registry when it is made."""

    name: str
    values: tuple[str, ...] | None


class Metric(NamedTuple):
    """One family of series."""

    name: str
    kind: Kind
    help: str
    labels: tuple[Label, ...] = ()
    #: Upper bounds of a histogram's buckets, ascending; the last one, infinity, is implied.
    buckets: tuple[float, ...] = ()


METHOD = Label("method", None)
TRANSPORT = Label("transport", ("websocket", "unix", "stdio", "memory"))
REQUEST_RESULT = Label("result", ("success", "error", "disconnected"))
PROCESS_RESULT = Label("result", ("success", "error", "terminated", UNKNOWN))

#: Seconds.  A request takes from some 50 µs (a read) to the minutes of a long poll.
REQUEST_BUCKETS = (0.0001, 0.00025, 0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 60.0)
#: Seconds.  A child lives from 2 ms (true) to hours.
PROCESS_BUCKETS = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)

CONNECTIONS_ACTIVE = Metric(
    "handrail_connections_active",
    Kind.GAUGE,
    "Connections that are open now.",
    (TRANSPORT,),
)
CONNECTIONS_TOTAL = Metric(
    "handrail_connections_total",
    Kind.COUNTER,
    "Connections accepted since the start.",
    (TRANSPORT,),
)
REQUESTS_TOTAL = Metric(
    "handrail_requests_total",
    Kind.COUNTER,
    "Requests finished, by method and outcome; disconnected: the client was gone.",
    (METHOD, REQUEST_RESULT),
)
REQUEST_DURATION = Metric(
    "handrail_request_duration_seconds",
    Kind.HISTOGRAM,
    "Time in the handler of a request.",
    (METHOD, REQUEST_RESULT),
    REQUEST_BUCKETS,
)
REQUEST_QUEUE_DURATION = Metric(
    "handrail_request_queue_duration_seconds",
    Kind.HISTOGRAM,
    "Time a request waited for its turn before its handler began.",
    (METHOD,),
    REQUEST_BUCKETS,
)
REQUEST_TOTAL_DURATION = Metric(
    "handrail_request_total_duration_seconds",
    Kind.HISTOGRAM,
    "Time from the arrival of a request to its answer: waiting and handling.",
    (METHOD, REQUEST_RESULT),
    REQUEST_BUCKETS,
)
PROCESSES_ACTIVE = Metric(
    "handrail_processes_active",
    Kind.GAUGE,
    "Processes that have started and not exited.",
)
PROCESSES_FINISHED_TOTAL = Metric(
    "handrail_processes_finished_total",
    Kind.COUNTER,
    "Processes that exited: success is exit 0, terminated was asked for before the exit.",
    (PROCESS_RESULT,),
)
PROCESS_DURATION = Metric(
    "handrail_process_duration_seconds",
    Kind.HISTOGRAM,
    "Time from the start of a process to its exit, not to the close of its output.",
    (PROCESS_RESULT,),
    PROCESS_BUCKETS,
)
CLIENT_REQUESTS_TOTAL = Metric(
    "handrail_client_requests_total",
    Kind.COUNTER,
    "Requests this side sent to a server, by method and outcome.",
    (METHOD, REQUEST_RESULT),
)

ALL = tuple(one for one in globals().values() if isinstance(one, Metric))
