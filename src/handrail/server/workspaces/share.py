"""What a server may give to its workspaces, and whether one more fits.  Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Amounts:
    """Resources: of a whole server, or of one workspace."""

    cpu_millis: int
    memory_bytes: int
    workspaces: int = 1


class Share:
    """The resources of a server, and how much of them is taken.

    Admission is one step of the event loop: of two requests for the last place one gets it.
    """

    def __init__(self, total: Amounts) -> None:
        self.total = total
        self._taken = [0, 0, 0]

    @property
    def free(self) -> Amounts:
        """What is left; never negative, for a smaller share may find more than it has taken."""
        cpus, memory, count = self._taken
        total = self.total
        return Amounts(
            max(0, total.cpu_millis - cpus),
            max(0, total.memory_bytes - memory),
            max(0, total.workspaces - count),
        )

    def missing(self, wanted: Amounts) -> list[str]:
        """Which resources there are too few of now."""
        return _exceeded(wanted, self.free)

    def never(self, wanted: Amounts) -> list[str]:
        """Which resources there are too few of even when all are free."""
        return _exceeded(wanted, self.total)

    def take(self, wanted: Amounts) -> None:
        """Count one workspace; whether it fits was asked before, in the same step."""
        self._add(wanted, 1)

    def give_back(self, taken: Amounts) -> None:
        self._add(taken, -1)

    def _add(self, amounts: Amounts, sign: int) -> None:
        self._taken[0] += sign * amounts.cpu_millis
        self._taken[1] += sign * amounts.memory_bytes
        self._taken[2] += sign * amounts.workspaces


def _exceeded(wanted: Amounts, there: Amounts) -> list[str]:
    pairs = (
        ("cpus", wanted.cpu_millis, there.cpu_millis),
        ("memory", wanted.memory_bytes, there.memory_bytes),
        ("workspaces", wanted.workspaces, there.workspaces),
    )
    return [name for name, asked, available in pairs if asked > available]
