"""What covers a missing name, and the placeholders that are held for a sandbox.

``placeholders.py`` makes, records and removes them.
"""

from __future__ import annotations

import os

from handrail.sandbox.light_dataclass import Frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from handrail.sandbox.plan.mount_points import Identity, Lines
    from handrail.sandbox.plan.placeholders import PlaceholderRegistry


class Placeholder(Frozen):
    """A missing path that is to be covered, by an empty directory or by an empty file."""

    path: bytes
    directory: bool


class Stale(Exception):
    """A path exists that was missing when the plan was made: make another plan."""


#: Leases that no sandbox has, of all registries.
unused: set[PlaceholderLease] = set()


class PlaceholderLease:
    """Placeholders held for one sandbox or for several at once."""

    __slots__ = (
        *("_registry", "fd", "lines", "made", "name"),
        *("outside", "prepared", "record", "users"),
    )

    def __init__(self, registry: PlaceholderRegistry, name: str, fd: int, record: int) -> None:
        self._registry = registry
        self.name = name
        self.fd = fd  # passed to --sync-fd
        self.record = record  # -1: it cannot be written any more
        self.made: dict[Placeholder, Identity] = {}
        #: The same as it is recorded.
        self.lines: Lines = {}
        #: Whether a lease that is not of this registry is known to hold one of them too.
        self.outside = False
        #: Whether it was made ahead of its sandbox's command.
        self.prepared = False
        self.users = 1

    def release(self) -> None:
        """End the use by one sandbox, of which no process is left."""
        self.users -= 1
        if self.users == 0:
            self._registry.give_up(self)

    def leave(self) -> None:
        """Let go while processes of the sandbox live on: a later sweep removes the placeholders."""
        self.users -= 1
        if self.users == 0:
            self._registry.leave(self)

    def fill(self, masks: Sequence[Placeholder]) -> None:
        """Make what is missing, for a lease that was prepared.  Raises Stale, or Refused."""
        self._registry.fill(self, masks)

    def disown(self) -> None:
        """Close the fd in a child after a fork, which must not keep the parent's lock."""
        self.close()

    def close(self) -> None:
        """Close the fds."""
        fds, self.fd, self.record = (self.fd, self.record), -1, -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)


def _after_fork() -> None:
    """Close what the parent keeps: a copy would keep its locks, too."""
    while unused:
        unused.pop().disown()


os.register_at_fork(after_in_child=_after_fork)
