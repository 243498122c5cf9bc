"""Waiting for any of several things a process may do, by looking at its history."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from handrail.errors import UsageError
from handrail.executor.base import WaitOutcome, WaitReason
from handrail.executor.history import History


def compile_patterns(patterns: Sequence[str | bytes]) -> list[re.Pattern[bytes]]:
    """Patterns over bytes, with ``$`` and ``^`` at lines; raises UsageError."""
    compiled = []
    for pattern in patterns:
        raw = pattern.encode("utf-8", "surrogateescape") if isinstance(pattern, str) else pattern
        try:
            compiled.append(re.compile(raw, re.MULTILINE))
        except re.error as error:
            raise UsageError(f"the pattern {pattern!r} does not compile: {error}") from None
    return compiled


async def wait_for(
    history: History,
    exited: Callable[[], bool],
    patterns: Sequence[str | bytes],
    *,
    idle: float | None,
    exit: bool,  # noqa: A002 (what is waited for)
    timeout: float | None,
    start: int,
) -> WaitOutcome:
    """See ``ExecSession.wait_for``.  Output that is there already is looked at first."""
    compiled = compile_patterns(patterns)
    began = time.monotonic()
    deadline = None if timeout is None else began + timeout
    looked = -1
    while True:
        if history.total != looked:
            looked = history.total
            position, text = history.since(start)
            for index, pattern in enumerate(compiled):
                found = pattern.search(text)
                if found is not None:
                    end = position + found.end()
                    return WaitOutcome(WaitReason.PATTERN, end, index, found.group())
        if history.failure is not None:
            raise history.failure
        if history.ended or (exit and exited()):
            return WaitOutcome(WaitReason.EXIT, history.total)
        now = time.monotonic()
        ends = [] if deadline is None else [(deadline, WaitReason.DEADLINE)]
        if idle is not None:
            ends.append((max(began, history.last_output) + idle, WaitReason.IDLE))
        due = min(ends, key=lambda end: end[0], default=None)
        if due is not None and due[0] <= now:
            return WaitOutcome(due[1], history.total)
        await history.changed(None if due is None else due[0] - now)
