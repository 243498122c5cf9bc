"""What the porter counts, for the server to publish; no host is in it."""

from __future__ import annotations

from handrail.network import decide
from handrail.network.decide import Verdict

#: Reasons with a series of their own; the text of a refusal counts as ``policy_denied``.
_REASONS = frozenset(
    (
        decide.ALLOW,
        decide.NOT_ALLOWED,
        decide.NOT_ALLOWED_LOCAL,
        decide.DENIED,
        decide.METHOD_NOT_ALLOWED,
        decide.MITM_REQUIRED,
        decide.BAD_HOST,
        decide.DNS_FAILED,
        decide.UNREACHABLE,
        decide.UNSUPPORTED,
        decide.TOO_MANY,
    )
)

#: Kind, reason and protocol of decisions that are counted together.
Series = tuple[str, str, str]


def series(verdict: Verdict, protocol: str) -> Series:
    """The series that a decision counts for."""
    reason = verdict.reason if verdict.reason in _REASONS else decide.POLICY_DENIED
    return verdict.kind.value, reason, protocol


class Metrics:
    """Counters since the start of this porter."""

    def __init__(self) -> None:
        self._decisions: dict[Series, int] = {}
        self.sent = 0
        self.received = 0
        #: Number of waits, and their seconds in all.
        self.asked = [0, 0.0]
        self.dialled = [0, 0.0]

    def count(self, key: Series) -> None:
        """Count one decision."""
        self._decisions[key] = self._decisions.get(key, 0) + 1

    @staticmethod
    def wait(series: list[float], seconds: float) -> None:
        """Add one wait to a series."""
        series[0] += 1
        series[1] += seconds

    def to_json(self) -> dict[str, object]:
        """All counters."""
        return {
            "decisions": [[*key, number] for key, number in self._decisions.items()],
            "bytes": {"sent": self.sent, "received": self.received},
            "ask_seconds": self.asked,
            "dial_seconds": self.dialled,
        }
