"""What a person meets: mistyped words, units, tables, colour, options that widen a sandbox."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from handrail import __main__
from handrail.cli import options, style, text_table
from handrail.cli.foreground_command import duration, harmless
from tests.cli.user import HANDRAIL, Terminal


def handrail(*words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    options: dict[str, Any] = {"input": "", "capture_output": True, "text": True, "timeout": 50}
    return subprocess.run([*HANDRAIL, *words], check=False, **{**options, **how})


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["rum", "--", "true"], "there is no command `rum`; did you mean `run`?"),
        (["policy", "chek"], "there is no command `chek`; did you mean `check`?"),
        (["run", "--timout", "5", "--", "true"], "no option --timout; did you mean --timeout?"),
        (["ps", "--quite"], "did you mean --quiet?"),
        (["--json", "ps"], "--json is before the command; options go behind the command, as in"),
        (["--at", "ws://x", "ps"], "--at is before the command"),
        (["list"], "there is no command `list`; did you mean `ps`?"),
        (["help"], "there is no command `help`; did you mean `--help`?"),
        (["run", "--sandbox", "readonly", "--", "true"], "did you mean `read-only`?"),
    ],
)
def test_did_you_mean(words: list[str], hint: str) -> None:
    done = handrail(*words)
    if words[0] == "--json":
        assert hint in json.loads(done.stdout)["error"]["message"]
        return
    assert (done.returncode, done.stdout) == (2, "")
    assert hint in done.stderr
    told = handrail(words[0], "--json", *words[1:])
    assert hint in json.loads(told.stdout)["error"]["message"]


def test_word_that_is_like_none_is_answered_with_all() -> None:
    said = handrail("zzzzzz").stderr
    assert "there is no command `zzzzzz`; they are run, " in said
    assert "did you mean" not in said


def test_what_a_server_says_does_not_reach_the_terminal_as_it_is() -> None:
    bad = "a\x1b]0;title\x07\x1b[2Jb\rc\u202ed\x9be"
    assert harmless(bad) == "a\\x1b]0;title\\x07\\x1b[2Jb\\rc\\u202ed\\x9be"
    for kept in ("one\ntwo\tthree", "\r\nleft", "grün", os.fsdecode(b"name\xff")):
        assert harmless(kept) == kept
    program = (
        "from handrail.cli import error_output, stdio; from handrail.errors import RpcError;"
        "stdio.take_over(); error_output.tell(RpcError(-1, 'no\\x1b[2J'), 1);"
        "stdio.complain('o\\x07')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stderr == b"handrail: no\\x1b[2J\nhandrail: o\\x07\n"


def test_an_early_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(__main__, "_use_safe_path", interrupt)
        with pytest.raises(SystemExit) as ended:
            __main__.main()
    assert ended.value.code == 130

    async def command() -> int:
        return 0

    monkeypatch.setattr(asyncio, "run", interrupt)
    begun = command()
    with pytest.raises(KeyboardInterrupt):
        options.to_end(begun)
    assert inspect.getcoroutinestate(begun) == inspect.CORO_CLOSED


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["logs", "--tail", "x", "id"], "'x' is no whole number from 0 on"),
        (["serve", "--max-processes", "0"], "'0' is no whole number from 1 on"),
        (["serve", "--concurrent-requests", "all"], "'all' is no whole number from"),
        (["serve", "--results-each", "1QB"], "argument --results-each: '1QB' is no size"),
        (["serve", "--results-keep", "soon"], "argument --results-keep: 'soon' is no duration"),
    ],
)
def test_what_is_no_number_is_told_by_the_name_of_its_option(words: list[str], said: str) -> None:
    done = handrail(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_stdin_that_is_closed_is_empty(tmp_path: Path) -> None:
    script = '"$@" <&-'
    for words, code in ((["apply-patch"], 2), (["network", "check", "--jsonl"], 0)):
        done = subprocess.run(
            ["sh", "-c", script, "sh", *HANDRAIL, *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr
        assert done.returncode == code


@pytest.mark.parametrize("road", [[], ["--env", "A=1"]], ids=["fast", "workspace"])
def test_an_empty_path_is_not_writable(road: list[str], tmp_path: Path) -> None:
    done = handrail("run", *road, "--read-only", "--writable", "", "--", "touch", "x", cwd=tmp_path)
    assert done.returncode in (2, 125)
    assert "'' is no path" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5), ("1.5", 1.5), ("250ms", 0.25), ("5m", 300), ("1h", 3600)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("road", [[], ["--env", "A=1"], ["--json"]])
def test_timeout_with_a_unit(road: list[str], tmp_path: Path) -> None:
    done = handrail("run", *road, "--timeout", "60ms", "--", "sleep", "50", cwd=tmp_path)
    assert done.returncode == 124, done


def test_what_is_no_duration() -> None:
    done = handrail("run", "--timeout", "5 parsecs", "--", "true")
    assert done.returncode == 2
    assert "'5 parsecs' is no duration; write one like 90s, 5m, 1.5h or 250ms" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["logs", "--tail", "few", "ID"], "--tail: 'few' is no whole number from 0 on"),
        (["logs", "--tail=-1", "ID"], "--tail: '-1' is no whole number from 0 on"),
        (["serve", "--max-processes", "0"], "--max-processes: '0' is no whole number from 1 on"),
        (["fleet", "logs", "--lines", "0", "NODE"], "--lines: '0' is no whole number from 1 on"),
    ],
)
def test_what_is_no_number(words: list[str], said: str) -> None:
    done = handrail(*words)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("road", [[], ["--env", "A=1"]], ids=["fast", "workspace"])
def test_options_that_widen_a_sandbox(road: list[str], tmp_path: Path) -> None:
    work, other = tmp_path / "work", tmp_path / "other"
    work.mkdir()
    other.mkdir()
    script = "touch here 2>/dev/null; touch ../other/there 2>/dev/null; ls; ls ../other"

    def made(*words: str) -> list[str]:
        for name in (work / "here", other / "there"):
            name.unlink(missing_ok=True)
        handrail("run", *road, *words, "--", "sh", "-c", script, cwd=work)
        return [name.name for name in (work / "here", other / "there") if name.exists()]

    assert made() == ["here"]
    assert made("--writable", "../other") == ["here", "there"]
    assert made("--read-only") == []
    assert made("--read-only", "--writable", str(other)) == ["there"]
    assert made("--sandbox", "danger-full-access") == ["here", "there"]


@pytest.mark.parametrize("road", [[], ["--env", "A=1"]], ids=["fast", "workspace"])
def test_network(road: list[str], tmp_path: Path) -> None:
    look = ["--", "readlink", "/proc/self/ns/net"]
    ours = Path("/proc/self/ns/net").readlink()
    assert handrail("run", *road, *look, cwd=tmp_path).stdout.strip() != str(ours)
    assert handrail("run", *road, "--network", *look, cwd=tmp_path).stdout.strip() == str(ours)


@pytest.mark.parametrize(
    "words", [["--read-only", "--sandbox", "off"], ["--sandbox", "off", "--network"]]
)
def test_options_that_contradict_each_other(words: list[str]) -> None:
    done = handrail("run", *words, "--", "true")
    assert (done.returncode, done.stdout) == (2, "")


def test_usage_in_json(tmp_path: Path) -> None:
    done = handrail("run", "--json", "--", "sh", "-c", "exit 0", cwd=tmp_path)
    usage = json.loads(done.stdout)["usage"]
    assert set(usage) == {"wallMs", "cpuMs", "userMs", "systemMs", "memoryBytes"}
    assert usage["cpuMs"] == usage["userMs"] + usage["systemMs"]
    assert usage["memoryBytes"] > 0


ROWS = [("a", "running", "sleep 1"), ("bcd", "exited", "x\n\x1b[2J")]


def test_plain_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    text_table.show(("ID", "STATE", "COMMAND"), ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "ID   STATE    COMMAND",
        "a    running  sleep 1",
        r"bcd  exited   x\n\x1b[2J",
    ]


def test_table_for_a_person(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert style.person_looks()
    text_table.show(("ID", "STATE", "COMMAND"), ROWS)
    assert "\x1b[32mrunning" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    text_table.show(("ID", "STATE", "COMMAND"), ROWS)
    assert "\x1b[32m" not in capsys.readouterr().out


def test_no_cell_is_cut_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the address of a server, an id of a process had five characters left of ten."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    cells = ("3800674f-1", "running", f"unix:/{'a' * 50}/server.sock", "sleep 1")
    text_table.show(("ID", "STATE", "AT", "COMMAND"), [cells])
    _, row = capsys.readouterr().out.splitlines()
    assert all(cell in row for cell in cells)


def test_optional_items_of_doctor_are_no_failures() -> None:
    done = handrail("doctor")
    marks = {line.split()[0] for line in done.stdout.splitlines() if not line.startswith(" ")}
    assert marks <= {"ok", "no", "MISSING", "Commands", "What"}
    for_a_person = handrail("doctor", env={**os.environ, "FORCE_COLOR": "1"}).stdout
    assert "\x1b[32mok" in for_a_person
    if "no" in marks:
        assert "What is marked `no` is not needed for that" in done.stdout
        assert "optional" in for_a_person


def test_nothing_is_imported_for_colour_that_no_person_sees() -> None:
    argv = [sys.executable, "-X", "importtime", *HANDRAIL[1:], "doctor"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=50, check=False)
    assert "handrail.cli.text_table" in done.stderr
    assert " rich" not in done.stderr


def test_shell_on_a_terminal(tmp_path: Path) -> None:
    with Terminal(*HANDRAIL, "shell", "--shell", "/bin/sh", cwd=tmp_path) as user:
        user.until(b"writes only below this directory and has no network")
        user.type(b"echo A$((20+22)); touch made; touch /etc/handrail-no\n")
        user.until(b"A42")
        user.until(b"Read-only file system")
        user.type(b"exit 3\n")
        assert user.end() == 3
    assert (tmp_path / "made").exists()


def test_shell_with_other_options_and_without_a_terminal(tmp_path: Path) -> None:
    words = ("shell", "--shell", "/bin/sh", "--cwd", str(tmp_path), "--read-only")
    with Terminal(*HANDRAIL, *words) as user:
        user.until(b"writes nothing")
        user.type(b"pwd; touch made || echo N$((1+1))\n")
        user.until(b"N2")
        user.type(b"exit 0\n")
        assert user.end() == 0
    done = handrail("shell")
    assert done.returncode == 2
    assert "needs a terminal" in done.stderr
