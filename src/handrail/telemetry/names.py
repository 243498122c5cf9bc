"""What is measured: every metric with its kind, labels, buckets and help, as data.

The bottom layer; imports next to nothing.  Counting is in ``metrics``, the two exporters are
``prometheus`` and ``otel``.  Each metric mirrors one of the Codex exec-server with our prefix in
place of ``exec_server_``; what belongs to its remote registration is left out.

Every label has a closed set of values, so no peer can make us keep a series of its choice: anything
else is recorded as ``unknown``.  The one set that is not here is that of the methods, which belongs
to ``protocol.methods`` and is passed to the registry.  Names that peers give (``most``) are taken
until there are so many.
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
    """A label and its values.  ``values`` None: given to the registry when it is made.

    ``most``: so many values are taken as they come.
    """

    name: str
    values: tuple[str, ...] | None
    most: int = 0


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

NETWORK_DECISION = Label("decision", ("allow", "deny", "ask"))
NETWORK_REASON = Label(
    "reason",
    (
        "allowed",
        "not_allowed",
        "not_allowed_local",
        "denied",
        "method_not_allowed",
        "mitm_required",
        "policy_denied",
        "bad_host",
        "dns_failed",
        "unreachable",
        "unsupported",
        "sni_mismatch",
        "too_many",
        UNKNOWN,
    ),
)
NETWORK_PROTOCOL = Label("protocol", ("http", "https_connect", "socks5_tcp", "dns", UNKNOWN))
NETWORK_DIRECTION = Label("direction", ("sent", "received"))
NETWORK_DECISIONS_TOTAL = Metric(
    "handrail_network_decisions_total",
    Kind.COUNTER,
    "Decisions about connections of managed networks.",
    (NETWORK_DECISION, NETWORK_REASON, NETWORK_PROTOCOL),
)
NETWORK_CONNECTIONS = Metric(
    "handrail_network_connections",
    Kind.GAUGE,
    "Connections that managed networks carry now.",
)
NETWORK_BYTES_TOTAL = Metric(
    "handrail_network_bytes_total",
    Kind.COUNTER,
    "Bytes that connections of managed networks have carried, counted at their end.",
    (NETWORK_DIRECTION,),
)
NETWORK_ASK_SECONDS = Metric(
    "handrail_network_ask_seconds",
    Kind.HISTOGRAM,
    "Time from a question about a host to its answer.",
    (),
    REQUEST_BUCKETS,
)
NETWORK_DIAL_SECONDS = Metric(
    "handrail_network_dial_seconds",
    Kind.HISTOGRAM,
    "Time that connecting to an allowed host took, or failing to; counted at the connection's end.",
    (),
    REQUEST_BUCKETS,
)
NETWORK_PORTER_RESTARTS_TOTAL = Metric(
    "handrail_network_porter_restarts_total",
    Kind.COUNTER,
    "New porters after one that has died.",
)

WORKSPACE_STATE = Label("state", ("making", "held", "unheld", "ending"))
WORKSPACE_TENANT = Label("tenant", (), most=32)
WORKSPACE_KIND = Label("kind", ("empty", "copied", "warm"))
WORKSPACE_END = Label("reason", ("released", "expired", "stopped"))
WORKSPACE_REFUSAL = Label("reason", ("cpus", "memory", "workspaces", "disk", "template", UNKNOWN))
WORKSPACES = Metric(
    "handrail_workspaces",
    Kind.GAUGE,
    "Workspaces that the server holds; unheld: no connection of the owner, the lease runs.",
    (WORKSPACE_STATE, WORKSPACE_TENANT),
)
WORKSPACE_CREATE_DURATION = Metric(
    "handrail_workspace_create_duration_seconds",
    Kind.HISTOGRAM,
    "Time to make the files of a workspace: an empty one, a copied template, or a warm one.",
    (WORKSPACE_KIND,),
    REQUEST_BUCKETS,
)
WORKSPACES_ENDED_TOTAL = Metric(
    "handrail_workspaces_ended_total",
    Kind.COUNTER,
    "Workspaces that were released, whose lease expired, or that ended with the server.",
    (WORKSPACE_END,),
)
WORKSPACE_REFUSALS_TOTAL = Metric(
    "handrail_workspace_refusals_total",
    Kind.COUNTER,
    "Workspaces that were refused, by what there was too little of.",
    (WORKSPACE_REFUSAL,),
)
WORKSPACE_POOL_READY = Metric(
    "handrail_workspace_pool_ready",
    Kind.GAUGE,
    "Workspaces that are ready in warm pools.",
)
WORKSPACE_TEMPLATES = Metric(
    "handrail_workspace_templates",
    Kind.GAUGE,
    "Templates that the server has.",
)

ALL = tuple(one for one in globals().values() if isinstance(one, Metric))
