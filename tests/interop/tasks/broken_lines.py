"""The connection is cut while something runs: the client comes back, and nothing is lost.

The client connects again for 25 seconds, resumes its session, and asks for what it has missed
with one ``process/read`` for each process.
"""

from __future__ import annotations

from tests.interop.recorder import Cut
from tests.interop.script import Poll, Run, Write
from tests.interop.tasks.task import Outcome, Task

LINES = "".join(f"line {n}\n" for n in range(1, 31))
FLOOD = 400_000


def resumed(o: Outcome, times: int = 1) -> None:
    """Assert that the client came back, to the same session."""
    first, *others = o.recording.requests("initialize")
    session = first.result["sessionId"]
    kept = [e for e in others if e.result is not None]
    assert len(kept) == times
    for again in kept:
        assert again.params["resumeSessionId"] == session
        assert again.result["sessionId"] == session


def check_output(o: Outcome) -> None:
    resumed(o)
    o.ran(0, LINES, 7)
    [read] = o.recording.requests("process/read")
    assert read.params["afterSeq"] == 4
    assert read.result["chunks"][0]["seq"] == 5  # the one that was lost


def check_twice(o: Outcome) -> None:
    resumed(o, times=2)
    o.ran(0, LINES, 7)


def check_ended_meanwhile(o: Outcome) -> None:
    resumed(o)
    o.ran(0, "before\nafter\n", 7)
    exits = o.recording.notes("process/exited")
    assert exits == []  # nobody was there to be told, so the answer had it


def check_write(o: Outcome) -> None:
    resumed(o)
    first, again, *_ = o.recording.requests("process/write")
    assert first.params == again.params  # the same writeId
    assert o.printed(0) == "one\r\ngot 1 one\r\ntwo\r\ngot 2 two\r\ntotal 2\r\n"
    assert o.exit_code(0) == 0


def check_start(o: Outcome) -> None:
    resumed(o)
    assert "transport disconnected" in o.answer(0).text  # it may have run, so it is not repeated
    lost, _ = o.recording.requests("process/start")
    ended = [e.params["processId"] for e in o.recording.requests("process/terminate")]
    assert lost.params["processId"] in ended
    assert o.answer(1).output in ("", "ran\n")
    assert o.answer(1).exit_code in (0, 1)


def check_terminal(o: Outcome) -> None:
    resumed(o)
    o.ran(1, "other\n")
    assert o.printed(0) == "still there\r\ngot still there\r\n"
    assert o.exit_code(0) == 3


def check_flood(o: Outcome) -> None:
    resumed(o)
    answer = o.answer(0)
    whole = len("before\n") + sum(len(f"{n}\n") for n in range(1, FLOOD + 1))
    if answer.exit_code is None:  # more was missed than the server keeps, and the client says so
        assert "failed to recover process" in answer.text, answer.text
    else:
        assert (answer.exit_code, answer.tokens) == (4, -(-whole // 4))
    o.ran(1, "still here\n")


WRITING = 'n=0; while read l; do n=$((n+1)); echo "got $n $l"; done; echo total $n'

TASKS = (
    Task(
        "cut-in-the-middle-of-output",
        (Run("for i in $(seq 1 30); do echo line $i; sleep 0.1; done; exit 7"),),
        check_output,
        cuts=(Cut("process/output", nth=5, lose=True, refuse=4),),
    ),
    Task(
        "cut-twice",
        (Run("for i in $(seq 1 30); do echo line $i; sleep 0.1; done; exit 7"),),
        check_twice,
        cuts=(Cut("process/output", nth=3, refuse=2), Cut("process/output", nth=9, lose=True)),
    ),
    Task(
        "ends-while-the-line-is-down",
        (Run("echo before; sleep 0.3; echo after; exit 7"),),
        check_ended_meanwhile,
        cuts=(Cut("process/output", refuse=12),),
    ),
    Task(
        "cut-before-a-write-is-confirmed",
        (
            Run(WRITING, tty=True, yield_ms=500),
            Write(0, "one\n", yield_ms=1000),
            Write(0, "two\n"),
            Write(0, "\x04", yield_ms=10_000),
            Poll(0),
        ),
        check_write,
        cuts=(Cut("process/write", reply=True, lose=True, refuse=3),),
    ),
    Task(
        "cut-before-a-start-is-confirmed",
        (Run("echo ran >> once.txt"), Run("cat once.txt 2> /dev/null")),
        check_start,
        cuts=(Cut("process/start", reply=True, lose=True),),
    ),
    Task(
        "terminal-survives-a-cut",
        (
            Run('read line; echo "got $line"; exit 3', tty=True, yield_ms=500),
            Run("sleep 0.2; echo other"),
            Write(0, "still there\n", yield_ms=10_000),
            Poll(0),
        ),
        check_terminal,
        cuts=(Cut("process/start", nth=2, reply=True, refuse=2),),
    ),
    Task(
        "flood-while-the-line-is-down",
        (
            Run(f"echo before; sleep 0.3; seq 1 {FLOOD}; exit 4", yield_ms=20_000),
            Run("echo still here"),
        ),
        check_flood,
        cuts=(Cut("process/output", refuse=15),),
    ),
)
