"""Commands on pipes: their output, their end, their surroundings."""

from __future__ import annotations

import os

from tests.interop.codex import MODEL
from tests.interop.script import Code, Poll, Run, Together, Write
from tests.interop.tasks.task import Outcome, Task
from tests.wire.servers import has_ended, open_pidfd

#: Variables that the client sets for every command.
FORCED = {"NO_COLOR": "1", "TERM": "dumb", "PAGER": "cat", "LC_ALL": "C.UTF-8", "CODEX_CI": "1"}
SECOND_SHELL_OF_CLIENT = "only supports"
GROUP = 16
ROW = 40
BIG = 600_000
#: How long a process may live on after the client has left, in seconds.  The client asks for the
#: end of each and leaves; what it asks too late for ends with its session, after 30 seconds.
END_LIMIT = 40.0


def check_simple(o: Outcome) -> None:
    o.ran(0, "hello\n")
    [shown] = o.turn.items("command_execution")
    assert (shown["aggregated_output"], shown["exit_code"]) == ("hello\n", 0)


def check_login(o: Outcome) -> None:
    [start] = o.recording.requests("process/start")
    assert start.params["argv"][1] == "-lc"
    assert o.printed(0).endswith("login\n")


EXITS = {"exit 0": 0, "exit 3": 3, "exit 255": 255, "kill -TERM $$": 143, "kill -KILL $$": 137}


def check_exits(o: Outcome) -> None:
    for step, code in enumerate(EXITS.values()):
        o.ran(step, "", code)


def check_streams(o: Outcome) -> None:
    assert sorted(o.printed(0).splitlines()) == ["err 1", "err 2", "out 1", "out 2"]
    seen = {note["stream"] for note in o.recording.notes("process/output")}
    assert seen == {"stdout", "stderr"}


def check_cwd(o: Outcome) -> None:
    o.ran(0, f"{o.workspace}\n")
    o.ran(1, f"{o.workspace}/sub dir\n")
    o.ran(2, "/\n")
    assert "No such file or directory" in o.answer(3).text  # and nothing was run
    o.ran(4, "still here\n")


def check_environment(o: Outcome) -> None:
    seen = dict(line.split("=", 1) for line in o.printed(0).splitlines() if "=" in line)
    assert {name: seen.get(name) for name in FORCED} == FORCED
    assert seen["HANDRAIL_INTEROP_SERVER"] == "kept"
    assert seen["HANDRAIL_INTEROP_SET"] == "by the client's settings"
    assert "HANDRAIL_INTEROP_DROP" not in seen
    # A server on stdio is a child of the client; the far one has its own surroundings.
    assert ("HANDRAIL_INTEROP_CLIENT" in seen) is (o.transport == "stdio")


def check_big(o: Outcome) -> None:
    whole = "".join(f"{n}\n" for n in range(1, BIG + 1))
    answer = o.answer(0)
    assert answer.exit_code == 0
    assert answer.tokens == -(-len(whole) // 4)
    assert "\n1\n2\n3\n" in answer.output
    assert answer.output.endswith(f"\n{BIG - 1}\n{BIG}\n")
    assert len(answer.output) < 60_000
    assert "truncated" in answer.output


def check_missing_program(o: Outcome) -> None:
    answer = o.answer(0)
    assert answer.exit_code == 127
    assert "handrail-no-such-program" in answer.output
    assert o.answer(1).exit_code == 126
    assert SECOND_SHELL_OF_CLIENT in o.answer(2).text
    o.ran(3, "still here\n")


def check_unicode(o: Outcome) -> None:
    o.ran(0, "žluťoučký 世界 🚂\n")
    o.ran(1, "世界\n")  # the first character came in two pieces


def check_binary(o: Outcome) -> None:
    answer = o.answer(0)
    assert answer.exit_code == 0
    assert answer.output == "\x00\x01\ufffd\ufffd\x7f end\n"
    o.ran(1, f"{256 * 64}\n")


def check_many(o: Outcome) -> None:
    for i in range(GROUP):
        assert o.printed((0, i)) == f"{i} waits\n{i} goes\n"
        assert o.exit_code((0, i)) == i
    first_end = next(f.at for f in o.recording.frames if f.method == "process/exited")
    together = [e for e in o.recording.requests("process/start") if e.at < first_end]
    assert len(together) == GROUP + 1  # and the one that let them go


def check_row(o: Outcome) -> None:
    for step in range(ROW):
        o.ran(step, f"call {step}\n", step % 5)
    assert len(o.recording.requests("process/start")) == ROW
    assert len(o.recording.requests("initialize")) == 1


def check_background(o: Outcome) -> None:
    assert o.answer(0).session is not None
    assert o.printed(0) == "started\nfinished\n"
    assert o.exit_code(0) == 6


def check_long_run(o: Outcome) -> None:
    assert o.printed(0) == "".join(f"step {n}\n" for n in range(1, 61))
    assert o.exit_code(0) == 9
    assert len(o.script.about(0)) >= 3  # the start and two polls


def check_interrupt(o: Outcome) -> None:
    assert o.printed(0) == "ready\ncaught\n"
    assert o.exit_code(0) == 5
    assert o.exit_code(3) == 130
    signals = o.recording.requests("process/signal")
    assert [e.params["signal"] for e in signals] == ["interrupt", "interrupt"]


def check_stdin(o: Outcome) -> None:
    o.ran(0, "end of input\n")
    assert "stdin is closed" in o.answer(2).text
    assert not o.recording.requests("process/write")


def check_left_behind(o: Outcome) -> None:
    for process in (0, 1):
        assert o.script.about(process)[0].session is not None
    assert o.recording.requests("process/terminate")
    for process in (0, 1):
        pidfd = open_pidfd(int(o.printed(process)))
        if pidfd is not None:
            assert has_ended(pidfd, END_LIMIT)
            os.close(pidfd)


def check_code_mode(o: Outcome) -> None:
    answer = o.answer(0)
    assert answer.output == "7 first\nsecond third\n", answer.text
    assert len(o.recording.requests("process/start")) == 3


PROGRAM = """\
const run = (cmd) => tools.exec_command({cmd, login: false});
const first = await run("echo first; exit 7");
text(first.exit_code + " " + first.output);
const [a, b] = await Promise.all([run("echo second"), run("echo third")]);
text(a.output.trim() + " " + b.output);
"""
ENVIRONMENT = """
[shell_environment_policy]
exclude = ["HANDRAIL_INTEROP_DR*"]
set = { HANDRAIL_INTEROP_SET = "by the client's settings" }
"""
WAIT = "until [ -e go ]; do sleep 0.05; done"

TASKS = (
    Task("simple-command", (Run("echo hello"),), check_simple),
    Task(
        "login-shell",
        (Run("shopt -q login_shell && echo login", login=None),),
        check_login,
    ),
    Task("exit-codes", tuple(Run(cmd) for cmd in EXITS), check_exits),
    Task(
        "stderr-beside-stdout",
        (Run("echo out 1; echo err 1 >&2; echo out 2; echo err 2 >&2"),),
        check_streams,
    ),
    Task(
        "working-directory",
        (
            Run("pwd"),
            Run("pwd", more={"workdir": "sub dir"}),
            Run("pwd", more={"workdir": "/"}),
            Run("pwd", more={"workdir": "missing"}),
            Run("echo still here"),
        ),
        check_cwd,
        files={"sub dir/file": ""},
    ),
    Task("environment", (Run("env"),), check_environment, config=ENVIRONMENT),
    Task("megabytes-of-output", (Run(f"seq 1 {BIG}", yield_ms=30_000),), check_big),
    Task(
        "programs-that-do-not-exist",
        (
            Run("handrail-no-such-program"),
            Run("./not-executable"),
            Run("true", more={"shell": "/no/such/shell"}),
            Run("echo still here"),
        ),
        check_missing_program,
        files={"not-executable": "text"},
    ),
    Task(
        "unicode",
        (
            Run("echo 'žluťoučký 世界 🚂'"),
            Run(r"printf '\xe4'; sleep 0.2; printf '\xb8\x96界\n'"),
        ),
        check_unicode,
    ),
    Task(
        "binary-output",
        (
            Run(r"printf '\x00\x01\xff\xfe\x7f end\n'"),
            Run("cat bytes | wc -c"),
        ),
        check_binary,
        files={"bytes": bytes(range(256)) * 64},
    ),
    Task(
        "many-processes",
        (
            Together(
                tuple(
                    Run(f"echo {i} waits; {WAIT}; echo {i} goes; exit {i}", yield_ms=250)
                    for i in range(GROUP)
                )
            ),
            Run("touch go"),
            *(Poll((0, i)) for i in range(GROUP)),
        ),
        check_many,
    ),
    Task(
        "forty-calls-in-a-row",
        tuple(Run(f"echo call {i}; exit {i % 5}") for i in range(ROW)),
        check_row,
    ),
    Task(
        "background-job",
        (
            Run(f"echo started; {WAIT}; echo finished; exit 6", yield_ms=250),
            Run("touch go"),
            Poll(0),
        ),
        check_background,
    ),
    Task(
        "long-run-polled-to-its-end",
        (
            Run('for i in $(seq 1 60); do echo "step $i"; sleep 0.1; done; exit 9', yield_ms=250),
            Poll(0),
        ),
        check_long_run,
    ),
    Task(
        "interrupt-on-pipes",
        (
            Run(
                "trap 'echo caught; exit 5' INT; echo ready; touch ready; "
                "while :; do sleep 0.05; done",
                yield_ms=250,
            ),
            Run("until [ -e ready ]; do sleep 0.05; done"),
            Write(0, "\x03", yield_ms=10_000),
            Run("exec sleep 600", yield_ms=250),
            Write(3, "\x03", yield_ms=10_000),
        ),
        check_interrupt,
    ),
    Task(
        "stdin-of-a-pipe-is-closed",
        (Run("cat; echo end of input"), Run("exec sleep 600", yield_ms=250), Write(1, "text\n")),
        check_stdin,
    ),
    Task(
        "ends-what-it-left-running",
        (
            Run("echo $$; exec sleep 600", yield_ms=1000),
            Run("echo $$; exec sleep 600", yield_ms=1000, tty=True),
        ),
        check_left_behind,
    ),
    Task(
        "code-mode",
        (Code(PROGRAM),),
        check_code_mode,
        model={**MODEL, "tool_mode": "code_mode_only"},
    ),
)
