"""Waiting for a process of another machine in one message each way: ``process/wait``.

The server says which of the things happened and where; what exactly a pattern matched is read
from the output, which comes here anyway.  So the result is the one that following the output
would have had, and nobody looks at every chunk again from the start.

The server looks for patterns in linear time and refuses those that it cannot.  Then, and where
it offers no ``process/wait``, or too many calls are under way, the output is followed instead.
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
from handrail.executor.rpc import CallTimedOut
from handrail.executor.session_client import ExecServerClient
from handrail.executor.wait_for import Looking, Patience, follow
from handrail.protocol.process import WaitResult

_numbers = itertools.count(1)


async def wait_far(
    client: ExecServerClient, process_id: str, looking: Looking, patience: Patience
) -> WaitOutcome:
    """As ``waiting.follow``, which see; never longer than the patience lasts."""
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
        except CallTimedOut:  # the time was ours
            return looking.look() or WaitOutcome(WaitReason.DEADLINE, history.total)
        except ProtocolError:  # it knows no such pattern, or too many calls are under way
            return await follow(looking, patience)
        except ExecutorTransportFailed as error:
            raise history.failure or error from None
        if answer.reason == "pattern":
            return await _matched(looking, patience, answer)
        if answer.reason == "exit":
            await _arrived(looking, patience, lambda: looking.exited() or looking.history.ended)
            return looking.look() or WaitOutcome(WaitReason.EXIT, history.total)
        # A repeated call asks for the rest of the silence; output in between begins a new one.
        if answer.reason == "idle" and (asking.whole or (patience.quiet(history) or 0.0) <= 0):
            return WaitOutcome(WaitReason.IDLE, answer.position)


async def _matched(looking: Looking, patience: Patience, answer: WaitResult) -> WaitOutcome:
    """What it was that the server has found, as we would have seen it then."""
    history = looking.history
    await _arrived(looking, patience, lambda: history.total >= answer.position)
    seen = max(answer.position, answer.output_bytes)
    return (
        looking.match(seen)
        or looking.match(answer.position)
        # Not to be had here any more: it fell out of the retention while the line was gone.
        or WaitOutcome(WaitReason.PATTERN, answer.position, answer.pattern)
    )


async def _arrived(looking: Looking, patience: Patience, here: Callable[[], bool]) -> None:
    """Until we have heard what the server knows, which an answer may overtake."""
    history = looking.history
    while not here() and history.failure is None:
        left = patience.left()
        if left is not None and left <= 0:
            return
        await history.changed(left)


class _Asking:
    """One ``process/wait``, as often as it has to be sent."""

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
        #: Whether all of the silence was asked for.
        self.whole = True
        self._sent = 0

    def _params(self) -> dict[str, Any]:
        """With the times that are left, for it may be sent again after a lost connection."""
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
        """Nobody wants to know any more, and the server has better things to do."""
        if "waitId" in self._client.extensions:
            params = {
                "processId": self._process_id,
                "waitId": self._wait_id,
                "timeoutMs": 0,
            }
            self._client.mention("process/wait", params)


def _texts(sources: list[bytes]) -> list[str] | None:
    """The patterns as they travel; None for what is no text."""
    try:
        return [source.decode() for source in sources]
    except UnicodeDecodeError:
        return None
