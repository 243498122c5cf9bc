"""A process that is talked to: sending, waiting for any of several things, following."""

from __future__ import annotations

import re
import signal
import sys

import pytest

from handrail import (
    Exited,
    ExitKind,
    Line,
    Output,
    ResizeFailed,
    UsageError,
    WaitReason,
    Workspace,
    WriteFailed,
)

REPL = ["env", "PYTHON_BASIC_REPL=1", sys.executable, "-q"]  # 3.13 has one with colours


def test_a_dialogue(ws: Workspace) -> None:
    repl = ws.start(REPL, tty=True)
    assert repl.wait_for(">>> ", timeout=20)
    repl.send("6 * 7\n")
    waited = repl.wait_for(r"^4\d\b", timeout=20)
    assert (waited.reason, waited.match, waited.index) == (WaitReason.PATTERN, "42", 0)
    repl.send("exit()\n")
    assert repl.wait_for("never", timeout=20).reason is WaitReason.EXIT
    end = repl.wait()
    assert end is not None
    assert end.code == 0


def test_a_match_is_not_found_twice(ws: Workspace) -> None:
    process = ws.start("echo one two one; read x; echo one")
    assert process.wait_for("one", timeout=20)
    assert process.wait_for("one", timeout=20)
    assert process.wait_for("one", idle=0.05).reason is WaitReason.IDLE
    process.send("\n")
    assert process.wait_for("one", timeout=20)


def test_the_first_of_several_patterns_is_named(ws: Workspace) -> None:
    process = ws.start("echo Error: broken; cat")
    waited = process.wait_for("ready", re.compile("error: (.*)", re.IGNORECASE), timeout=20)
    assert (waited.index, waited.match) == (1, "Error: broken")


def test_a_deadline_does_not_end_the_process(ws: Workspace) -> None:
    process = ws.start("cat")
    waited = process.wait_for("never", timeout=0.05)
    assert waited.reason is WaitReason.DEADLINE
    assert not waited
    assert process.running
    assert process.wait(timeout=0.01) is None


def test_bad_patterns_and_empty_waits_are_refused(ws: Workspace) -> None:
    process = ws.start("cat")
    with pytest.raises(UsageError, match="pattern"):
        process.wait_for("(")
    with pytest.raises(UsageError, match="nothing to wait for"):
        process.wait_for(exit=False)


def test_following_gives_output_and_then_the_exit(ws: Workspace) -> None:
    process = ws.start("echo out; echo err >&2; exit 4")
    for _ in range(2):  # every iteration sees it all
        *outputs, last = process
        said = {"stdout": "", "stderr": ""}
        for event in outputs:
            assert isinstance(event, Output)
            said[event.stream] += event.text
        assert said == {"stdout": "out\n", "stderr": "err\n"}
        assert isinstance(last, Exited)
        assert last.exit.code == 4


def test_text_is_not_torn_between_pieces(ws: Workspace) -> None:
    script = r"printf '\303'; read x; printf '\266\n'"
    process = ws.start(script)
    texts = []
    for event in process:
        if isinstance(event, Output):
            texts.append(event.text)
            if len(texts) == 1:
                process.send("\n")
    assert texts == ["", "ö\n"]


def test_a_listener_may_call_back(ws: Workspace) -> None:
    def answer(output: Output) -> None:
        if "name?" in output.text:
            process.send("handrail\n")

    process = ws.start("sleep 0.05; echo 'name?'; read n; echo hello $n", on_output=answer)
    assert process.wait_for("hello handrail", timeout=20)


def test_the_end_of_stdin(ws: Workspace) -> None:
    process = ws.start(["cat"])
    process.send(b"bytes ")
    process.send("text")
    process.close_stdin()
    assert process.result().stdout == "bytes text"
    with pytest.raises(WriteFailed):
        process.send("more")


def test_signals_and_sizes(ws: Workspace) -> None:
    with ws.start("trap 'echo got it; exit 9' INT; echo up; while :; do sleep 0.01; done") as one:
        one.wait_for("up", timeout=20)
        one.interrupt()
        assert one.result().stdout == "up\ngot it\n"
        with pytest.raises(ResizeFailed):
            one.resize(10, 20)
    with ws.start("trap 'stty size; exit' WINCH; echo up; read x", tty=True, size=(11, 22)) as two:
        two.wait_for("up", timeout=20)
        two.resize(33, 44)
        assert two.wait_for("33 44", timeout=20)
    with pytest.raises(UsageError, match="no signal"):
        one.signal("bang")


def test_a_context_ends_the_process(ws: Workspace) -> None:
    with ws.start("sleep 600") as process:
        assert process.running
    assert process.exit is not None
    assert process.exit.kind is ExitKind.TERMINATED


def test_the_timeout_of_a_start(ws: Workspace) -> None:
    process = ws.start("sleep 600", timeout=0.05)
    end = process.wait()
    assert end is not None
    assert end.kind is ExitKind.TIMED_OUT


def test_how_it_shows_itself(ws: Workspace) -> None:
    process = ws.start(["echo", "a b"])
    process.wait()
    assert repr(process) == f"<Process {process.id} \"echo 'a b'\": exited 0>"
    with ws.start("sleep 600") as sleeping:
        assert repr(sleeping) == f"<Process {sleeping.id} 'sleep 600': running>"
    assert repr(ws) == f"<Workspace {ws.root!r}>"


def test_a_slow_reader_that_must_not_miss_anything(ws: Workspace) -> None:
    process = ws.start("echo 0; read x; seq 700000", keep_output=1_000_000)
    events = iter(process)
    first = next(events)
    process.send("\n")
    assert process.wait(0.3) is None  # it waits for us
    said = b"".join([first.data, *(e.data for e in events if isinstance(e, Output))])  # type: ignore[union-attr]
    assert said.split() == [b"%d" % n for n in range(700_001)]
    assert process.exit is not None


@pytest.mark.parametrize("given", ["USR1", "SIGUSR1", "usr1", signal.SIGUSR1, int(signal.SIGUSR1)])
def test_a_signal_by_name_or_number(ws: Workspace, given: str | int) -> None:
    process = ws.start("trap 'echo heard; exit' USR1; echo up; while :; do sleep 0.01; done")
    assert process.expect("up", timeout=20)
    process.signal(given)
    assert process.expect("heard", timeout=20)


def test_keys_are_pressed(ws: Workspace) -> None:
    process = ws.start("stty -echo; echo up; cat -v", tty=True)
    assert process.expect("up", timeout=20)
    process.press("up", "f5", "alt-x", "q", "enter")
    assert process.expect(r"\^\[\[A\^\[\[15~\^\[xq", timeout=20)
    process.press("ctrl-c")
    end = process.wait(timeout=20)
    assert end is not None
    assert end.signal == "SIGINT"


def test_lines_are_tagged_by_their_stream(ws: Workspace) -> None:
    process = ws.start("echo one; printf tw; read x; echo wrong >&2; read x; printf 'o\\nlast'")
    lines = process.lines()
    assert next(lines) == Line("stdout", "one")
    process.send("\n")
    assert next(lines) == Line("stderr", "wrong")
    process.send("\n")
    assert [*lines] == [Line("stdout", "two"), Line("stdout", "last")]
