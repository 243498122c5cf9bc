"""Dialogues with programs in a terminal."""

from __future__ import annotations

from tests.interop.script import Poll, Run, Write
from tests.interop.tasks.task import Outcome, Task

#: A sleeper that Ctrl-C has ended: the peer says 1, we say which signal it was.
INTERRUPTED = {1, 130}


def check_dialogue(o: Outcome) -> None:
    assert o.answer(0).session is not None
    assert o.printed(0) == "name? Ada\r\nhello Ada\r\n"
    assert o.exit_code(0) == 4
    start, _ = o.recording.requests("process/start")
    assert start.params["tty"] is True
    [write] = o.recording.requests("process/write")
    assert write.result == {"status": "accepted"}


def check_terminal(o: Outcome) -> None:
    o.ran(0, "a terminal\r\n24 80\r\n")
    o.ran(1, "no terminal\n")


def check_loop(o: Outcome) -> None:
    lines = o.printed(0).replace("\r\n", "\n").splitlines()
    assert [line for line in lines if line.startswith("got")] == ["got one", "got two", "got drei"]
    assert lines[-1] == "end of input"
    assert o.exit_code(0) == 0


def check_interrupt(o: Outcome) -> None:
    assert o.exit_code(0) in INTERRUPTED
    assert o.printed(0) == "^C"
    assert o.printed(2).replace("\r\n", "\n").endswith("^Ccaught\n")
    assert o.exit_code(2) == 5
    # It travels as a byte; the terminal makes the signal of it.
    assert not o.recording.requests("process/signal")
    assert len(o.recording.requests("process/write")) == 2


def check_repl(o: Outcome) -> None:
    printed = o.printed(0).replace("\r\n", "\n")
    assert "\n42\n" in printed
    assert "ZeroDivisionError" in printed
    assert o.exit_code(0) == 3


REPL = "exec python3 -q -i -c 'import sys; sys.ps1 = sys.ps2 = str()'"

TASKS = (
    Task(
        "terminal-dialogue",
        (
            Run(
                "printf 'name? '; touch asked; read name; echo \"hello $name\"; exit 4",
                tty=True,
                yield_ms=250,
            ),
            Run("until [ -e asked ]; do sleep 0.05; done"),
            Write(0, "Ada\n", yield_ms=10_000),
        ),
        check_dialogue,
    ),
    Task(
        "what-a-terminal-is",
        (
            Run("test -t 0 && test -t 1 && echo a terminal; stty size", tty=True),
            Run("test -t 0 || test -t 1 || echo no terminal"),
        ),
        check_terminal,
    ),
    Task(
        "terminal-loop-until-end-of-input",
        (
            Run(
                'while read line; do echo "got $line"; done; echo end of input',
                tty=True,
                yield_ms=250,
            ),
            Write(0, "one\n"),
            Write(0, "two\ndrei\n"),
            Write(0, "\x04", yield_ms=10_000),
            Poll(0),
        ),
        check_loop,
    ),
    Task(
        "interrupt-in-a-terminal",
        (
            Run("exec sleep 600", tty=True, yield_ms=500),
            Write(0, "\x03", yield_ms=10_000),
            Run(
                "trap 'echo caught; exit 5' INT; touch ready; while :; do sleep 0.05; done",
                tty=True,
                yield_ms=250,
            ),
            Run("until [ -e ready ]; do sleep 0.05; done"),
            Write(2, "\x03", yield_ms=10_000),
        ),
        check_interrupt,
    ),
    Task(
        "interpreter-session",
        (
            Run(REPL, tty=True, yield_ms=1000),
            Write(0, "x = 6\n", yield_ms=500),
            Write(0, "print(x * 7)\n", yield_ms=1000),
            Write(0, "x / 0\n", yield_ms=1000),
            Write(0, "sys.exit(3)\n", yield_ms=10_000),
            Poll(0),
        ),
        check_repl,
    ),
)
