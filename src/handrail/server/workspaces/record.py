"""What is known of one workspace, as it is written to disk for the next server."""

from __future__ import annotations

import msgspec

from handrail.process.spec import Group
from handrail.server.workspaces.leases import Owner
from handrail.server.workspaces.share import Amounts


class Record(msgspec.Struct, omit_defaults=True):
    """One workspace."""

    id: str
    owner: str
    tenant: str
    lease: float
    #: Since when it belongs to its owner, by the machine's monotonic clock.
    since: float
    template: str | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    cpu_millis: int = 0
    memory_bytes: int = 0
    shared: bool = False
    warm: bool = False
    #: Its directory in ``w``; empty while that is being made.
    name: str = ""
    #: The session that is in it.
    session: str | None = None

    @property
    def held_by(self) -> Owner:
        """Its owner, as connections hold it."""
        return Owner(self.tenant, self.owner)

    @property
    def amounts(self) -> Amounts:
        return Amounts(self.cpu_millis, self.memory_bytes)

    @property
    def group(self) -> Group | None:
        """The control group of its processes; None if it asked for nothing, or is being made."""
        if not self.name or not (self.cpu_millis or self.memory_bytes):
            return None
        return Group(int(self.name, 16), self.memory_bytes, self.cpu_millis)

    def matches(self, owner: str | None, labels: dict[str, str]) -> bool:
        """Whether it is of this owner, if one is given, and has all of these labels."""
        return owner in (None, self.owner) and labels.items() <= self.labels.items()


class PoolRecord(msgspec.Struct, omit_defaults=True):
    """What a warm pool was asked to be."""

    size: int
    prepare: list[str] | None = None
