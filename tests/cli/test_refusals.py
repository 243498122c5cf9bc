"""What the sandbox refuses to real programs is explained, and nothing else is."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import handrail as package
from handrail import AgentShell
from tests.cli.user import HANDRAIL, Terminal

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=m")
RUN = ["run", "--"]


def handrail(*words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HANDRAIL, *words],
        check=False,
        input="",
        capture_output=True,
        text=True,
        timeout=100,
        **how,
    )


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode, done
    return done.stderr.rstrip().rpartition("\n")[2]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    subprocess.run([*GIT, "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "a").write_text("a")
    subprocess.run([*GIT, "add", "a"], cwd=tmp_path, check=True)
    return tmp_path


@needs("git")
@pytest.mark.parametrize("road", [["run"], ["run", "--env", "A=1"], ["sandbox"]])
def test_git_init(road: list[str], tmp_path: Path) -> None:
    said = last_line(handrail(*road, "--", *GIT, "init", cwd=tmp_path))
    assert said.startswith("handrail: probably refused by the sandbox: writing .git (")
    assert said.endswith("--writable .git")
    assert handrail(*road, "--writable", ".git", "--", *GIT, "init", cwd=tmp_path).returncode == 0
    assert (tmp_path / ".git/HEAD").exists()


@needs("git")
def test_git_commit(repository: Path) -> None:
    commit = (*GIT, "commit", "-qm", "x")
    assert last_line(handrail(*RUN, *commit, cwd=repository)).endswith("--writable .git")
    done = handrail("run", "--writable", ".git", "--", *commit, cwd=repository)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["npm", "install", "--fetch-retries=0", "left-pad"], marks=needs("npm")),
        pytest.param(
            [
                "python3",
                "-m",
                "pip",
                "install",
                "--retries=0",
                "-i",
                "https://example.org/s",
                "no-p",
            ],
            marks=needs("pip"),
        ),
    ],
    ids=["npm", "pip"],
)
def test_package_managers(command: list[str], tmp_path: Path) -> None:
    done = handrail(*RUN, *command, cwd=tmp_path, env=None)
    said = last_line(done)
    assert "refused by the sandbox: " in said, done
    assert "--network" in said.rpartition("use ")[2]


def test_a_name_server_of_the_machine_itself(tmp_path: Path) -> None:
    """A datagram socket is connected although nothing answers, and programs say little then."""
    ask = (
        "import socket; socket.socket(type=socket.SOCK_DGRAM).connect(('127.0.0.53', 53)); exit(1)"
    )
    said = last_line(handrail(*RUN, sys.executable, "-c", ask, cwd=tmp_path))
    assert "refused by the sandbox: connecting to 127.0.0.53:53" in said
    assert said.endswith("--network")


#: What ``docker ps`` does and says, for machines without it.
DOCKER = """#!{python}
import socket, sys
try:
    socket.socket(socket.AF_UNIX).connect({path!r})
except OSError:
    sys.exit("Cannot connect to the Docker daemon at unix://{path}. Is the docker daemon running?")
"""


@pytest.mark.parametrize(
    "program", ["docker ps", pytest.param("docker", marks=needs("docker"), id="real")]
)
def test_docker(program: str, tmp_path: Path) -> None:
    """The daemon answers outside; inside the sandbox there is no way to its socket."""
    words = ["docker", "ps"]
    repo = tmp_path / "repo"
    repo.mkdir()
    with socket.socket(socket.AF_UNIX) as daemon:
        if program != "docker":
            place = tmp_path / "run" / "docker.sock"
            place.parent.mkdir()
            daemon.bind(str(place))
            daemon.listen()
            words = [str(repo / "docker"), "ps"]
            text = DOCKER.format(python=sys.executable, path=str(place))
            Path(words[0]).write_text(text)
            Path(words[0]).chmod(0o755)
            assert subprocess.run(words, check=False).returncode == 0
        said = last_line(handrail(*RUN, *words, cwd=repo))
    assert said.startswith("handrail: ")
    assert "docker.sock" in said
    assert "--sandbox off" in said


def test_ordinary_failures(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "def test_it():\n    assert 'Permission denied: /etc/x' == 'sandbox'\n"
    )
    suite = handrail(*RUN, "python3", "-m", "unittest", "no_such_module", cwd=tmp_path)
    assert suite.returncode
    assert "handrail" not in suite.stderr
    for script in ("exit 3", "echo denied >&2; exit 1", "cat no-such-file", "printf x > s; ./s"):
        done = handrail(*RUN, "sh", "-c", script, cwd=tmp_path)
        assert done.returncode
        assert "handrail" not in done.stderr, done


def test_success_says_nothing(tmp_path: Path) -> None:
    script = "touch /etc/handrail-no; true"
    done = handrail(*RUN, "sh", "-c", script, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1  # touch's own


def test_stdout_and_stderr_in_one_pipe_keep_their_order(tmp_path: Path) -> None:
    script = "for i in 1 2 3 4 5; do echo o$i; echo e$i >&2; done; exit 4"
    done = subprocess.run(
        [*HANDRAIL, *RUN, "sh", "-c", script],
        check=False,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=50,
    )
    expected = [f"{stream}{i}" for i in range(1, 6) for stream in "oe"]
    assert (done.returncode, done.stdout.split()) == (4, expected)


def test_reader_of_stderr_that_is_gone(tmp_path: Path) -> None:
    """The command hears of it as from its own pipe, and its exit code is passed on."""
    with subprocess.Popen(
        [*HANDRAIL, *RUN, "bash", "-c", "trap '' PIPE; while echo x >&2; do :; done; exit 7"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.read(2) == b"x\n"
        process.stderr.close()
        assert process.wait(50) == 7


@needs("git")
def test_at_a_terminal(tmp_path: Path) -> None:
    with Terminal(*HANDRAIL, *RUN, *GIT, "init", cwd=tmp_path) as user:
        user.until(b"handrail: probably refused by the sandbox: writing .git (")
        user.until(b"--writable .git")
        assert user.end() == 128


@needs("git")
def test_result_of_a_workspace(tmp_path: Path) -> None:
    with package.Workspace(tmp_path) as ws:
        refused = ws.run([*GIT, "init"])
        assert refused.refusal is not None
        assert refused.refusal.endswith("sandbox=Profile(write=('.', '.git'))")
        assert refused.refusal in str(refused)
        with pytest.raises(package.CommandFailed, match="probably refused by the sandbox"):
            refused.check()
        assert ws.run("exit 3").refusal is None
        granted = ws.run([*GIT, "init"], sandbox=package.Profile(write=(".", ".git")))
        assert granted.ok, granted


def test_a_timeout_is_explained_by_what_was_recorded(tmp_path: Path) -> None:
    connect = (
        "import socket; socket.socket().connect_ex(('192.0.2.1', 9)); print(1, flush=1); input()"
    )
    with package.Workspace(tmp_path) as ws:
        process = ws.start([sys.executable, "-c", connect])
        assert process.expect("1", timeout=50)
        process.terminate()
        result = process.result(timeout=50)
        assert result.exit is not None
        late = replace(result.exit, kind=package.ExitKind.TIMED_OUT, code=137)
        follower: Any = process._twin._follower
        printed = b"touch: cannot touch '/etc/x': Read-only file system\n"
        said = follower.explain(late, result.denials, printed)
        assert said.startswith("refused by the sandbox: connecting to 192.0.2.1:9 (")
        assert follower.explain(late, (), printed) is None


@needs("git")
async def test_answer_for_a_model(tmp_path: Path) -> None:
    async with AgentShell(str(tmp_path), policy="never") as shell:
        answer = await shell.call("exec_command", {"cmd": "git init"})
        assert "Note: probably refused by the sandbox: writing .git (" in answer.text
        assert "only the user can allow it" in answer.text
        assert "Note:" not in (await shell.call("exec_command", {"cmd": "exit 3"})).text
        # The note also comes with an end that a later call reports.
        started = await shell.call(
            "exec_command", {"cmd": "read x; git init", "tty": True, "yield_time_ms": 250}
        )
        assert started.answer is not None
        number = started.answer.process_id
        ended = await shell.call("write_stdin", {"session_id": number, "chars": "\n"})
        assert "probably refused by the sandbox: writing .git (" in ended.text
