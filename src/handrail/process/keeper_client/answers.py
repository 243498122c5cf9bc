"""What the keeper answers: what it can do, a child it has started, one that it held before."""

from __future__ import annotations

from dataclasses import dataclass

from handrail.keeper import messages
from handrail.keeper.limits import cgroups


@dataclass(frozen=True, slots=True)
class Found:
    """A child of a previous server; the caller closes the descriptors."""

    child: int
    pid: int
    exit: tuple[int, ...] | None  # status, and if they are known user ms, system ms, max RSS
    note: bytes
    fds: dict[bytes, int]
    ended: float | None = None  # when, on the monotonic clock
    killed: bool = False  # with its whole tree, on request
    asked: messages.Due | None = None  # to end, and the keeper sees to it
    cut: bool = False  # there was no descriptor free for them


@dataclass(frozen=True, slots=True)
class Spawned:
    """A running child; the caller closes the descriptors."""

    child: int
    pid: int
    pidfd: int
    fds: tuple[int, ...]  # stdout, stderr and perhaps stdin; or the terminal alone
    listener: int = -1  # of one whose calls are announced


@dataclass(frozen=True, slots=True)
class Abilities:
    """How trees are ended here (``cgroup`` or ``walk``), and which limits can be set."""

    trees: str = "walk"
    limits: frozenset[str] = frozenset()

    @property
    def groups(self) -> bool:
        """Whether several children can have limits together (``Group``)."""
        return cgroups.GROUP.decode() in self.limits
