"""The shares of a fleet as its registrar knows them, and which changed since when.  Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

from handrail.fleet.reports import NodeState

#: How long an ended share is still told to drivers that ask for the first time.
_TOLD_SECONDS = 60.0


@dataclass(slots=True, kw_only=True)
class Share:
    """One share: a reservation, its supervisor and its server."""

    id: str
    state: NodeState = "pending"
    cpu_millis: int = 0
    memory_bytes: int = 0
    url: str = ""
    engine_id: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    version: str = ""
    certificate: str = ""
    supervisor_pid: int | None = None
    error: str = ""
    #: When it was last changed, in steps of the membership.
    step: int = 0
    ended_at: float = 0.0
    empty_since: float | None = None

    def told(self) -> dict[str, Any]:
        """As a driver gets it."""
        return {
            "id": self.id,
            "state": self.state,
            "url": self.url,
            "engine_id": self.engine_id,
            "labels": self.labels,
            "version": self.version,
            "certificate": self.certificate,
            "supervisor_pid": self.supervisor_pid,
            "cpu_millis": self.cpu_millis,
            "memory_bytes": self.memory_bytes,
            "error": self.error,
        }


ENDED = frozenset({"lost", "gone", "failed"})


class Membership:
    """All shares, numbered by their last change."""

    def __init__(self) -> None:
        #: Another registrar counts other steps.
        self.epoch = token_hex(4)
        self.step = 0
        self.shares: dict[str, Share] = {}

    def changed(self, share: Share, **members: Any) -> bool:
        """Note what is new of a share; whether anything is."""
        known = self.shares.setdefault(share.id, share)
        new = known.step == 0
        for name, value in members.items():
            if getattr(known, name) != value:
                setattr(known, name, value)
                new = True
        if new:
            if known.state in ENDED and not known.ended_at:
                known.ended_at = time.monotonic()
            self.step += 1
            known.step = self.step
        return new

    def since(self, epoch: str, step: int) -> tuple[bool, list[dict[str, Any]]]:
        """Whether this is all there is, and the shares that changed after a step."""
        if epoch == self.epoch:
            found = [one for one in self.shares.values() if one.step > step]
            return False, [one.told() for one in found]
        early = time.monotonic() - _TOLD_SECONDS
        found = [one for one in self.shares.values() if not one.ended_at or one.ended_at > early]
        return True, [one.told() for one in found]

    def living(self) -> list[Share]:
        """The shares that have not ended."""
        return [one for one in self.shares.values() if one.state not in ENDED]


def eligible(nodes: Iterable[Mapping[str, Any]], labels: Mapping[str, str]) -> dict[str, Any]:
    """The living machines with all of these labels, by id; the head only if it is alone."""
    alive = [node for node in nodes if node["Alive"]]
    found = {}
    for node in alive:
        head = "node:__internal_head__" in node["Resources"]
        if head and len(alive) > 1:
            continue
        own = node.get("Labels") or {}
        if all(own.get(name) == value for name, value in labels.items()):
            found[node["NodeID"]] = node
    return found


def of_groups(groups: Iterable[Mapping[str, Any]], prefix: str) -> list[tuple[Share, str]]:
    """The shares of Ray's placement groups whose names begin so, each with the group's state."""
    found = []
    for group in groups:
        name, state = group["name"], group["state"]
        if name.startswith(prefix) and state != "REMOVED":
            machine = group["bundles_to_node_id"].get(0, "") if state == "CREATED" else ""
            found.append((Share(id=name.removeprefix(prefix), engine_id=machine), state))
    return found


def to_give_back(shares: Iterable[Share], least: int, since: float) -> Share | None:
    """A share that is empty since then or longer, if there are more than the least."""
    living = list(shares)
    if len(living) <= least:
        return None
    for share in living:
        if share.empty_since is not None and share.empty_since < since:
            return share
    return None
