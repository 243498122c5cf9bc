"""A of the fault matrix: servers and keepers that are killed, stopped, replaced or in a loop."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from tests.support.eventually import eventually
from tests.support.gates import gate
from tests.support.processes import alive, children, ended, exists, keeper_pid, nothing_left
from tests.system.survival import ECHO, LIMIT, WRITER, Followed, Rig

MIB = 1024 * 1024
SERVE = [sys.executable, "-m", "handrail", "serve"]


@contextmanager
def rigged(state: Path | None, *flags: str, faults: str = "") -> Iterator[Rig]:
    with nothing_left():
        rig = Rig(state, *flags, faults=faults)
        try:
            rig.attach()
            yield rig
        finally:
            rig.stop()


def sh(rig: Rig, name: str, script: str, **more: Any) -> None:
    """Start one whose output is no stream of ours."""
    params = {"processId": name, "argv": ["/bin/sh", "-c", script], "cwd": "file:///"}
    env = {"PATH": os.environ["PATH"]}
    rig.call("process/start", **{**params, "env": env, "tty": False, **more})


def text(rig: Rig, name: str, wanted: bytes = b"\n") -> bytes:
    """All it has said, once that is in it."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        answer = rig.call("process/read", processId=name)
        said = b"".join(base64.b64decode(chunk["chunk"]) for chunk in answer["chunks"])
        if wanted in said:
            return said
        rig.call("process/read", processId=name, afterSeq=answer["nextSeq"] - 1, waitMs=1000)
    raise AssertionError(f"{name} did not say {wanted!r}")


def listed(rig: Rig) -> dict[str, dict[str, Any]]:
    return {one["processId"]: one for one in rig.call("process/list")["processes"]}


def hangs(url: str) -> bool:
    """Whether the server takes no request for a second."""
    try:
        urllib.request.urlopen(url.replace("ws://", "http://") + "/readyz", timeout=1).close()
    except TimeoutError:
        return True
    return False


def keeper_of(rig: Rig) -> int:
    assert rig.server is not None
    return keeper_pid(rig.server.pid)


def flooding(rig: Rig, size: int, *, tty: bool = False) -> Followed:
    one = Followed("flood", size, 33)
    argv = (sys.executable, "-I", "-S", "-c", WRITER, "5", str(size), "33")
    rig.start(one, *argv, tty=tty)
    return one


def to_the_end(rig: Rig, one: Followed) -> None:
    while not one.closed:
        rig.receive()
    one.verdict()


def second(state: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Another server on the same directory, which is expected to give up."""
    argv = [*SERVE, "--state-dir", str(state), *flags]
    return subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT, check=False)


# --- the server is killed ------------------------------------------------------------------------


def test_a1_twenty_idle_children_are_found_again(tmp_path: Path) -> None:
    with rigged(tmp_path / "state") as rig:
        for n in range(20):
            sh(rig, f"p{n}", f"echo {n}; exec cat", tty=n % 2 == 0, pipeStdin=True)
        said = {f"p{n}": text(rig, f"p{n}") for n in range(20)}
        before = listed(rig)
        rig.restart()
        after = listed(rig)
        assert after == before
        assert {name: text(rig, name) for name in said} == said
        for name in said:  # and they are as alive as before
            assert rig.call("process/write", **rig.write(name, "1", b"again\n")) == {
                "status": "accepted"
            }
            assert b"again" in text(rig, name, b"again")


def test_a4_an_exit_while_no_server_runs(tmp_path: Path) -> None:
    with gate(tmp_path / "gate") as held, rigged(tmp_path / "state") as rig:
        sh(rig, "p", f"echo $$; read x < {held.path}; echo last words; exit 7")
        pid = int(text(rig, "p"))
        rig.kill()
        rig._rest()
        held.open()
        assert ended(pid)
        rig.start_server()
        rig.attach()
        assert b"last words" in text(rig, "p", b"words")
        info = listed(rig)["p"]
        assert (info["state"], info["exit"]["code"]) == ("closed", 7)


def test_that_it_was_killed_costs_nothing_and_is_known_to_the_next_server(tmp_path: Path) -> None:
    with rigged(tmp_path / "state") as rig:
        keeper = keeper_of(rig)
        for n in range(20):
            sh(rig, f"p{n}", "exec sleep 600")
        held = len(os.listdir(f"/proc/{keeper}/fd"))
        for n in range(20):
            rig.call("process/terminate", processId=f"p{n}")
        for n in range(20):
            while not rig.call("process/read", processId=f"p{n}", waitMs=5000)["closed"]:
                pass
        deadline = time.monotonic() + LIMIT  # streams that have ended are told together
        while len(os.listdir(f"/proc/{keeper}/fd")) > held - 40:
            assert time.monotonic() < deadline
        sh(rig, "by itself", "exit 3")
        while not rig.call("process/read", processId="by itself", waitMs=5000)["closed"]:
            pass
        rig.call("process/terminate", processId="by itself", tree=True)  # too late to matter
        rig.restart()
        ends = {name: one["exit"]["kind"] for name, one in listed(rig).items()}
        assert ends.pop("by itself") == "exited"
        assert set(ends.values()) == {"terminated"}


@pytest.mark.parametrize("when", ["before the crash", "after it", "after the keeper's"])
def test_how_long_a_silent_process_ran_is_known_to_the_next_server(
    tmp_path: Path, when: str
) -> None:
    with gate(tmp_path / "gate") as held, rigged(tmp_path / "state") as rig:
        asked = time.monotonic()
        sh(rig, "p", f"read x < {held.path}; exit 7")
        pid = listed(rig)["p"]["pid"]
        if when == "after the keeper's":
            os.kill(keeper_of(rig), signal.SIGKILL)
            listed(rig)  # answered when the next keeper knows its children
        if when == "after it":
            rig.kill()
            rig._rest()
        held.open()
        assert ended(pid)
        if when == "after it":
            eventually(lambda: not exists(pid))  # the keeper looked at the clock before
        else:
            rig.call("process/read", processId="p", waitMs=5000)
        seen = time.monotonic()
        if when != "after it":
            rig.kill()
            rig._rest()
        rig.start_server()
        rig.attach()
        while not (page := rig.call("process/read", processId="p", waitMs=5000))["closed"]:
            pass
        if page["exit"]["kind"] != "lost":
            assert page["exitCode"] == 7
            assert page["usage"]["wallMs"] <= (seen - asked) * 1000 + 1


@pytest.mark.parametrize("how", ["timeout", "terminate"])
def test_an_end_that_was_under_way_is_carried_through(tmp_path: Path, how: str) -> None:
    """The server dies between the TERM, which the process ignores, and the KILL."""
    with rigged(tmp_path / "state") as rig:
        script = "trap 'echo asked' TERM; echo $$; while :; do sleep 0.05; done"
        sh(rig, "p", script, **({"timeoutMs": 1000} if how == "timeout" else {}))
        pid = int(text(rig, "p").split()[0])
        if how == "terminate":
            rig.call("process/terminate", processId="p", graceMs=3000)
        text(rig, "p", b"asked")
        rig.restart()
        assert ended(pid)
        while (info := listed(rig)["p"])["exit"] is None:
            assert rig.call("process/read", processId="p", afterSeq=0, waitMs=20)
        kind = "timedOut" if how == "timeout" else "terminated"
        assert (info["exit"]["kind"], info["exit"]["code"]) == (kind, 137)


def test_numbers_ids_and_secrets_go_on(tmp_path: Path) -> None:
    """What is terminated stays so, a used id stays used, and the list of events is one list."""
    with rigged(tmp_path / "state") as rig:
        sh(rig, "killed", "echo $$; exec sleep 600")
        sh(rig, "silent", "exec sleep 600", pipeStdin=True)
        pid = int(text(rig, "killed"))
        rig.call("process/terminate", processId="killed")
        assert ended(pid)
        rig.restart()
        text(rig, "killed")
        answer = rig.call("process/read", processId="killed", waitMs=20_000, afterSeq=1)
        assert answer["exit"]["kind"] == "terminated"
        silent = rig.call("process/read", processId="silent")
        assert (silent["nextSeq"], silent["exited"]) == (1, False)
        rig.call("process/closeStdin", processId="silent")
        refused = rig.try_call("process/write", **rig.write("silent", "1", b"x"))
        assert refused["result"] == {"status": "stdinClosed"}
        rig.restart()
        refused = rig.try_call("process/write", **rig.write("silent", "2", b"x"))
        assert refused["result"] == {"status": "stdinClosed"}


def test_an_end_of_input_that_waits_behind_it_survives(tmp_path: Path) -> None:
    """The child reads nothing until the second server is there; then all, and the end."""
    data = b"x" * 300_000
    with gate(tmp_path / "gate") as held, rigged(tmp_path / "state") as rig:
        sh(rig, "p", f"read x < {held.path}; wc -c", pipeStdin=True)
        rig.call("process/write", **rig.write("p", "1", data))
        rig.call("process/closeStdin", processId="p")
        rig.restart()
        held.open()
        assert int(text(rig, "p")) == len(data)


def test_a_detached_session_does_not_begin_its_time_anew(tmp_path: Path) -> None:
    with rigged(tmp_path / "state", "--detach-ttl", "1") as rig:
        sh(rig, "p", "echo $$; exec sleep 600")
        pid = int(text(rig, "p"))
        rig.kill()
        lost = time.monotonic()
        rig._rest()
        while time.monotonic() < lost + 1.1:
            time.sleep(0.05)
        rig.start_server()
        with pytest.raises(AssertionError, match="unknown session id"):
            rig.attach()
        assert ended(pid)


def test_a_session_that_ended_does_not_come_back(tmp_path: Path) -> None:
    with rigged(tmp_path / "state") as rig:
        sh(rig, "p", "echo $$; exec sleep 600")
        pid = int(text(rig, "p"))
        rig.call("session/close")
        rig.kill()
        rig._rest()
        rig.start_server()
        with pytest.raises(AssertionError, match="unknown session id"):
            rig.attach()
        assert ended(pid)


def test_without_a_name_the_next_server_finds_what_a_crash_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with rigged(None) as rig:
        other = Rig(None)
        try:
            other.attach()
            for each in (rig, other):
                sh(each, "p", "echo $$; exec sleep 600")
            pid = int(text(rig, "p"))
            rig.restart()  # while the other one runs: they do not meet
            assert listed(rig)["p"]["pid"] == pid
            assert listed(other)["p"]["state"] == "running"
        finally:
            other.stop()


def test_on_stdio_everything_ends_with_the_server(tmp_path: Path) -> None:
    """Whoever started it has nobody to go on with."""
    with nothing_left():
        argv = [*SERVE, "--listen", "stdio"]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            start = {
                "processId": "p",
                "argv": ["/bin/sh", "-c", "trap '' HUP TERM; sleep 600 & wait"],
                "cwd": "file:///",
                "env": {"PATH": os.environ["PATH"]},
                "tty": False,
            }
            for number, (method, params) in enumerate(
                [
                    ("initialize", {"clientName": "t"}),
                    ("process/start", start),
                    ("process/list", {}),
                ]
            ):
                line = {"id": number, "method": method, "params": params}
                server.stdin.write(json.dumps(line).encode() + b"\n")
                if number == 0:
                    server.stdin.write(b'{"method":"initialized"}\n')
                server.stdin.flush()
                answer = json.loads(server.stdout.readline())
            pid = answer["result"]["processes"][0]["pid"]
            keeper = keeper_pid(server.pid)
            server.kill()
            assert ended(pid)
            assert ended(keeper)


# --- SIGTERM -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["keep", "end"])
def test_a5_sigterm_drains(tmp_path: Path, mode: str) -> None:
    with rigged(tmp_path / "state", "--on-stop", mode) as rig:
        sh(rig, "p", "trap 'echo cleaned up; exit 0' TERM; echo $$; while :; do sleep 0.01; done")
        pid = int(text(rig, "p"))
        assert rig.server is not None
        keeper = keeper_of(rig)
        rig.server.send_signal(signal.SIGTERM)
        assert rig.server.wait(LIMIT) == 0
        rig._rest()
        assert alive(pid) == (mode == "keep")
        if mode == "keep":
            rig.start_server()
            rig.attach()
            assert listed(rig)["p"]["state"] == "running"
            rig.call("session/close")
            rig.stop()
            os.kill(keeper, signal.SIGTERM)
            assert ended(keeper)


# --- a second server -----------------------------------------------------------------------------


def test_a_healthy_server_is_left_alone(tmp_path: Path) -> None:
    with rigged(tmp_path / "state") as rig:
        one = flooding(rig, 20 * MIB)
        refused = second(tmp_path / "state")
        assert refused.returncode == 1
        assert "is in use by another server" in refused.stderr
        assert f"process {rig.server.pid}" in refused.stderr  # type: ignore[union-attr]
        to_the_end(rig, one)


def test_a7_a_stopped_server_is_fenced(tmp_path: Path) -> None:
    with rigged(tmp_path / "state") as rig:
        one = flooding(rig, 20 * MIB)
        old = rig.server
        assert old is not None
        old.send_signal(signal.SIGSTOP)
        rig.start_server()
        assert old.wait(LIMIT) == -signal.SIGKILL
        rig._rest()
        rig.attach()
        to_the_end(rig, one)


def test_a_server_that_hangs_is_fenced(tmp_path: Path) -> None:
    """Not stopped, but its loop stands still."""
    with rigged(tmp_path / "state", faults="output.numbered:delay=600@2") as rig:
        one = flooding(rig, 2 * MIB)
        eventually(lambda: hangs(rig.url))  # until then it would keep its lease
        old = rig.server
        assert old is not None
        rig.start_server()
        assert old.wait(LIMIT) == -signal.SIGKILL
        rig._rest()
        rig.attach()
        to_the_end(rig, one)


# --- upgrade -------------------------------------------------------------------------------------


def upgrade(rig: Rig) -> int:
    """Ask for it, wait for the end of the line, and come back; the pid of the new server."""
    argv = [sys.executable, "-m", "handrail", "upgrade", "--state-dir", str(rig.state)]
    asked = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            rig.receive()
    frame = closed.value.rcvd
    assert frame is not None
    assert frame.code == 1012
    assert "resume" in frame.reason
    rig.attach()  # by the same address
    said, _ = asked.communicate(timeout=LIMIT)
    assert asked.returncode == 0
    return int(said.split()[-1])


@pytest.mark.parametrize("tty", [False, True], ids=["pipe", "terminal"])
def test_a6_upgrades_under_flood(tmp_path: Path, tty: bool) -> None:
    with rigged(tmp_path / "state") as rig:
        echo = Followed("echo", 5, 9)
        rig.start(echo, sys.executable, "-I", "-S", "-c", ECHO, "5", pipeStdin=True)
        one = flooding(rig, 4096 * MIB, tty=tty)
        keeper, pids = keeper_of(rig), {p["pid"] for p in listed(rig).values()}
        new = 0
        for _ in range(2):
            for _ in range(10):
                rig.receive()
            new = upgrade(rig)
        assert rig.server is not None
        assert rig.server.wait(LIMIT) == 0
        assert all(map(alive, pids))
        # The keeper is another program in the same process.
        assert b"--state" in Path(f"/proc/{keeper}/cmdline").read_bytes()
        rig.call("process/write", **rig.write("echo", "1", b"0000000\n"[:5]))
        to_the_end(rig, echo)
        seen = one.at
        while one.at < seen + 2 * MIB:  # by content: nothing was missing in between
            rig.receive()
        rig.call("process/terminate", processId="flood")
        while not one.closed:
            rig.receive()
        os.kill(new, signal.SIGTERM)
        assert ended(new)


def test_an_upgrade_to_something_broken_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where the new program looks for its modules first.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with rigged(tmp_path / "state") as rig:
        one = flooding(rig, 20 * MIB)
        assert rig.server is not None
        keeper = keeper_of(rig)
        (tmp_path / "handrail.py").write_text("raise SystemExit(3)")
        os.kill(rig.server.pid, signal.SIGUSR2)
        os.kill(rig.server.pid, signal.SIGUSR2)  # twice in one breath: one at a time
        to_the_end(rig, one)
        deadline = time.monotonic() + LIMIT
        while children(rig.server.pid) != {keeper} and time.monotonic() < deadline:
            rig.call("environment/status")
        assert children(rig.server.pid) == {keeper}
        (tmp_path / "handrail.py").unlink()
        os.kill(upgrade(rig), signal.SIGTERM)  # the next one is no worse for it


def test_an_upgrade_takes_nothing_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "lib")
    with rigged(tmp_path / "state") as rig:
        for name in ("handrail", "contextlib", "warnings", "encodings"):
            text = f"open({str(tmp_path / 'mark')!r}, 'w')\nraise SystemExit(3)\n"
            for place in (tmp_path, tmp_path / "lib"):
                (place / f"{name}.py").write_text(text)
        monkeypatch.chdir("/")  # for the command that asks; the server is where it was
        monkeypatch.delenv("PYTHONPATH")
        new = upgrade(rig)
        assert not (tmp_path / "mark").exists()
        os.kill(new, signal.SIGTERM)


def failed_upgrade(rig: Rig, *, then: int = 0) -> str:
    """Ask for it in vain; what is said."""
    argv = [sys.executable, "-m", "handrail", "upgrade", "--state-dir", str(rig.state)]
    asked = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    if then:
        assert rig.server is not None
        pending = f"/proc/{rig.server.pid}/status"
        while not _pends(pending, signal.SIGUSR2):  # it was asked
            assert asked.poll() is None
        os.kill(rig.server.pid, then)
    _, said = asked.communicate(timeout=LIMIT)
    assert asked.returncode == 1
    return said


def _pends(status: str, number: int) -> bool:
    (line,) = [one for one in Path(status).read_text().splitlines() if "ShdPnd" in one]
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


def test_whoever_asks_for_an_upgrade_is_told_why_nothing_came_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with rigged(tmp_path / "state") as rig:
        (tmp_path / "handrail").mkdir()
        (tmp_path / "handrail" / "__init__.py").write_text("")
        (tmp_path / "handrail" / "__main__.py").write_text("raise SystemExit(3)")
        monkeypatch.delenv("PYTHONPATH")
        assert "keeps running: the new server did not get ready" in failed_upgrade(rig)
        assert rig.call("environment/status") == {"status": "ready"}


def test_an_upgrade_whose_server_dies_meanwhile_is_over_at_once(tmp_path: Path) -> None:
    with rigged(tmp_path / "state") as rig:
        sh(rig, "p", "echo $$; exec sleep 600")
        pid = int(text(rig, "p"))
        assert rig.server is not None
        os.kill(rig.server.pid, signal.SIGSTOP)
        said = failed_upgrade(rig, then=signal.SIGKILL)
        assert f"server {rig.server.pid} ended before it had handed over" in said
        assert f"handrail serve --state-dir {rig.state}" in said
        rig.server.wait(LIMIT)
        assert alive(pid)
        rig.start_server()
        rig.attach()
        assert listed(rig)["p"]["state"] == "running"


# --- the keeper is killed ------------------------------------------------------------------------


def test_a8_output_goes_on_without_the_keeper(tmp_path: Path) -> None:
    with gate(tmp_path / "gate") as held, rigged(tmp_path / "state") as rig:
        one = flooding(rig, 20 * MIB)
        sh(rig, "later", f"echo $$; read x < {held.path}; echo done; exit 5")
        sh(rig, "kill", "echo $$; exec sleep 600")
        pid = int(text(rig, "kill"))
        text(rig, "later")
        before = keeper_of(rig)
        os.kill(before, signal.SIGKILL)
        assert ended(before)
        to_the_end_or_lost(rig, one)
        # A new keeper starts new children; the old ones are reached all the same.
        sh(rig, "new", "exit 4")
        while (answer := rig.call("process/read", processId="new", waitMs=1000, afterSeq=0))[
            "exited"
        ] is False:
            pass
        assert answer["exitCode"] == 4
        assert rig.call("process/terminate", processId="kill") == {"running": True}
        assert ended(pid)
        # And a crash of the server after that loses nothing either.
        rig.restart()
        held.open()
        assert text(rig, "later", b"done")
        while not (answer := rig.call("process/read", processId="later", waitMs=1000))["exited"]:
            pass
        assert answer["exit"]["kind"] in ("exited", "lost")
        assert answer["exitCode"] in (5, None)


def to_the_end_or_lost(rig: Rig, one: Followed) -> None:
    while not one.closed:
        rig.receive()
    assert one.at == one.size
    assert one.exit_code in (one.code, -1)  # known, or not; never another


def test_a_keeper_that_dies_again_and_again_is_given_up(tmp_path: Path) -> None:
    with rigged(tmp_path / "state") as rig:
        assert rig.server is not None
        server = rig.server
        dead: set[int] = set()
        while server.poll() is None:
            for pid in set(children(server.pid)) - dead:
                try:
                    if b"keeper" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        os.kill(pid, signal.SIGKILL)
                        dead.add(pid)
                except OSError:
                    pass
        assert server.wait(LIMIT) == 1
        assert len(dead) == 4


def test_a9_server_and_keeper_killed_together(tmp_path: Path) -> None:
    """Nobody has the descriptors any more; the next server ends what is left."""
    with rigged(tmp_path / "state") as rig:
        sh(rig, "p", "trap '' HUP PIPE; setsid sleep 600 & echo $! $$; exec sleep 600")
        pids = [int(word) for word in text(rig, "p").split()]
        keeper = keeper_of(rig)
        os.kill(keeper, signal.SIGSTOP)
        rig.kill()
        os.kill(keeper, signal.SIGKILL)
        assert ended(keeper)
        rig._rest()
        assert all(map(alive, pids))
        rig.start_server()
        assert all(map(ended, pids))
        rig.session = None
        rig.attach()
        assert listed(rig) == {}


# --- a server that cannot start ------------------------------------------------------------------


@pytest.mark.parametrize("why", ["address in use", "too few descriptors"])
def test_a_server_that_cannot_start_leaves_everything_to_the_next(tmp_path: Path, why: str) -> None:
    state = tmp_path / "state"
    with rigged(state) as rig, socket.create_server(("127.0.0.1", 0)) as taken:
        for n in range(40):
            sh(rig, f"p{n}", "echo $$; exec cat", pipeStdin=True)
        pid = int(text(rig, "p0"))
        text(rig, "p39")
        rig.kill()
        rig._rest()
        if why == "address in use":
            refused = second(state, "--listen", f"ws://127.0.0.1:{taken.getsockname()[1]}")
        else:
            argv = ["/bin/sh", "-c", 'ulimit -n 100; exec "$@"', "sh", *SERVE]
            refused = subprocess.run(
                [*argv, "--state-dir", str(state)],
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=False,
            )
        assert refused.returncode == 1
        assert ("cannot listen" if why == "address in use" else "ulimit -n") in refused.stderr
        assert alive(pid)
        rig.start_server()
        rig.attach()
        assert len(listed(rig)) == 40
        assert rig.call("process/write", **rig.write("p0", "1", b"still here\n"))
        text(rig, "p0", b"still here")


# --- what is left lying about --------------------------------------------------------------------


def test_a10_what_dead_servers_leave_is_no_obstacle(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "lock").write_text("12345")
    (state / "marks").write_text("99\nnonsense\n")
    (state / "starts").write_text("1.0\n2.0\n3.0\n4.0\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stale:
        stale.bind(str(state / "keeper.sock"))
    with rigged(state) as rig:
        sh(rig, "p", "echo alive")
        assert text(rig, "p") == b"alive\n"


def test_a11_a_server_that_crashes_at_its_start_is_not_started_for_ever(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with rigged(state) as rig:
        sh(rig, "p", "echo $$; exec sleep 600")
        pid = int(text(rig, "p"))
        rig.kill()
        rig._rest()
        argv = [*SERVE, "--state-dir", str(state)]
        broken = {**os.environ, "HANDRAIL_FAULTS": "server.start:crash"}
        for _ in range(3):
            crashed = subprocess.run(argv, env=broken, timeout=LIMIT, check=False)
            assert crashed.returncode == -signal.SIGKILL
        refused = second(state)
        assert refused.returncode == 1
        assert "has crashed 3 times" in refused.stderr
        assert alive(pid)
        (state / "starts").unlink()
        rig.start_server()
        rig.attach()
        assert listed(rig)["p"]["pid"] == pid
