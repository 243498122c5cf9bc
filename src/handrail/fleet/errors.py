"""Errors of a fleet.

FleetError
├── FleetUnknown             no fleet of that name
├── NoCapacity               nothing has room for a workspace (reason, refusals by node)
├── QuotaExceeded            a tenant has all it may have (tenant, what, limit, used)
├── TemplateError            a template cannot be used (kind)
├── VersionMismatch          a node runs another version of handrail (node, ours, theirs)
├── WorkspaceGone            released, expired, or never there
├── NodeLost                 a machine is gone with everything on it (node)
└── NodeUnreachable          a machine does not answer now; a later call may succeed (node)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from handrail.errors import ExecutorTransportFailed, HandrailError


class FleetError(HandrailError):
    """The base class of the errors of fleets."""


class FleetUnknown(FleetError):
    """There is no fleet of that name."""


class NoCapacity(FleetError):
    """No node has room for the workspace.

    ``reason`` is one or more of cpus, memory, disk, workspaces, nodes, version, joined by commas;
    ``refusals`` has the reason of each node that was asked, by its id.
    """

    def __init__(
        self, message: str, *, reason: str = "nodes", refusals: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.refusals = dict(refusals or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return _no_capacity, (str(self), self.reason, self.refusals)


def _no_capacity(message: str, reason: str, refusals: dict[str, str]) -> NoCapacity:
    return NoCapacity(message, reason=reason, refusals=refusals)


class QuotaExceeded(FleetError):
    """A tenant has as much of ``what`` as its quota allows: ``used`` of ``limit``."""

    def __init__(self, tenant: str, what: str, limit: float, used: float) -> None:
        super().__init__(
            f"tenant {tenant} may have {limit:g} {what} and has {used:g}; release some, or raise"
            " its quota"
        )
        self.tenant = tenant
        self.what = what
        self.limit = limit
        self.used = used

    def __reduce__(self) -> tuple[Any, ...]:
        return QuotaExceeded, (self.tenant, self.what, self.limit, self.used)


class TemplateError(FleetError):
    """A template cannot be used; ``kind`` is missing, corrupt, unsafe or no_space."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        return TemplateError, (str(self), self.kind)


class VersionMismatch(FleetError):
    """A node runs another version, or a server without workspaces (``theirs`` says which)."""

    def __init__(self, node: str, ours: str, theirs: str) -> None:
        super().__init__(
            f"node {node} has {theirs}, and this driver is handrail {ours}; install the same"
            " version on all nodes"
        )
        self.node = node
        self.ours = ours
        self.theirs = theirs

    def __reduce__(self) -> tuple[Any, ...]:
        return VersionMismatch, (self.node, self.ours, self.theirs)


class WorkspaceGone(FleetError, ExecutorTransportFailed):
    """There is no such workspace: it was released, its lease is over, or it never was."""

    prefix = ""

    def again(self, before: str = "") -> ExecutorTransportFailed:
        """A copy of the error for one more caller."""
        return WorkspaceGone(self.detail)


class _NodeError(FleetError, ExecutorTransportFailed):
    prefix = ""
    words = ""

    def __init__(self, node: str, why: str = "") -> None:
        super().__init__(f"node {node} {self.words}{f': {why}' if why else ''}")
        self.node = node
        self.why = why

    def again(self, before: str = "") -> ExecutorTransportFailed:
        """A copy of the error for one more caller."""
        return type(self)(self.node, self.why)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.node, self.why)


class NodeLost(_NodeError):
    """A machine is gone, and with it everything that was on it."""

    words = "is lost"


class NodeUnreachable(_NodeError):
    """A machine does not answer; what runs there goes on, and the next call tries again."""

    words = "cannot be reached"
