"""The questions about hosts that one client is asked, and the decisions it is told.

``network/policyRequest`` is a request of the server.  No answer is no: an error, an answer that
makes no sense, a lost line.  The porter keeps the time and withdraws what is not answered.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from handrail.protocol import codec, path_uri
from handrail.protocol.envelope import Response
from handrail.protocol.methods import POLICY_DECISION, POLICY_REQUEST
from handrail.protocol.network import (
    PolicyDecisionNotification,
    PolicyRequestParams,
    PolicyTarget,
)

if TYPE_CHECKING:
    from handrail.network.managed.start import NetworkAnswer, NetworkQuestion
    from handrail.network.records import Record
    from handrail.process.child import Child
    from handrail.server.connection import Connection


#: Open questions of one connection.
_MOST = 256
#: Bytes of a reason.
_LONGEST_REASON = 1024
#: Sources whose decisions are not about a domain.
_NO_DOMAIN = frozenset(("mode_guard", "proxy_state"))
_LONGEST_ARGV = 4096


class HostQuestions:
    """The open questions of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        #: By the porter's number: that of the request.
        self._open: dict[int, int] = {}

    def ask(self, child: Child, question: NetworkQuestion) -> None:
        """Ask the client; its answer goes to the child's network."""
        from handrail.network.managed.start import NetworkAnswer

        if question.number in self._open:
            return  # it came while the client resumed its session, which asks for all that is open
        if len(self._open) >= _MOST:
            _tell(child, question.number, NetworkAnswer(allow=False, reason="too_many"))
            return
        params = PolicyRequestParams(process_id=child.key, request=self._target(child, question))
        number, waiter = self._connection.request(POLICY_REQUEST, params)
        self._open[question.number] = number
        waiter.add_done_callback(partial(self._answered, child, question.number))

    def _target(self, child: Child, question: NetworkQuestion) -> PolicyTarget:
        target = PolicyTarget(
            protocol=question.protocol,  # type: ignore[arg-type]
            host=question.host,
            port=question.port,
        )
        if self._connection.notifier.extended:
            words, cwd = child.spec.command
            target.method = question.method
            target.argv = [os.fsdecode(word)[:_LONGEST_ARGV] for word in words[:64]]
            target.cwd = path_uri.to_uri(cwd)
            target.pid, target.comm = question.pid, question.comm
        return target

    def _answered(self, child: Child, number: int, waiter: asyncio.Future[Any]) -> None:
        if self._open.pop(number, None) is None or waiter.cancelled():
            return  # withdrawn; or the line is lost, and the session answers
        _tell(child, number, read_answer(waiter.result()))

    def withdrawn(self, number: int) -> None:
        """Ignore what the client still says to this question."""
        request = self._open.pop(number, None)
        if request is not None:
            self._connection.give_up(request)

    def decided(self, child: Child, record: Record) -> None:
        """Tell the client of a decision."""
        from datetime import UTC, datetime

        at = datetime.fromtimestamp(record.time, UTC).isoformat(timespec="milliseconds")
        params = PolicyDecisionNotification(
            process_id=child.key,
            timestamp=at.replace("+00:00", "Z"),
            scope="non_domain" if record.source in _NO_DOMAIN else "domain",
            decision=record.decision,
            source=record.source,
            reason=record.reason,
            protocol=record.protocol,
            host=record.host,
            port=record.port,
            policy_override=record.override,
            method=UNSET if record.method is None else record.method,
        )
        self._connection.transport.send(codec.notification_message(POLICY_DECISION, params))


def _tell(child: Child, number: int, answer: NetworkAnswer) -> None:
    network: Any = child.spec.network
    if network is not None:
        network.answer(number, answer)


def read_answer(message: Any) -> NetworkAnswer:
    """Read a client's answer; whatever is no clear yes is no."""
    from handrail.network.managed.start import NetworkAnswer

    no = NetworkAnswer(allow=False)
    result = message.result if isinstance(message, Response) else None
    decision = result.get("decision") if isinstance(result, dict) else None
    if not isinstance(decision, dict):
        return no
    lasts = decision.get("for", result.get("for") if isinstance(result, dict) else None)
    lasts = lasts if lasts == "process" else "once"
    kind, reason = decision.get("type"), decision.get("reason")
    if kind == "allow":
        return NetworkAnswer(allow=True, lasts=lasts)
    if kind not in ("deny", "ask") or not isinstance(reason, str) or not _fits(reason):
        return no
    return NetworkAnswer(False, reason or "policy_denied", lasts, label=kind)


def _fits(reason: str) -> bool:
    if any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in reason):
        return False
    return len(reason.encode("utf-8", "surrogatepass")) <= _LONGEST_REASON
