"""Network rules that were saved in rules files, as the decision needs them.

The files are read by ``policy``; here a rule is host, port and decision, and the last one for a
host and port decides.  No rule lifts a denial of the configuration.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from handrail.network import hosts
from handrail.network.hosts import Host

ALLOW, PROMPT, FORBIDDEN = "allow", "prompt", "forbidden"
DECISIONS = (ALLOW, PROMPT, FORBIDDEN)


@dataclass(frozen=True, slots=True)
class SavedRule:
    """What to do with connections to one host; ``port`` None means all ports."""

    host: str
    port: int | None
    decision: str

    def __str__(self) -> str:
        port = "" if self.port is None else f", port={self.port}"
        return f'network_rule(host="{self.host}", decision="{self.decision}"{port})'


def saved_rule(host: str, port: int | None, decision: str) -> SavedRule:
    """A rule with its host in canonical form; raises BadHost or ValueError."""
    if decision not in DECISIONS:
        raise ValueError(f"a network rule decides {', '.join(DECISIONS)}, not {decision!r}")
    if port is not None:
        hosts.checked_port(port)
    return SavedRule(hosts.canonical(host).text, port, decision)


class SavedRules:
    """The rules of a session in the order of their files, by host."""

    def __init__(self, rules: Iterable[SavedRule] = ()) -> None:
        self._by_host: dict[str, list[SavedRule]] = {}
        for rule in rules:
            self._by_host.setdefault(rule.host, []).append(rule)

    def find(self, host: Host, port: int) -> SavedRule | None:
        """The rule that decides; None without any."""
        for rule in reversed(self._by_host.get(host.text, ())):
            if rule.port in (None, port):
                return rule
        return None
