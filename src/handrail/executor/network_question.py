"""Ask a caller about a host.  No answer is no."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from handrail.protocol.network import PolicyRequestParams

if TYPE_CHECKING:
    from handrail.network.managed.start import NetworkAnswer, NetworkQuestion, NetworkRequest

log = logging.getLogger(__name__)


async def asked(request: NetworkRequest | None, question: NetworkQuestion) -> NetworkAnswer:
    """The caller's answer; no if it has none, takes too long or fails.  Raises CancelledError.

    A server may ask about anything: what is shown, logged and saved as a rule is a host as our own
    proxy reads it, or nothing is asked.
    """
    from handrail.network.hosts import BadHost, canonical, checked_port
    from handrail.network.managed.start import NetworkAnswer

    if request is None or request.ask is None:
        return NetworkAnswer(allow=False)
    try:
        host, port = canonical(question.host).text, checked_port(question.port)
        question = replace(question, host=host, port=port)
    except BadHost:
        return NetworkAnswer(allow=False)
    try:
        async with asyncio.timeout(request.decision_seconds):
            return await request.ask(question)
    except TimeoutError:
        return NetworkAnswer(allow=False)
    except Exception:
        log.exception("the question about %s:%d failed", question.host, question.port)
        return NetworkAnswer(allow=False)


def read(params: Any) -> NetworkQuestion:
    """A question of a server; raises ValidationError."""
    from handrail.network.managed.start import NetworkQuestion

    target = msgspec.convert(params, PolicyRequestParams).request
    return NetworkQuestion(
        0,
        target.protocol,
        target.host,
        target.port,
        target.method or None,
        target.pid or None,
        target.comm or None,
    )


def spoken(answer: NetworkAnswer) -> dict[str, object]:
    """An answer as the wire has it."""
    decision: dict[str, object] = {"type": "allow" if answer.allow else answer.label}
    if not answer.allow and answer.reason is not None:
        decision["reason"] = answer.reason
    if answer.lasts != "once":
        decision["for"] = answer.lasts
    return {"decision": decision}
