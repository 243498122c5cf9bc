"""Expectations of a case, each held against what was recorded.

A check gives sentences on what does not fit, and none where all is well.
"""

from __future__ import annotations

import base64
import json
import os
import select
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.wire.matching import match, subset
from tests.wire.recording import NO_ID, Recording, is_note, is_response, joined, readable

Expectation = dict[str, Any]
#: How long a process may take to be gone.
DEATH_LIMIT = 2.0
#: What names an expectation in a sentence about it.
LABELS = ("conn", "id", "proc", "order", "http", "file", "state", "body")


@dataclass
class Evidence:
    """All that one run of a case left behind."""

    #: The folder the case worked in.
    root: str
    recordings: dict[str, Recording] = field(default_factory=dict)
    #: Status and body of plain HTTP requests, by the name the case gave them.
    http: dict[str, tuple[int, str]] = field(default_factory=dict)


def check(expectation: Expectation, evidence: Evidence) -> list[str]:
    """Hold one expectation against the evidence."""
    label = json.dumps({key: expectation[key] for key in LABELS if key in expectation})
    return [f"{label}: {sentence}" for sentence in find_faults(expectation, evidence)]


def find_faults(expectation: Expectation, evidence: Evidence) -> list[str]:
    """What does not fit; the first key of the tables that is there says what is looked at."""
    for key, look in ELSEWHERE.items():
        if key in expectation:
            return look(expectation, evidence)
    recording = evidence.recordings[expectation.get("conn", "a")]
    for key, look_at in ON_A_CONNECTION.items():
        if key in expectation:
            return look_at(expectation, recording)
    raise ValueError(f"an expectation of no known kind: {expectation}")


# Beside the connections.


def check_http(expectation: Expectation, evidence: Evidence) -> list[str]:
    """A plain HTTP answer."""
    status, body = evidence.http[expectation["http"]]
    if status == expectation["status"] and match(expectation.get("body", "${ANY}"), body):
        return []
    return [f"got {status} {body!r}"]


def check_file(expectation: Expectation, evidence: Evidence) -> list[str]:
    """A file in the folder of the case: its content, or that it is not there."""
    path = os.path.join(evidence.root, expectation["file"])
    if expectation.get("absent"):
        return ["exists"] if os.path.lexists(path) else []
    if not os.path.exists(path):
        return ["missing"]
    with open(path, "rb") as f:
        content = readable(f.read())
    return [] if match(expectation["text"], content) else [f"content {content!r}"]


def check_dead(expectation: Expectation, evidence: Evidence) -> list[str]:
    """A process whose number is in a file is gone, or about to be."""
    with open(os.path.join(evidence.root, expectation["pid_dead"])) as f:
        pid = int(f.read().split()[0])
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return []
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)  # readable once it has ended, reaped or not
        return [] if poll.poll(DEATH_LIMIT * 1000) else [f"pid {pid} alive"]
    finally:
        os.close(fd)


# On a connection.


def check_rejected(expectation: Expectation, recording: Recording) -> list[str]:
    """The upgrade was refused."""
    if recording.rejected is not None:
        status, body = recording.rejected
        if status == expectation["rejected"] and match(expectation.get("text", "${ANY}"), body):
            return []
    return [f"got {recording.rejected!r}"]


def check_state(expectation: Expectation, recording: Recording) -> list[str]:
    """The connection is open, or it is closed."""
    if recording.closed == (expectation["state"] == "closed"):
        return []
    return [f"connection is {'closed' if recording.closed else 'open'}"]


def check_malformed(expectation: Expectation, recording: Recording) -> list[str]:
    """So many messages were called malformed."""
    count = sum(
        is_response(m) and m["id"] == NO_ID and m.get("error", {}).get("code") == -32600
        for m in recording.messages
    )
    return [] if count == expectation["malformed"] else [f"{count} malformed replies"]


def check_order(expectation: Expectation, recording: Recording) -> list[str]:
    """Messages came in this order."""
    positions = [recording.find(selector) for selector in expectation["order"]]
    known = [position for position in positions if position is not None]
    if len(known) == len(positions) and known == sorted(known):
        return []
    return [f"positions {positions!r}"]


def check_elapsed(expectation: Expectation, recording: Recording) -> list[str]:
    """The time between two messages is within bounds."""
    first, second = (recording.find(selector) for selector in expectation["elapsed"])
    if first is None or second is None:
        return ["one of the two never came"]
    elapsed = (recording.times[second] - recording.times[first]) * 1000
    within = expectation.get("min_ms", 0) <= elapsed <= expectation.get("max_ms", 1e9)
    return [] if within else [f"{elapsed:.0f} ms"]


def check_no_response(expectation: Expectation, recording: Recording) -> list[str]:
    """A request was not answered."""
    answer = recording.response(expectation["no_response"])
    return [] if answer is None else ["got a response"]


def check_note(expectation: Expectation, recording: Recording) -> list[str]:
    """There is a notification like this."""
    method, params = expectation["note"], expectation.get("params", "${ANY}")
    if any(
        m.get("method") == method and match(params, m.get("params")) for m in recording.messages
    ):
        return []
    return [f"no matching {method} in {json.dumps(recording.messages)[-400:]}"]


def check_body(expectation: Expectation, recording: Recording) -> list[str]:
    """A streamed HTTP body: numbered from 1, complete, and ended once."""
    deltas = [
        m["params"]
        for m in recording.messages
        if m.get("method") == "http/request/bodyDelta"
        and m["params"]["requestId"] == expectation["body"]
    ]
    numbered = [delta["seq"] for delta in deltas] == list(range(1, len(deltas) + 1))
    ended_once = [bool(delta["done"]) for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    text = readable(b"".join(base64.b64decode(delta["deltaBase64"]) for delta in deltas))
    if (
        numbered
        and ended_once
        and match(expectation["text"], text)
        and match(expectation.get("error"), deltas[-1].get("error"))
    ):
        return []
    return [f"deltas {json.dumps(deltas)[:400]}"]


def check_process(expectation: Expectation, recording: Recording) -> list[str]:
    """The notifications about one process, all of them together."""
    process = expectation["proc"]
    faults = []
    if "streams" in expectation:
        faults += check_streams(expectation["streams"], recording.output(process), "streams")
    if "exit" in expectation:
        faults += check_exit(expectation["exit"], process, recording)
    closed = recording.notes(process, "closed")
    if "closed" in expectation and len(closed) != int(expectation["closed"]):
        faults.append(f"closed notifications {len(closed)}")
    seqs = [params["seq"] for params in recording.notes(process)]
    if seqs and expectation.get("contiguous", True):
        first = expectation.get("first_seq", min(seqs))
        if sorted(seqs) != list(range(first, first + len(seqs))):
            faults.append(f"seqs {seqs[:50]}")
    if closed:
        last = [m["method"] for m in recording.messages if is_note(m, process)][-1]
        if last != "process/closed" or max(seqs) != closed[0]["seq"]:
            faults.append("closed is not last")
    return faults


def check_exit(want: Any, process: str, recording: Recording) -> list[str]:
    """It ended once and like this; ``null`` says that it did not end."""
    exits = recording.notes(process, "exited")
    if want is None:
        fits = not exits
    else:
        pattern = {"processId": process, "seq": "${INT}", **want}
        fits = len(exits) == 1 and match(pattern, exits[0])
    return [] if fits else [f"exited {json.dumps(exits)}"]


def check_streams(want: dict[str, Any], output: dict[str, bytes], what: str) -> list[str]:
    """What was written: exactly these streams, with this content."""
    got = {stream: readable(data) for stream, data in output.items()}
    fits = set(want) == set(got) and subset(want, got)
    return [] if fits else [f"{what} {json.dumps(got)[:400]}"]


def check_response(expectation: Expectation, recording: Recording) -> list[str]:
    """The answer to a request: an error, what a read gives, or any result."""
    message = recording.response(expectation["id"])
    if message is None:
        return ["no response"]
    if type(message["id"]) is not type(expectation["id"]):
        return [f"id type {message['id']!r}"]
    if "error" in expectation:
        fits = is_error(expectation["error"], message.get("error"))
    elif "read" in expectation:
        result = message.get("result")
        if isinstance(result, dict):
            return check_read(dict(expectation["read"]), result)
        fits = False
    else:
        fits = "result" in message and match(expectation["result"], message["result"])
    return [] if fits else [f"got {json.dumps(message)[:500]}"]


def is_error(want: dict[str, Any], got: Any) -> bool:
    """An error of this code; its text only where the case has one."""
    return (
        isinstance(got, dict)
        and got.get("code") == want["code"]
        and match(want.get("message", "${ANY}"), got.get("message"))
    )


def check_read(want: dict[str, Any], result: dict[str, Any]) -> list[str]:
    """The result of process/read."""
    chunks = result.get("chunks", [])
    seqs = [chunk["seq"] for chunk in chunks]
    faults = []
    if "streams" in want:
        faults += check_streams(want.pop("streams"), joined(chunks), "read streams")
    if "seqs" in want and want.pop("seqs") != seqs:
        faults.append(f"read seqs {seqs}")
    if "bytes_max" in want:
        size = sum(len(base64.b64decode(chunk["chunk"])) for chunk in chunks)
        if size > want.pop("bytes_max"):
            faults.append("too many bytes retained")
    if not match({"$subset": want}, result):
        rest = {key: value for key, value in result.items() if key != "chunks"}
        faults.append(f"read {json.dumps(rest)}")
    if seqs != sorted(set(seqs)):
        faults.append("read seqs not increasing")
    return faults


ELSEWHERE: dict[str, Callable[[Expectation, Evidence], list[str]]] = {
    "http": check_http,
    "file": check_file,
    "pid_dead": check_dead,
}
ON_A_CONNECTION: dict[str, Callable[[Expectation, Recording], list[str]]] = {
    "rejected": check_rejected,
    "state": check_state,
    "malformed": check_malformed,
    "order": check_order,
    "elapsed": check_elapsed,
    "no_response": check_no_response,
    "note": check_note,
    "body": check_body,
    "proc": check_process,
    "id": check_response,
}
