"""``run --detach``, ``ps``, ``logs``, ``attach``, ``kill`` and ``cp`` against a real server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handrail.cli.commands.completion import render
from handrail.cli.terminal import read_key
from tests.cli.user import HANDRAIL, Terminal
from tests.support.servers import server_process

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "xdg")}


@pytest.fixture
def handrail(env: dict[str, str]) -> Command:
    def run(*words: str, code: int = 0, **how: Any) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*HANDRAIL, *words],
            check=False,
            env={**os.environ, **env},
            timeout=50,
            capture_output=True,
            text=True,
            **{"input": "", **how},
        )
        assert done.returncode == code, done
        return done

    return run


SCRIPT = "echo begun; echo careful >&2; while read line; do echo got $line; done; exit 4"


def test_from_detach_to_its_end(url: str, handrail: Command) -> None:
    assert json.loads(handrail("ps", "--json").stdout) == []
    start = ("run", "--at", url, "--sandbox", "off", "--detach", "--json", "--", "sh", "-c", SCRIPT)
    started = json.loads(handrail(*start).stdout)
    name = started["id"]
    (line,) = json.loads(handrail("ps", "--json").stdout)
    assert (line["id"], line["state"], line["at"]) == (started["processId"], "running", url)
    assert handrail("ps", "-q").stdout == f"{name}-1\n"
    assert json.loads(handrail("ps", "-q", "--json").stdout) == [f"{name}-1"]
    assert "running" in handrail("ps").stdout
    logs = handrail("logs", name)
    assert (logs.stdout, logs.stderr) == ("begun\n", "careful\n")
    # The end of our stdin is the end of its stdin: it goes on to its own end.
    attached = handrail("attach", name, input="one\ntwo\n", code=4)
    assert attached.stdout == "begun\ngot one\ngot two\n"
    assert json.loads(handrail("ps", "--json").stdout) == []
    assert "no workspace" in handrail("logs", name, code=125).stderr


def test_a_server_that_has_gone_is_named(handrail: Command, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    with server_process(state) as server:
        start = ("run", "--at", server.url, "--sandbox", "off", "--detach", "--", "sleep", "600")
        name = handrail(*start).stdout.strip()
    table = handrail("ps")
    assert "unreachable" in table.stdout
    assert f"handrail: {name}-1: no server answers at {server.url}; " in table.stderr
    assert table.stderr.count("\n") == 1
    (row,) = json.loads(handrail("ps", "--json").stdout)
    assert (row["state"], row["why"]) == ("unreachable", f"no server answers at {server.url}")
    assert "is `handrail serve` running" in handrail("ps", "--at", server.url, code=125).stderr
    told = json.loads(handrail("prune", "--dry-run", "--json").stdout)
    assert [(one["what"], one["id"]) for one in told["removed"]] == [("workspace", name)]
    assert "unreachable" in handrail("ps").stdout
    assert handrail("prune").stdout.endswith("1 removed, 0B\n")
    assert json.loads(handrail("ps", "--all", "--json").stdout) == []


def test_all_rows_of_a_killed_server_have_one_line(
    handrail: Command, env: dict[str, str], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    with server_process(state, env=env) as server:
        start = ("run", "--at", server.url, "--sandbox", "off", "--detach", "--", "sleep", "600")
        names = [handrail(*start).stdout.strip() for _ in range(2)]
        server.process.kill()
        server.process.wait()
        table = handrail("ps")
        assert table.stdout.count("unreachable") == 2
        assert table.stderr.count("\n") == 1
        first, second = sorted((f"{name}-1" for name in names), key=table.stderr.index)
        gone = f"the server at {server.url} is gone, and its processes go on without it; start it "
        assert table.stderr.startswith(f"handrail: {first}, {second}: {gone}")
        with server_process(state, env=env):
            pass  # it takes over, and ends them with itself


def test_a_token_that_is_missing_is_asked_for(handrail: Command, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    auth = ("--ws-auth", "capability-token", "--ws-token-file", str(token))
    with server_process(state, *auth) as server:
        run = ("run", "--at", server.url, "--sandbox", "off")
        assert "--token-file" in handrail(*run, "--", "true", code=125).stderr
        handrail(*run, "--token-file", str(token), "--", "true")


def test_following_logs_and_killing(url: str, handrail: Command) -> None:
    script = "echo one; sleep 600"
    run = ("run", "--at", url, "--sandbox", "off", "--detach", "--", "sh", "-c")
    name = handrail(*run, script).stdout.strip()
    told = json.loads(handrail("kill", "--json", name).stdout)
    assert told["exit"]["kind"] == "terminated"
    name = handrail(*run, "echo two; sleep 0.3; echo three").stdout.strip()
    assert handrail("logs", "-f", name).stdout == "two\nthree\n"
    name = handrail(*run, "trap 'exit 3' USR1; while :; do sleep 0.05; done").stdout.strip()
    handrail("kill", "--signal", "USR1", name)
    last = json.loads(handrail("logs", "-f", "--json", name).stdout.splitlines()[-1])
    assert last["exit"]["code"] == 3


def test_attaching_with_a_terminal_and_leaving_it(
    url: str, handrail: Command, env: dict[str, str]
) -> None:
    run = ("run", "--at", url, "--sandbox", "off", "--detach", "--tty", "--", "sh")
    name = handrail(*run).stdout.strip()
    with Terminal(*HANDRAIL, "attach", name, env=env) as terminal:
        terminal.type(b"stty size; x=4\r")
        terminal.until(b"30 100")
        terminal.type(b"\x1d")
        terminal.until(b"left running")
        assert terminal.end() == 0
    with Terminal(*HANDRAIL, "attach", name, env=env) as terminal:
        terminal.type(b"exit $((x + 3))\r")
        assert terminal.end() == 7


@pytest.mark.parametrize("words", [[], ["--json"]])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_it_running_where_nobody_types(
    url: str, handrail: Command, env: dict[str, str], words: list[str], number: int
) -> None:
    script = "trap 'echo hurt' INT TERM HUP; echo up; while :; do sleep 0.05; done"
    start = ("run", "--at", url, "--sandbox", "off", "--detach", "--", "sh", "-c", script)
    name = handrail(*start).stdout.strip()
    with subprocess.Popen(
        [*HANDRAIL, "attach", *words, name],
        env={**os.environ, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as attached:
        assert attached.stdout is not None
        assert "up" in attached.stdout.readline()
        attached.send_signal(number)
        out, err = attached.communicate(timeout=40)
    assert attached.returncode == 128 + number
    if words:
        assert (json.loads(out), err) == ({"detached": True, "exit": None}, "")
    else:
        assert (out, err) == ("", f"left running; `handrail attach {name}` comes back\n")
    (row,) = json.loads(handrail("ps", "--json").stdout)
    assert row["state"] == "running"
    assert handrail("logs", name).stdout == "up\n"
    handrail("kill", "--grace", "0", name)


def test_attaching_as_json(url: str, handrail: Command) -> None:
    start = ("run", "--at", url, "--sandbox", "off", "--detach", "--", "sh", "-c", SCRIPT)
    name = handrail(*start).stdout.strip()
    attached = handrail("attach", "--json", name, input="one\n", code=4)
    lines = [json.loads(line) for line in attached.stdout.splitlines()]
    assert (lines[-1]["detached"], lines[-1]["exit"]["code"]) == (False, 4)
    said: dict[str, str] = {"stdout": "", "stderr": ""}
    for line in lines[:-1]:
        said[line["stream"]] += line["text"]
    assert said == {"stdout": "begun\ngot one\n", "stderr": "careful\n"}


def test_copying_there_and_back(url: str, handrail: Command, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "raw").write_bytes(os.urandom(3 << 20))
    (tree / "text").write_text("hi")
    (tree / "tool").write_text("")
    (tree / "tool").chmod(0o755)
    told = json.loads(
        handrail("cp", "--at", url, "-r", "--json", str(tree), f":{tmp_path}/there").stdout
    )
    assert told == {"files": 3, "bytes": (3 << 20) + 2}
    handrail("cp", "--at", url, f":{tmp_path}/there/sub/raw", str(tmp_path))
    assert (tmp_path / "raw").read_bytes() == (tree / "sub" / "raw").read_bytes()
    assert os.access(tmp_path / "there" / "tool", os.X_OK)
    handrail("cp", "--at", url, f":{tmp_path}/there/tool", str(tmp_path / "back"))
    assert (tmp_path / "back").stat().st_mode & 0o777 == 0o755
    assert "-r" in handrail("cp", "--at", url, str(tree), ":/tmp", code=125).stderr
    told = handrail("cp", "--at", url, f":{tmp_path}/missing", "x", code=1).stderr
    assert f"{tmp_path}/missing: No such file" in told
    handrail("cp", "--at", url, "-r", f":{tmp_path}/there", f":{tmp_path}/twin")
    assert os.access(tmp_path / "twin" / "tool", os.X_OK)
    handrail("cp", "a", "b", code=2)
    handrail("cp", "a", ":b", code=2)


def test_copying_what_is_odd(url: str, handrail: Command, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    odd = [b"-dash", b"sp ace", b"new\nline", b"\xff", b"'quoted\""]
    for name in odd:
        place = os.path.join(os.fsencode(tree), name)
        Path(os.fsdecode(place)).write_bytes(name)
        os.chmod(place, 0o755)
    (tree / "loop").symlink_to(".")
    os.mkfifo(tree / "fifo")
    (tree / "sub" / "last").write_text("x")
    copy = ("cp", "--at", url, "-r")
    told = json.loads(handrail(*copy, "--json", str(tree), f":{tmp_path}/there", code=1).stdout)
    error = told["error"]
    assert (error["kind"], error["fields"]["files"]) == ("notCopied", len(odd) + 1)
    failed = {os.path.basename(one["path"]) for one in error["fields"]["failed"]}
    assert failed == {"fifo"}
    said = handrail(*copy, f":{tree}", str(tmp_path / "back"), code=1).stderr
    assert said.count("\n") == 1
    for copied in ("there", "back"):
        folder = os.fsencode(tmp_path / copied)
        assert set(os.listdir(folder)) == {*odd, b"sub", b"loop"}
        assert os.readlink(folder + b"/loop") == b"."
        for name in odd:
            place = os.path.join(folder, name)
            assert os.access(place, os.X_OK)
            assert Path(os.fsdecode(place)).read_bytes() == name
        assert (tmp_path / copied / "sub" / "last").read_text() == "x"


def test_a_line_of_progress_stays_a_line(url: str, env: dict[str, str], tmp_path: Path) -> None:
    name = "a\n\x1b[2J" + "b" * 150
    (tmp_path / name).write_bytes(bytes(3 << 20))
    # Not before half a second has gone by, so a copy that is slow has to be had.
    patient = "import sys\nfrom handrail.cli import app\n"
    patient += "from handrail.cli.commands import cp\ncp._PATIENCE_SECONDS = 0\n"
    patient += "sys.exit(app._ordinary(sys.argv[1:]))"
    words = ["cp", "--at", url, str(tmp_path / name), f":{tmp_path}/copy"]
    with Terminal(sys.executable, "-c", patient, *words, env=env) as terminal:
        assert terminal.end() == 0
    lines = terminal.said.decode().split("\r\x1b[K")
    assert len(lines) > 3
    assert all(len(line) < 100 and line.isprintable() for line in lines)
    assert "MiB (100 %)" in lines[-2]


def test_a_command_of_several_lines_is_one_in_the_list(url: str, handrail: Command) -> None:
    start = ("run", "--at", url, "--sandbox", "off", "--detach", "--", "sh", "-c", "sleep 600\n\n:")
    name = handrail(*start).stdout.strip()
    assert len(handrail("ps").stdout.splitlines()) == 2
    handrail("kill", name)


def test_copying_several(url: str, handrail: Command, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    (tmp_path / "d").mkdir()
    names = [str(tmp_path / name) for name in ("a", "b")]
    handrail("cp", "--at", url, *names, f":{tmp_path}/d")
    assert sorted(os.listdir(tmp_path / "d")) == ["a", "b"]
    handrail("cp", "--at", url, names[0], str(tmp_path / "missing"), f":{tmp_path}/d", code=1)
    said = handrail("cp", "--at", url, *names, f":{tmp_path}/none", code=125).stderr
    assert "no directory" in said


def test_other_peoples_ids_are_refused(handrail: Command) -> None:
    for command in ("attach", "logs", "kill"):
        assert "no id" in handrail(command, "../secrets", code=125).stderr


@pytest.mark.parametrize(
    ("text", "key"), [("ctrl-]", b"\x1d"), ("^C", b"\x03"), ("Ctrl-A", b"\x01")]
)
def test_keys(text: str, key: bytes) -> None:
    assert read_key(text) == key


@pytest.mark.parametrize("text", ["", "x", "ctrl-", "ctrl-ab", "ctrl-5"])
def test_keys_that_are_none(text: str) -> None:
    with pytest.raises(ValueError):
        read_key(text)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_name_every_command(shell: str) -> None:
    text = render(shell)
    for word in ("run", "attach", "serve", "detach-key", "timeout", "writable", "lint", "explain"):
        assert word in text


def test_bash_completes(tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(render("bash"))
    ask = (
        f". {script}; COMP_WORDS=(handrail $1); COMP_CWORD=1; _handrail; echo ${{COMPREPLY[*]}};"
        " COMP_WORDS=(handrail run --ti); COMP_CWORD=2; _handrail; echo ${COMPREPLY[*]};"
        " COMP_WORDS=(handrail policy l); COMP_CWORD=2; _handrail; echo ${COMPREPLY[*]};"
        " COMP_WORDS=(handrail completion z); COMP_CWORD=2; _handrail; echo ${COMPREPLY[*]};"
        " COMP_WORDS=(handrail sandbox --netw); COMP_CWORD=2; _handrail; echo ${COMPREPLY[*]};"
        " COMP_WORDS=(handrail run -- ls --ti); COMP_CWORD=4; _handrail; echo ${COMPREPLY[*]}"
    )
    done = subprocess.run(
        ["bash", "-c", ask, "bash", "at"], check=True, capture_output=True, text=True, timeout=20
    )
    assert done.stdout == "attach\n--timeout\nlint\nzsh\n--network\n\n"


def test_a_reader_that_is_killed_loses_nothing(
    url: str, handrail: Command, env: dict[str, str]
) -> None:
    start = ("run", "--at", url, "--sandbox", "off", "--detach", "--", "sh", "-c", "echo up; cat")
    name = handrail(*start).stdout.strip()
    for _ in range(2):
        with subprocess.Popen(
            [*HANDRAIL, "logs", "-f", name], stdout=subprocess.PIPE, env={**os.environ, **env}
        ) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == b"up\n"
            reader.kill()
    (row,) = json.loads(handrail("ps", "--json").stdout)
    assert row["state"] == "running"
    handrail("kill", name)


def test_logs_of_a_flood_print_what_is_there_and_end(url: str, handrail: Command) -> None:
    start = ("run", "--at", url, "--sandbox", "off", "--detach", "--", "yes")
    name = handrail(*start).stdout.strip()
    assert handrail("logs", "--tail", "3", name).stdout.count("y\n") == 3
    handrail("kill", name)


def test_no_command_gets_our_token(handrail: Command, tmp_path: Path) -> None:
    for words in (("run", "--sandbox", "off"), ("run",), ("sandbox",), ("run", "--json")):
        env = {**os.environ, "HANDRAIL_TOKEN": "secret"}
        done = subprocess.run(
            [*HANDRAIL, *words, "--", "env"], env=env, cwd=tmp_path, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=50, check=True,
        )  # fmt: skip
        assert "PATH=" in done.stdout
        assert "HANDRAIL_TOKEN" not in done.stdout
