"""The promises of the wire about sequence numbers, checked on a recording.  Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tests.interop.recording import Recording

OUTPUT, EXITED, CLOSED = "process/output", "process/exited", "process/closed"
#: What a number stands for: a chunk with its stream, or one of the two last events.
Event = tuple[str, str]


def check_order(recording: Recording, *, cut: bool) -> None:
    """Every number once and for one thing, no gaps, and the close is the last.

    Where the line was cut a number may be missing or told again, but never with another meaning.
    """
    told: dict[str, dict[int, Event]] = defaultdict(dict)
    for frame in recording.frames:
        if frame.from_client or frame.method not in (OUTPUT, EXITED, CLOSED):
            continue
        params = frame.message["params"]
        learn(told[params["processId"]], params["seq"], event(frame.method, params), again=cut)
    for read in recording.requests("process/read"):
        for chunk in read.result["chunks"] if read.result else ():
            learn(told[read.params["processId"]], chunk["seq"], event(OUTPUT, chunk), again=True)
    for process, events in told.items():
        closes = [seq for seq, (kind, _) in events.items() if kind == CLOSED]
        if closes:
            assert closes == [max(events)], process
            assert cut or sorted(events) == list(range(1, max(events) + 1)), process


def event(method: str, params: dict[str, Any]) -> Event:
    """What a notification, or a chunk that was read, says."""
    if method == OUTPUT:
        return params["stream"], params["chunk"]
    return method, str(params.get("exitCode"))


def learn(events: dict[int, Event], seq: int, what: Event, *, again: bool) -> None:
    """Take down what a number stands for."""
    assert again or seq not in events, f"{seq} was told twice"
    assert events.setdefault(seq, what) == what, f"{seq} has two meanings"
