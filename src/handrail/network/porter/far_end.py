"""The connection to a target, or to a proxy before it, once the target was allowed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from handrail.network.decide import Verdict
from handrail.network.porter.streams import Stream

if TYPE_CHECKING:
    from handrail.network.porter.connection import Connection
    from handrail.network.porter.decisions import Decision
    from handrail.network.porter.upstream import UpstreamProxy


class Refused(Exception):
    """The target may not be reached; the proxy tells the client."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


class FarEnd:
    """The far end of a connection, and its decision until it has ended."""

    __slots__ = ("_begun", "_connection", "_decision", "_dialled", "far", "inside", "proxy")

    def __init__(
        self,
        connection: Connection,
        far: Stream,
        decision: Decision | None,
        proxy: UpstreamProxy | None = None,
        *,
        inside: bool = False,
    ) -> None:
        self.far = far
        #: Requests are sent to this proxy in absolute form.
        self.proxy = proxy
        #: A server of the command's own: nothing is recorded of it.
        self.inside = inside
        self._connection = connection
        self.begin(decision, None)

    def begin(self, decision: Decision | None, dialled: float | None) -> None:
        """Carry another request, which was decided on; ``dialled``: seconds to connect for it."""
        self._decision = decision
        self._dialled = dialled
        self._begun = time.monotonic()

    def ended(self, sent: int, received: int, outcome: str) -> None:
        """Record how it ended, once for each decision."""
        decision, self._decision = self._decision, None
        self._connection.count(sent, received)
        if decision is not None:
            self._connection.record_end(
                decision,
                sent=sent,
                received=received,
                milliseconds=int((time.monotonic() - self._begun) * 1000),
                outcome=outcome,
                dialled=self._dialled,
            )
