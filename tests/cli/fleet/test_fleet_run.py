"""``handrail fleet run`` on two servers: results, exit codes, what is refused, and resuming."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.fleet.conftest import Tasks, cli
from tests.fleet.tasks.killed_runs import HANDRAIL, KilledRuns
from tests.support.eventually import eventually


def test_each_task_has_a_result(tasks: Tasks) -> None:
    """Members, environment, stdin, its own command, a time limit, a program that is missing."""
    template = tasks.folder / "template"
    template.mkdir()
    (template / "word").write_text("w")
    tasks.options = ["--image", str(template), "--timeout", "30", "--concurrency", "4"]
    code, summary, found = tasks.run(
        [
            {"id": "plain", "n": 1},
            {"id": "fails", "n": 7},
            {"id": "äö/..", "n": 2, "env": {"MORE": "x y"}},
            {"id": "stdin", "n": 3, "command": ["cat"], "stdin": "given " * 20_000},
            {"id": "shell", "command": "echo $0 1>&2; kill -9 $$"},
            {"id": "slow", "command": ["sleep", "60"], "timeout": 0.3},
            {"id": "missing", "command": ["no-such-program"]},
        ],
        *("sh", "-c", 'echo $(cat word) {n} "$MORE" "$HANDRAIL_TASK"; exit $(({n} / 7))'),
    )
    assert code == 1
    assert summary == {
        "ok": 3, "failed": 4, "lost": 0, "skipped": 0, "adopted": 0,
        "results": str(tasks.folder / "tasks.results.jsonl"),
    }  # fmt: skip
    assert found["plain"]["stdout"] == 'w 1  {"id": "plain", "n": 1}\n'
    assert found["äö/.."]["stdout"].startswith("w 2 x y {")
    assert found["fails"]["exit"] == {"kind": "exited", "code": 1, "signal": None}
    assert found["stdin"]["stdout"] == "given " * 20_000
    assert found["shell"]["exit"] == {"kind": "signaled", "code": 137, "signal": "SIGKILL"}
    assert found["slow"]["exit"]["kind"] == "timedOut"
    assert found["missing"]["exit"]["kind"] == "notStarted"
    assert "no-such-program" in found["missing"]["error"]
    members = [
        "id",
        "digest",
        "state",
        "exit",
        "stdout",
        "stderr",
        "omitted",
        "node",
        "attempts",
        "duration",
        "error",
    ]
    assert all(list(one) == members for one in found.values())
    assert len({one["node"] for one in found.values()}) == 2
    assert json.loads(cli("status", *tasks.where, "--json").stdout)["workspaces"] == 0

    code, summary, again = tasks.run(
        [{"id": "missing", "command": ["no-such-program"]}, {"id": "new"}], "true"
    )
    assert (code, summary["skipped"], summary["ok"]) == (1, 1, 1)
    assert again.keys() == {*found, "new"}


def test_failed_tasks_run_again_on_request(tasks: Tasks) -> None:
    flag = tasks.folder / "flag"
    jobs = [{"id": "a"}, {"id": "b"}]
    command = ("sh", "-c", f"[ {{id}} = a ] || [ -e {flag} ]")
    assert tasks.run(jobs, *command)[0] == 1
    flag.touch()
    tasks.options = ["--retry-lost"]
    assert tasks.run(jobs, *command)[0] == 1
    tasks.options = ["--retry-failed"]
    code, summary, found = tasks.run(jobs, *command)
    assert (code, summary["ok"], summary["skipped"]) == (0, 2, 1)
    assert {one["state"] for one in found.values()} == {"ok"}


def test_files_are_fetched_and_stay_below_their_folder(tasks: Tasks) -> None:
    tasks.options = ["--fetch", "out/**/*.txt", "--fetch", "*.log"]
    script = "mkdir -p out/deep; echo {id} > out/deep/a.txt; echo b > b.log; echo c > c.bin"
    code, _, _ = tasks.run([{"id": "../x"}, {"id": "y"}], "sh", "-c", script)
    assert code == 0
    folder = tasks.folder / "tasks.results.jsonl.files"
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == {
        "..%2Fx/out/deep/a.txt", "..%2Fx/b.log", "y/out/deep/a.txt", "y/b.log"
    }  # fmt: skip
    assert (folder / "..%2Fx/out/deep/a.txt").read_text() == "../x\n"


def test_what_is_refused_runs_nothing(tasks: Tasks) -> None:
    mark = tasks.folder / "mark"
    command = ("sh", "-c", f"echo {{id}} >> {mark}")
    twice = tasks.run([{"id": "a"}, {"id": "a", "n": 1}], *command)
    assert (twice[0], twice[1]["error"]["kind"]) == (2, "tasksRefused")
    assert tasks.run([{"id": "a"}], *command)[0] == 0
    for changed in ([{"id": "a", "n": 1}, {"id": "b"}], [{"id": "b"}, {"id": "a", "env": {}}]):
        code, said, _ = tasks.run(changed, *command)
        assert (code, said["error"]["kind"]) == (2, "tasksRefused")
        assert "task a has a result" in said["error"]["message"]
    code, said, _ = tasks.run([{"id": "a"}, {"id": "b"}], *command, "other")
    assert code == 2, "another command"
    (tasks.folder / "t").mkdir()
    tasks.options = ["--image", str(tasks.folder / "t")]
    assert tasks.run([{"id": "a"}], *command)[0] == 2, "another template"
    tasks.options = ["--image", str(tasks.folder / "nothing")]
    assert tasks.run([{"id": "a"}], *command)[0] == 125
    tasks.options = []
    tasks.where = ["--on", "ray:auto", tasks.where[1]]
    assert tasks.run([{"id": "a"}], *command)[0] == 2
    assert mark.read_text() == "a\n"


@pytest.mark.timeout(120)
def test_killed_runs_are_resumed_and_each_task_runs_once(tmp_path: Path, where: list[str]) -> None:
    """Three kills, and a line that is cut."""
    runs = KilledRuns(tmp_path, where, tasks=40, seconds=0.4)
    for more, delay in ((9, 0.05), (1, 0.2), (12, 0.0)):
        runs.kill_after(more, delay)
    with open(runs.results, "a") as file:
        file.write('{"id": "t31", "stdo')
    assert runs.times()
    code, summary = runs.finish()
    assert (code, summary["ok"]) == (0, 40), summary
    assert summary["skipped"] >= 8
    assert summary["adopted"] >= 1
    assert set(runs.times().values()) == {1}
    assert runs.states() == {"ok": 40}
    assert runs.left() == []


def test_ctrl_c_leaves_tasks_running_for_the_next_run(tasks: Tasks) -> None:
    """While one run works, another is refused."""
    ran, gate = tasks.folder / "ran", tasks.folder / "gate"
    script = f"echo {{id}} >> {ran}; while ! [ -e {gate} ]; do sleep 0.05; done; echo done"
    jobs = [{"id": "a"}, {"id": "b"}, {"id": "c"}]
    image, temporary = tasks.folder / "image", tasks.folder / "temporary"
    image.mkdir()
    temporary.mkdir()
    tasks.options = ["--concurrency", "2", "--image", str(image)]
    words = tasks.words(jobs, "sh", "-c", script)
    first = subprocess.Popen(
        [*HANDRAIL, "fleet", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    eventually(lambda: ran.exists() and len(ran.read_text().split()) == 2)
    refused = cli(*words)
    assert (refused.returncode, json.loads(refused.stdout)["error"]["kind"]) == (2, "inUse")
    os.kill(first.pid, signal.SIGINT)
    said, _ = first.communicate(timeout=30)
    assert first.returncode == 130
    assert json.loads(said.splitlines()[-1])["error"]["kind"] == "interrupted"
    assert os.listdir(temporary) == []
    held = json.loads(cli("ls", *tasks.where, "--json").stdout.splitlines()[0])
    assert held["labels"]["task"] in "ab"
    gate.touch()
    code, summary, found = tasks.run(jobs, "sh", "-c", script)
    assert (code, summary["adopted"], summary["skipped"]) == (0, 2, 0)
    assert sorted(ran.read_text().split()) == ["a", "b", "c"]
    assert {one["stdout"] for one in found.values()} == {"done\n"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_whose_reader_has_gone(tasks: Tasks, number: signal.Signals) -> None:
    ran = tasks.folder / "ran"
    words = tasks.words([{"id": "a"}], "sh", "-c", f"touch {ran}; sleep 60")
    first = subprocess.Popen([*HANDRAIL, "fleet", *words], stdout=subprocess.PIPE)
    assert first.stdout is not None
    first.stdout.close()
    try:
        eventually(ran.exists)
        first.send_signal(number)
        assert first.wait(30) > 0
    finally:
        first.kill()
        first.wait()
    assert cli("sweep", *tasks.where).returncode == 0
