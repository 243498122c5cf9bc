"""Turns events of children into notifications on one connection.

The hottest path of the server: the fixed part of each message is made once per process and
stream, and the base64 is sent as a part of its own, never copied into a string.

A client that does not read: above HIGH_WATER (``transport/message_limits.py``) the connection
pauses this, and the pipe of each child is left alone (``process/output/child_output.py``); answers
that are not read yet are bounded in ``request_queue.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from handrail.process.child import Child
from handrail.process.output.output_log import Chunk
from handrail.process.output.stream import STREAM_NAMES
from handrail.protocol.codec import encode, encode_base64
from handrail.protocol.process import (
    LIMIT_KINDS,
    LIMITS,
    DenialShape,
    ExitShape,
    Omitted,
    UsageShape,
)
from handrail.server.delivery_acks import DeliveryAcks
from handrail.transport.base import Transport

if TYPE_CHECKING:
    from handrail.network.managed.start import NetworkQuestion
    from handrail.network.records import Record
    from handrail.process.exit_status import ExitKind, Usage
    from handrail.server.host_questions import HostQuestions

_STREAM_TAGS = tuple(b',"stream":"%b","chunk":"' % name.encode() for name in STREAM_NAMES)


class Notifier:
    """The sink of all children of one attached session."""

    __slots__ = ("_blocked", "_transport", "extended", "policy", "ready", "receipts")

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._blocked: list[Child] = []
        self.receipts = DeliveryAcks(transport, self)
        self.ready = True
        #: The client asked for our members in ``process/exited``.
        self.extended = False
        #: Questions about hosts, and decisions; set by the connection.
        self.policy: HostQuestions | None = None

    def output(self, child: Child, chunk: Chunk) -> None:
        tag = child.output_tag
        if tag is None:
            tag = child.output_tag = (
                b'{"method":"process/output","params":{"processId":%b,"seq":' % encode(child.key)
            )
        self._transport.send(
            b"%b%d%b" % (tag, chunk.seq, _STREAM_TAGS[chunk.stream]),
            encode_base64(child.output.read_chunk(chunk)),
            b'"}}' if child.output.gap is None else _after_gap(*child.output.gap),
        )
        if child.output.waits:
            self.receipts.notified(child, chunk.seq, chunk.size)

    def exited(self, child: Child, seq: int) -> None:
        info = child.ending.exit
        # The wire wants a number here; -1 means "not known".  `exit` has the full answer.
        code = b"-1" if info is None or info.code is None else b"%d" % info.code
        extra = b""
        if self.extended:
            extra = b',"exit":%b,"usage":%b' % (_exit(child), encode(usage_shape(child)))
            if child.ending.verdict is not None:
                extra += b',"denials":%b' % encode(denial_shapes(child))
        if child.output.ended:
            self._transport.gather()  # the close follows at once
        self._transport.send(
            b'{"method":"process/exited","params":{"processId":%b,"seq":%d,'
            b'"exitCode":%b,"sandboxDenied":%b%b}}'
            % (encode(child.key), seq, code, b"true" if denied(child) else b"false", extra)
        )
        if child.output.waits:
            self.receipts.notified(child, seq, 0)

    def closed(self, child: Child, seq: int) -> None:
        held = b',"heldOpen":true' if child.ending.held_open and self.extended else b""
        self._transport.send(
            b'{"method":"process/closed","params":{"processId":%b,"seq":%d%b}}'
            % (encode(child.key), seq, held)
        )
        self._transport.write_gathered()
        if child.output.waits:
            self.receipts.notified(child, seq, 0)
            self.receipts.ask()

    def blocked(self, child: Child) -> None:
        self._blocked.append(child)

    def question(self, child: Child, question: NetworkQuestion) -> None:
        if self.policy is not None:
            self.policy.ask(child, question)

    def withdrawn(self, child: Child, number: int) -> None:
        if self.policy is not None:
            self.policy.withdrawn(number)

    def decided(self, child: Child, record: Record) -> None:
        if self.ready and self.policy is not None:  # else dropped: the audit has it
            self.policy.decided(child, record)

    def pause(self) -> None:
        self.ready = False

    def resume(self) -> None:
        """The client reads again: children that waited for it continue."""
        self.ready = True
        blocked, self._blocked = self._blocked, []
        for child in blocked:
            child.output.resume()


def _after_gap(size: int, chunks: int) -> bytes:
    return b'","omitted":%b}}' % encode(Omitted(bytes=size, chunks=chunks))


def exit_shape(child: Child) -> ExitShape | None:
    """How a child ended, for the wire; None while it runs."""
    info = child.exit
    if info is None:
        return None
    return _exit_shape(info.kind, info.code, info.signal, info.core_dumped, info.limit)


def _exit_shape(
    kind: ExitKind, code: int | None, signal: str | None, core_dumped: bool, limit: str | None
) -> ExitShape:
    said = kind.value
    if limit is not None:
        said = LIMIT_KINDS.get(limit, "exited" if signal is None else "signaled")
    return ExitShape(
        kind=said,
        code=code,
        signal=signal,
        core_dumped=core_dumped,
        limit=UNSET if limit is None else LIMITS[limit],
    )


def _exit(child: Child) -> bytes:
    """``exit_shape``, encoded."""
    info = child.ending.exit
    if info is None:
        return b"null"
    return _encoded_exit(info.kind, info.code, info.signal, info.core_dumped, info.limit)


@lru_cache(maxsize=64)
def _encoded_exit(*of_info: Any) -> bytes:
    """Most commands end in one of a few ways."""
    return encode(_exit_shape(*of_info))


def denied(child: Child) -> bool:
    """Whether a sandboxed child seems to have been denied something by its sandbox."""
    return child.ending.verdict is not None and child.ending.verdict.denied


def denial_shapes(child: Child) -> list[DenialShape]:
    """The denials of a child, for the wire; of one that runs, the hosts it was refused so far."""
    found: Sequence[Any] = ()
    if child.ending.verdict is not None:
        found = child.ending.verdict.denials
    elif child.spec.network is not None:
        from handrail.sandbox.denial import records_of

        found = records_of(child.spec.network)
    return [DenialShape(**denial.members()) for denial in found]


def usage_shape(child: Child) -> UsageShape | None:
    """The resource usage of a child that has ended, for the wire."""
    usage = child.exit.usage if child.exit is not None else None
    return None if usage is None else shape_of(usage)


def shape_of(usage: Usage) -> UsageShape:
    """Resource usage, for the wire."""
    return UsageShape(
        wall_ms=usage.wall_ms,
        user_ms=usage.user_ms,
        system_ms=usage.system_ms,
        max_rss_bytes=usage.max_rss_bytes,
    )
