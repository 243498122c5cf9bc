"""Refuses what an executor would silently leave out.  Pure."""

from __future__ import annotations

from handrail.errors import SandboxUnavailable, UsageError
from handrail.executor.base import ExecutorFeatures
from handrail.network.settings import NOT_CARRIED
from handrail.process.spec import Limits


def check_limits(features: ExecutorFeatures) -> None:
    """Raises UsageError for an executor that would silently leave limits out."""
    if not features.limits:
        raise UsageError("this executor enforces no limits; leave them out, or use another")


def check_managed(features: ExecutorFeatures) -> None:
    """Raises SandboxUnavailable for an executor that carries no managed networks."""
    if not features.network:
        raise SandboxUnavailable(NOT_CARRIED)


def check_offered(
    features: ExecutorFeatures,
    limits: Limits | None,
    detach: bool,
    watch_denials: bool,
    *,
    managed: bool,
) -> None:
    """Raises UsageError for what the executor would silently leave out.

    SandboxUnavailable for a managed network, without which more could be reached than was said.
    """
    if managed:
        check_managed(features)
    if limits is not None:
        check_limits(features)
    if detach and not features.detach:
        raise UsageError(
            "only a process at a server that goes on without us can outlive its workspace; open"
            " it with at=, for example at='ssh://localhost'"
        )
    if watch_denials and not features.watch_denials:
        raise UsageError("this executor cannot watch for denials; leave watch_denials out")
