"""The hosts that one process was refused, gathered from the porter's records.  Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from handrail.network.records import Record

#: So many hosts are listed; the rest is counted.
MOST = 64
ALLOW = "allow"
#: What a record's operation is called when a name was looked up.
RESOLVE = "resolve"


@dataclass(frozen=True, slots=True)
class NetworkDenial:
    """One host that was refused, and how often."""

    op: str  # connect, request or resolve
    host: str
    port: int | None
    protocol: str | None
    method: str | None
    reason: str
    source: str  # proxy or resolver
    pid: int | None
    comm: str | None
    count: int = 1
    #: Instead of all else: how many further hosts are not listed.
    omitted: int = 0

    @property
    def place(self) -> str:
        """Host and port as they are written together."""
        if self.port is None:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class NetworkDenials:
    """The denials of one process, each host, port and reason once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, int, str, str | None], NetworkDenial] = {}
        self._omitted = 0

    def note(self, record: Record) -> None:
        """Take a record of a refusal; records of allowed connections are ignored."""
        if record.decision == ALLOW:
            return
        key = (record.op, record.host, record.port, record.reason, record.method)
        known = self._found.get(key)
        if known is not None:
            self._found[key] = replace(known, count=known.count + 1)
        elif len(self._found) >= MOST:
            self._omitted += 1
        else:
            self._found[key] = _denial(record)

    @property
    def found(self) -> list[NetworkDenial]:
        """The listed denials, in the order of their first refusal; last, how many are not."""
        listed = list(self._found.values())
        if self._omitted:
            rest = replace(listed[0], count=0, omitted=self._omitted)
            listed.append(rest)
        return listed


def _denial(record: Record) -> NetworkDenial:
    asked = record.op == RESOLVE
    return NetworkDenial(
        record.op,
        record.host,
        None if asked else record.port,
        None if asked else record.protocol,
        record.method,
        record.reason,
        "resolver" if asked else "proxy",
        record.pid,
        record.comm,
    )
