"""The parts of the harness that need no client."""

from __future__ import annotations

import json

import pytest

from tests.interop.answers import Answer
from tests.interop.recorder import Cut
from tests.interop.recording import Frame, Recording, load
from tests.interop.script import LAST_WORD, Poll, Run, Script, ScriptError, Together, Write
from tests.interop.wire_order import check_order

RUNNING = "Chunk ID: 0a1b2c\nProcess running with session ID 77\nOutput:\n"
ENDED = "Chunk ID: 0a1b2c\nProcess exited with code 3\nOriginal token count: 1\nOutput:\nhi\n"


class Conversation:
    """What a client would send: the answers so far."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.items: list[dict[str, str]] = []

    def turn(self, *answers: str) -> list[dict[str, str]]:
        """Answer the last calls, and hear what comes next."""
        calls = [item["call_id"] for item in self.last] if answers else []
        for call, text in zip(calls, answers, strict=True):
            item = {"type": "function_call_output", "call_id": call, "output": text}
            self.items.append(item)
        self.last = self.script.reply(self.items)
        return self.last


def test_an_answer_is_taken_apart() -> None:
    answer = Answer(0, 0, "exec_command", ENDED)
    assert (answer.exit_code, answer.session, answer.tokens) == (3, None, 1)
    assert answer.output == "hi\n"


def test_text_of_the_command_is_not_taken_for_the_head() -> None:
    answer = Answer(0, 0, "exec_command", ENDED + "Process running with session ID 5\n")
    assert answer.session is None


def test_a_poll_is_repeated_until_the_end() -> None:
    talk = Conversation(Script((Run("x"), Poll(0))))
    assert talk.turn()[0]["name"] == "exec_command"
    for _ in range(3):
        [poll] = talk.turn(RUNNING)
        assert json.loads(poll["arguments"])["session_id"] == 77
    [last] = talk.turn(ENDED)
    assert last["content"] == [{"type": "output_text", "text": LAST_WORD}]
    assert len(talk.script.about(0)) == 4


def test_nothing_that_has_ended_is_polled() -> None:
    talk = Conversation(Script((Run("x"), Poll(0))))
    talk.turn()
    assert talk.turn(ENDED)[0]["type"] == "message"


def test_calls_at_once_are_told_apart() -> None:
    talk = Conversation(Script((Together((Run("a"), Run("b"))), Write((0, 1), "text"))))
    assert len(talk.turn()) == 2
    [write] = talk.turn(ENDED, RUNNING)
    assert json.loads(write["arguments"])["chars"] == "text"


def test_a_call_that_got_no_answer_is_an_error() -> None:
    talk = Conversation(Script((Run("x"),)))
    talk.turn()
    with pytest.raises(ScriptError, match="no answer"):
        talk.turn()


def frame(message: dict[str, object], *, from_client: bool = False) -> Frame:
    return Frame(0, from_client, message, 0.0)


def output(seq: int, chunk: str) -> Frame:
    params = {"processId": "p", "seq": seq, "stream": "stdout", "chunk": chunk}
    return frame({"method": "process/output", "params": params})


CLOSED = frame({"method": "process/closed", "params": {"processId": "p", "seq": 3}})


def test_a_cut_happens_at_the_reply_it_names() -> None:
    cut = Cut("a", nth=2, reply=True)
    recording = Recording()
    seen = []
    for message in ({"id": 1, "method": "a"}, {"id": 2, "method": "a"}):
        recording.frames.append(frame(message, from_client=True))
        seen.append(cut.is_at(recording))
    for reply in ({"id": 1, "result": {}}, {"id": 2, "result": {}}):
        recording.frames.append(frame(reply))
        seen.append(cut.is_at(recording))
    assert seen == [False, False, False, True]


@pytest.mark.parametrize(
    "frames",
    [
        [output(1, "YQ=="), CLOSED],
        [output(1, "YQ=="), output(1, "YQ=="), output(2, "YQ=="), CLOSED],
        [output(1, "YQ=="), output(2, "YQ=="), output(4, "YQ=="), CLOSED],
    ],
    ids=["gap", "twice", "after the close"],
)
def test_a_broken_order_is_seen(frames: list[Frame]) -> None:
    with pytest.raises(AssertionError):
        check_order(Recording(frames), cut=False)


def test_the_log_of_a_tap_may_end_in_the_middle() -> None:
    line = json.dumps({"from_client": True, "at": 0.5, "message": {"id": 1, "method": "a"}})
    recording = load([f"{line}\n", line[:20]])
    assert recording.order() == ["a"]
