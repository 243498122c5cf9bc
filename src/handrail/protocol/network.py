"""Shapes of ``process/start.networkProxy`` and of ``network/*``."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from handrail.protocol.struct_base import Unsigned, Wire


class NetworkProxyParams(Wire):
    """The proxy of one process: what it may reach, and how long the client has for an answer."""

    #: All nine members of the peer; ``handrail.network`` checks them.
    proxy: dict[str, Any]
    #: Unlisted hosts are asked about, by ``network/policyRequest``.
    policy_decision_timeout_ms: Unsigned | None = None
    audit_metadata: dict[str, Any] | None = None
    environment_id: str | None = None
    execution_id: str | None = None
    #: Ours: members beside those of ``proxy`` that only this server knows: ``addresses``,
    #: ``reasons``, ``unlisted``, and ``ask`` as a value of ``domains``.
    handrail: dict[str, Any] | None = None


class UpdateParams(Wire):
    """Ours: what was decided since a process was started, in place of what it was started with."""

    process_id: str
    #: Rules as host, port or null, and ``allow``, ``prompt`` or ``forbidden``; the last one counts.
    rules: tuple[tuple[str, int | None, str], ...] = ()
    #: Hosts and ports.
    approved: tuple[tuple[str, int], ...] = ()
    denied: tuple[tuple[str, int], ...] = ()


class PolicyTarget(Wire):
    """Where a process wants to connect to."""

    protocol: Literal["http", "https_connect", "socks5_tcp"]
    host: str
    port: int
    #: Ours, for clients that named one of our members in ``initialize``: the request's method, and
    #: the process that asks.
    method: str | UnsetType | None = UNSET
    argv: list[str] | UnsetType = UNSET
    cwd: str | UnsetType = UNSET
    pid: int | UnsetType | None = UNSET
    comm: str | UnsetType | None = UNSET


class PolicyRequestParams(Wire):
    """A question of the server: may this process connect there?"""

    process_id: str
    request: PolicyTarget


class PolicyDecisionNotification(Wire):
    """A decision about one connection or request."""

    process_id: str
    #: RFC 3339, in UTC.
    timestamp: str
    scope: Literal["domain", "non_domain"]
    decision: str
    source: str
    reason: str
    protocol: str
    host: str
    port: int
    policy_override: bool
    method: str | UnsetType = UNSET
