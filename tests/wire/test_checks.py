"""The checks must be able to fail: each is shown something that does not fit."""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.wire.checks import Evidence, check
from tests.wire.recording import Message, Recording


def note(kind: str, seq: int, **params: Any) -> Message:
    return {"method": f"process/{kind}", "params": {"processId": "p", "seq": seq, **params}}


def output(seq: int, text: str, stream: str = "stdout") -> Message:
    return note("output", seq, stream=stream, chunk=base64.b64encode(text.encode()).decode())


def look(expectation: dict[str, Any], *messages: Message) -> list[str]:
    recording = Recording(list(messages), [float(i) for i in range(len(messages))])
    return check(expectation, Evidence("/nowhere", {"a": recording}))


ENDED = [output(1, "a"), output(2, "b"), note("exited", 3, exitCode=0), note("closed", 4)]
WHOLE = {"proc": "p", "streams": {"stdout": "ab"}, "exit": {"exitCode": 0}, "closed": True}


def test_boundaries_of_chunks_do_not_matter() -> None:
    assert look(WHOLE, *ENDED) == []
    assert look(WHOLE, output(1, "ab"), *(note("exited", 2, exitCode=0), note("closed", 3))) == []


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "streams"),
        ([output(1, "a"), *ENDED[2:]], "streams"),
        ([*ENDED[:2], output(3, "x", "stderr"), note("closed", 4)], "streams"),
        ([*ENDED[:2], note("exited", 3, exitCode=1), note("closed", 4)], "exited"),
        ([*ENDED[:2], note("closed", 3)], "exited"),
        ([*ENDED[:3]], "closed notifications 0"),
        ([*ENDED[:3], note("closed", 5)], "seqs"),
        ([*ENDED[:2], note("closed", 4), note("exited", 3, exitCode=0)], "closed is not last"),
        ([*ENDED[:2], note("closed", 3), note("exited", 4, exitCode=0)], "closed is not last"),
    ],
)
def test_what_is_wrong_with_a_process_is_named(messages: list[Message], fault: str) -> None:
    assert any(fault in sentence for sentence in look(WHOLE, *messages))


@pytest.mark.parametrize(
    ("expectation", "message"),
    [
        ({"id": 1, "result": {}}, {"id": 2, "result": {}}),
        ({"id": 1, "result": {}}, {"id": "1", "result": {}}),
        ({"id": 1, "result": {}}, {"id": 1, "error": {"code": 0}}),
        ({"id": 1, "error": {"code": -1}}, {"id": 1, "error": {"code": -2}}),
        ({"id": 1, "error": {"code": -1}}, {"id": 1, "result": {}}),
        ({"id": 1, "read": {"closed": True}}, {"id": 1, "result": {"closed": False}}),
        ({"id": 1, "read": {}}, {"id": 1, "error": {"code": -1}}),
        ({"no_response": 1}, {"id": 1, "result": {}}),
        ({"note": "x", "params": 1}, {"method": "x", "params": 2}),
        ({"malformed": 1}, {"id": -1, "error": {"code": -32601}}),
        ({"order": ["resp:2", "resp:1"]}, {"id": 1, "result": {}}),
        ({"state": "closed"}, {"id": 1, "result": {}}),
        ({"rejected": 401}, {"id": 1, "result": {}}),
    ],
)
def test_a_message_that_does_not_fit_is_a_fault(
    expectation: dict[str, Any], message: Message
) -> None:
    assert len(look(expectation, message)) == 1


def test_a_read_counts_bytes_and_seqs() -> None:
    chunks = [output(seq, "ab")["params"] for seq in (1, 2)]
    answer = {"id": 1, "result": {"chunks": chunks, "closed": True}}
    fits = {"streams": {"stdout": "abab"}, "seqs": [1, 2], "bytes_max": 4, "closed": True}
    assert look({"id": 1, "read": fits}, answer) == []
    wrong = {"streams": {"stdout": "ab"}, "seqs": [1], "bytes_max": 3, "closed": False}
    assert len(look({"id": 1, "read": wrong}, answer)) == 4


def test_a_body_is_numbered_and_ends_once() -> None:
    def delta(seq: int, done: bool) -> Message:
        params = {"requestId": "r", "seq": seq, "deltaBase64": "YQ==", "done": done}
        return {"method": "http/request/bodyDelta", "params": params}

    want = {"body": "r", "text": "aa"}
    assert look(want, delta(1, False), delta(2, True)) == []
    assert look(want, delta(1, False), delta(3, True))
    assert look(want, delta(1, True), delta(2, True))
    assert look(want, delta(1, False), delta(2, False))
    assert look(want)


def test_files_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("text")
    evidence = Evidence(str(tmp_path))
    assert check({"file": "f", "text": "text"}, evidence) == []
    assert check({"file": "f", "text": "other"}, evidence)
    assert check({"file": "f", "absent": True}, evidence)
    assert check({"file": "g", "text": ""}, evidence)
    assert check({"file": "g", "absent": True}, evidence) == []


def test_a_process_that_lives_is_not_dead(tmp_path: Path) -> None:
    (tmp_path / "me").write_text(str(os.getpid()))
    ended = subprocess.Popen(["true"])
    ended.wait()
    (tmp_path / "gone").write_text(str(ended.pid))
    evidence = Evidence(str(tmp_path))
    assert check({"pid_dead": "me"}, evidence)
    assert check({"pid_dead": "gone"}, evidence) == []


def test_an_unknown_expectation_is_an_error() -> None:
    with pytest.raises(ValueError, match="no known kind"):
        look({"colour": "red"})
