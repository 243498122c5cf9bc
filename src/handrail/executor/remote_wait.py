"""``process/wait``: wait for a process of another machine with one message each way.

The server says which of the conditions came true and where; the text that a pattern matched is
read from the output, which arrives here anyway.  So the result is the same as from following
the output, and the client does not scan every chunk again.

The server matches patterns in linear time and refuses those that it cannot.  Then, and where
it offers no ``process/wait``, or too many calls are open, the output is followed instead.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable
from typing import Any

import msgspec

from handrail.errors import ExecutorTransportFailed, ProtocolError, RemoteProtocolError
from handrail.executor.base import WaitOutcome, WaitReason
from handrail.executor.client.rpc import CallTimedOut
from handrail.executor.client.session import ExecServerClient
from handrail.executor.wait_for import Looking, Patience, follow
from handrail.protocol.process import WaitResult

_numbers = itertools.count(1)


async def wait_far(
    client: ExecServerClient, process_id: str, looking: Looking, patience: Patience
) -> WaitOutcome:
    """Remote version of ``wait_for.follow``; never longer than the patience lasts."""
    texts = _texts(looking.sources)
    if texts is None or "processWait" not in client.extensions:
        return await follow(looking, patience)
    asking = _Asking(client, process_id, looking, patience, texts)
    history = looking.history
    while True:
        found = looking.look()
        if found is not None:
            return found
        reason, _ = patience.over(history)
        if reason is not None:
            return WaitOutcome(reason, history.total)
        if client.crowded:
            return await follow(looking, patience)
        try:
            answer = await asking.ask()
        except CallTimedOut:  # our own deadline
            return looking.look() or WaitOutcome(WaitReason.DEADLINE, history.total)
        except ProtocolError:  # unsupported pattern, or too many open calls
            return await follow(looking, patience)
        except ExecutorTransportFailed as error:
            raise history.failure or error from None
        if answer.reason == "pattern":
            return await _matched(looking, patience, answer)
        if answer.reason == "exit":
            await _arrived(looking, patience, lambda: looking.exited() or looking.history.ended)
            return looking.look() or WaitOutcome(WaitReason.EXIT, history.total)
        # A repeated call asks for the rest of the silence; output in between starts it again.
        if answer.reason == "idle" and (asking.whole or (patience.quiet(history) or 0.0) <= 0):
            return WaitOutcome(WaitReason.IDLE, answer.position)


async def _matched(looking: Looking, patience: Patience, answer: WaitResult) -> WaitOutcome:
    """The match that the server has found, read from our output buffer."""
    history = looking.history
    await _arrived(looking, patience, lambda: history.total >= answer.position)
    seen = max(answer.position, answer.output_bytes)
    return (
        looking.match(seen)
        or looking.match(answer.position)
        # Dropped here: it fell out of the retention while the connection was lost.
        or WaitOutcome(WaitReason.PATTERN, answer.position, answer.pattern)
    )


async def _arrived(looking: Looking, patience: Patience, here: Callable[[], bool]) -> None:
    """Wait until the output that the server has seen is here; the answer may overtake it."""
    history = looking.history
    while not here() and history.failure is None:
        left = patience.left()
        if left is not None and left <= 0:
            return
        await history.changed(left)


class _Asking:
    """One ``process/wait``, sent again after each resume."""

    def __init__(
        self,
        client: ExecServerClient,
        process_id: str,
        looking: Looking,
        patience: Patience,
        texts: list[str],
    ) -> None:
        self._client = client
        self._process_id = process_id
        self._looking = looking
        self._patience = patience
        self._texts = texts
        self._wait_id = f"{client.nonce}-wait-{next(_numbers)}"
        #: Whether the whole silence was asked for.
        self.whole = True
        self._sent = 0

    def _params(self) -> dict[str, Any]:
        """The parameters, with the times that are left: the call may be sent again."""
        looking, patience = self._looking, self._patience
        params: dict[str, Any] = {
            "processId": self._process_id,
            "patterns": self._texts,
            "fromByte": looking.start,
            "exit": looking.exit,
        }
        if (left := patience.left()) is not None:
            params["timeoutMs"] = math.ceil(left * 1000)
        self._sent += 1
        self.whole = self._sent == 1
        quiet = patience.idle if self.whole else patience.quiet(looking.history)
        if quiet is not None:
            params["idleMs"] = math.ceil(max(0.0, quiet) * 1000)
        if "waitId" in self._client.extensions:
            params["waitId"] = self._wait_id
        return params

    async def ask(self) -> WaitResult:
        left = self._patience.left()
        try:
            raw = await self._client.call(
                "process/wait", self._params, timeout=left, repeat=True, prompt=False
            )
        except asyncio.CancelledError:
            self._stop()
            raise
        try:
            return msgspec.convert(raw, WaitResult)
        except msgspec.ValidationError as error:
            raise RemoteProtocolError(f"a process/wait that does not read: {error}") from None

    def _stop(self) -> None:
        """Cancel the wait on the server by a short one of the same name."""
        if "waitId" in self._client.extensions:
            params = {
                "processId": self._process_id,
                "waitId": self._wait_id,
                "timeoutMs": 0,
            }
            self._client.mention("process/wait", params)


def _texts(sources: list[bytes]) -> list[str] | None:
    """The patterns as sent; None for one that is no text."""
    try:
        return [source.decode() for source in sources]
    except UnicodeDecodeError:
        return None
