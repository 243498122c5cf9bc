"""The arguments of a fleet, checked.  Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from handrail.errors import UsageError
from handrail.units import parse_size
from handrail.workspace.arguments import seconds

#: Bytes as a number, or as text such as ``2GiB``.
Size: TypeAlias = int | float | str
#: From a node's URL to the one to dial.
Via: TypeAlias = Mapping[str, str] | Callable[[str], str]
Tls: TypeAlias = Literal["auto", "on", "off"]
#: One on each node, a number, or the least and the most.
Shares: TypeAlias = Literal["nodes"] | int | tuple[int, int]

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_QUOTA = ("workspaces", "cpus", "memory")


def size(value: Size, what: str) -> int:
    """Bytes; raises UsageError."""
    if isinstance(value, str):
        return parse_size(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**62:
        raise UsageError(f"{what} is a number of bytes or a text such as '2GiB', not {value!r}")
    return int(value)


def millis(value: float) -> int:
    """Processors as thousandths; raises UsageError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**40:
        raise UsageError(f"cpus is a number of processors, not {value!r}")
    return round(value * 1000)


def positive(value: float, what: str) -> float:
    """A number of seconds; raises UsageError."""
    found = seconds(value, what)
    if found is None:
        raise UsageError(f"{what} is a number of seconds, not None")
    return found


def check_name(name: str) -> str:
    """The name of a fleet; raises UsageError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name of a fleet: lower-case letters, digits and dashes, at most 40"
        )
    return name


def texts(given: Mapping[str, str] | None, what: str) -> dict[str, str]:
    """A mapping of text to text; raises UsageError."""
    found = dict(given or {})
    if not all(isinstance(word, str) for pair in found.items() for word in pair):
        raise UsageError(f"{what} is a mapping of text to text, not {given!r}")
    return found


@dataclass(frozen=True, slots=True)
class Amounts:
    """Resources of a share, a workspace or a tenant."""

    cpu_millis: int = 0
    memory_bytes: int = 0
    workspaces: int = 1

    def of(self, what: str) -> float:
        """One of them by its name in a quota."""
        found = {"cpus": self.cpu_millis / 1000, "memory": float(self.memory_bytes)}
        return found.get(what, float(self.workspaces))


def parse_share(given: Mapping[str, Size] | None) -> tuple[int | None, int | None]:
    """Thousandths of processors and bytes; None for what was not named.  Raises UsageError."""
    found = dict(given or {})
    unknown = sorted(set(found) - {"cpus", "memory"})
    if unknown:
        raise UsageError(f"a share has cpus and memory, not {unknown[0]!r}")
    cpus = found.get("cpus")
    memory = found.get("memory")
    if isinstance(cpus, str):
        raise UsageError(f"cpus of a share is a number of processors, not {cpus!r}")
    return (
        None if cpus is None else millis(cpus),
        None if memory is None else size(memory, "memory of a share"),
    )


def parse_shares(given: Shares) -> tuple[int, int] | None:
    """The least and the most number of shares; None: one on each node.  Raises UsageError."""
    if given == "nodes":
        return None
    pair = (given, given) if isinstance(given, int) else tuple(given)
    if len(pair) != 2 or not all(isinstance(one, int) and one >= 0 for one in pair):
        raise UsageError(f"shares is 'nodes', a number, or the least and the most, not {given!r}")
    least, most = int(pair[0]), int(pair[1])
    if least > most or most == 0:
        raise UsageError(f"shares={given!r} leaves no share at all; the least comes first")
    return least, most


def parse_quotas(
    given: Mapping[str, Mapping[str, Size]] | None,
) -> dict[str, dict[str, float]]:
    """Limits by tenant: workspaces, cpus and bytes of memory.  Raises UsageError."""
    found: dict[str, dict[str, float]] = {}
    for tenant, limits in dict(given or {}).items():
        unknown = sorted(set(limits) - set(_QUOTA))
        if unknown:
            raise UsageError(f"a quota has {', '.join(_QUOTA)}, not {unknown[0]!r}")
        found[tenant] = {
            what: float(size(value, what)) if what == "memory" else float(value)
            for what, value in limits.items()
        }
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSettings:
    """How a driver talks to nodes; times are in seconds."""

    owner: str
    tenant: str
    lease: float
    via: Via | None
    request_timeout: float
    recovery_window: float
    lost_after: float
    park_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """What a fleet that is started is like; its registrar keeps this."""

    name: str
    #: Whether it outlives its drivers.
    named: bool
    labels: dict[str, str] = field(default_factory=dict)
    share_cpus: int | None = None
    share_memory: int | None = None
    shares: tuple[int, int] | None = None
    quotas: dict[str, dict[str, float]] = field(default_factory=dict)
    lease: float = 600.0
    min_free: int = 2**30
    state_dir: str | None = None
    tls: Tls = "auto"
    orphan_after: float = 120.0
    #: An empty share beyond the least number is given back after so long.
    empty_after: float = 600.0
