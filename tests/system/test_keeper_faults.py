"""What a client sees when the keeper is stopped, dies, or was somebody else's before."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from handrail.server.recovery.restart_keeper import BUDGET
from tests.support.processes import keeper_pid
from tests.system.users import ordinary

pytestmark = pytest.mark.system

LIMIT = 20.0


@contextmanager
def serving(state: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    argv = [sys.executable, "-m", "handrail", "serve", "--state-dir", str(state), *flags]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server, server.stdout.readline().strip()
        finally:
            if server.poll() is None:
                server.send_signal(signal.SIGTERM)
            server.wait(LIMIT)


class Client:
    def __init__(self, ws: ClientConnection, session: str | None = None) -> None:
        self.ws = ws
        self.ids = 0
        self.notes: list[dict[str, Any]] = []
        params = {"clientName": "test", "resumeSecret": None, "resumeSessionId": session}
        answer = self.call("initialize", **params)
        self.session: str = answer["sessionId"]
        ws.send('{"method":"initialized"}')

    def try_call(self, method: str, **params: Any) -> Any:
        self.ids += 1
        self.ws.send(json.dumps({"id": self.ids, "method": method, "params": params}))
        while (message := json.loads(self.ws.recv(timeout=LIMIT))).get("id") != self.ids:
            self.notes.append(message)
        return message

    def call(self, method: str, **params: Any) -> Any:
        message = self.try_call(method, **params)
        assert "error" not in message, message
        return message["result"]

    def start(self, name: str, *argv: str, **more: Any) -> None:
        env = {"PATH": os.environ["PATH"]}
        more = {"cwd": "file:///", "env": env, "tty": False, **more}
        self.call("process/start", processId=name, argv=list(argv), **more)

    def until(self, method: str) -> dict[str, Any]:
        while True:
            for note in self.notes:
                if note.get("method") == method:
                    return note["params"]
            self.notes.append(json.loads(self.ws.recv(timeout=LIMIT)))

    def said(self) -> int:
        return int(base64.b64decode(self.until("process/output")["chunk"]))


def keeper_of(server: subprocess.Popen[str]) -> int:
    return keeper_pid(server.pid)


def is_gone(pid: int) -> bool:
    """Ends, or has ended and waits for its parent."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        import select

        return bool(select.select([fd], [], [], LIMIT)[0])
    finally:
        os.close(fd)


def test_a_found_keeper_has_room_for_new_children(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with (
        serving(state, "--on-stop", "keep") as (server, url),
        connect(url, proxy=None, ping_interval=None) as ws,
    ):
        client = Client(ws)
        client.start("old", "sh", "-c", "echo $$; exec sleep 600")
        old = client.said()
        server.send_signal(signal.SIGTERM)
        assert server.wait(LIMIT) == 0
    assert Path(f"/proc/{old}").exists()
    with serving(state) as (_, url), connect(url, proxy=None, ping_interval=None) as ws:
        client = Client(ws)
        client.start("new", "true")
        assert client.until("process/exited")["exitCode"] == 0
    assert is_gone(old)  # this server stopped with its default, which ends everything


def test_output_goes_on_and_exits_are_known_or_lost_without_a_keeper(
    tmp_path: Path,
) -> None:
    with (
        serving(tmp_path / "state") as (server, url),
        connect(url, proxy=None, ping_interval=None) as ws,
    ):
        client = Client(ws)
        client.start("p", "sh", "-c", "echo $$; read line; echo 7; exit 5", pipeStdin=True)
        pid = client.said()
        client.notes.clear()
        os.kill(keeper_of(server), signal.SIGKILL)
        line = base64.b64encode(b"go on\n").decode()
        client.call("process/write", processId="p", chunk=line, writeId="1")
        assert client.said() == 7
        exited = client.until("process/exited")
        # A kernel since 6.15 tells the status to whoever holds the descriptor of the process.
        assert (exited["exitCode"], exited["exit"]["kind"]) in ((5, "exited"), (-1, "lost"))
        client.notes.clear()
        client.start("q", "sh", "-c", "exit 4")  # by the next keeper
        assert client.until("process/exited")["exitCode"] == 4
    assert is_gone(pid)


#: Tells its pid and those of two daemons, then waits or leaves.
FAMILY = """
import os, signal, sys
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.write(1, b"%d " % os.getpid())
        os.closerange(0, 3)
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os.wait()
for _ in range(2):
    daemon()
if sys.argv[1] == "leave":
    os._exit(3)
os.write(1, b"%d " % os.getpid())
signal.pause()
"""


def family(client: Client, name: str, then: str) -> list[int]:
    client.start(name, sys.executable, "-c", FAMILY, then)
    said, seq, want = b"", 0, 2 if then == "leave" else 3
    while said.count(b" ") < want:
        page = client.call("process/read", processId=name, afterSeq=seq, waitMs=5000)
        for chunk in page["chunks"]:
            seq = chunk["seq"]
            said += base64.b64decode(chunk["chunk"])
    return [int(pid) for pid in said.split()]


def next_keeper(client: Client, server: subprocess.Popen[str]) -> None:
    """Kill the keeper; the new one is at work when this returns."""
    os.kill(keeper_of(server), signal.SIGKILL)
    deadline = time.monotonic() + LIMIT
    while True:
        try:
            client.start(f"next {time.monotonic()}", "true")
            client.call("process/list")  # answered when it knows the children of the one before
            return
        except AssertionError:
            assert time.monotonic() < deadline


def listed(client: Client, name: str) -> dict[str, Any]:
    rows = client.call("process/list")["processes"]
    (row,) = [row for row in rows if row["processId"] == name]
    return row


@pytest.mark.parametrize("then", ["stay", "leave"])
@pytest.mark.parametrize("how", ["terminate", "grace", "close", "stop"])
def test_families_of_a_killed_keeper_are_ended_like_any_others(
    tmp_path: Path, then: str, how: str
) -> None:
    with (
        serving(tmp_path / "state") as (server, url),
        connect(url, proxy=None, ping_interval=None) as ws,
    ):
        client = Client(ws)
        pids = family(client, "p", then)
        others = family(client, "q", "stay")
        next_keeper(client, server)
        assert listed(client, "p")["orphans"] == 2
        if how == "stop":
            server.send_signal(signal.SIGTERM)
            server.wait(LIMIT)
        elif how == "close":
            client.call("session/close")
        else:
            more = {"graceMs": 5000} if how == "grace" else {}
            client.call("process/terminate", processId="p", tree=True, **more)
        assert all(is_gone(pid) for pid in pids)
        if how in ("terminate", "grace"):
            assert listed(client, "p")["orphans"] == 0
            assert all(Path(f"/proc/{pid}").exists() for pid in others)
    assert all(is_gone(pid) for pid in others)


def test_a_signal_to_the_tree_reaches_a_leader_without_its_keeper(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "state") as (server, url),
        connect(url, proxy=None, ping_interval=None) as ws,
    ):
        client = Client(ws)
        pids = family(client, "p", "stay")
        next_keeper(client, server)
        client.call("process/signal", processId="p", signal="term", tree=True)
        assert all(is_gone(pid) for pid in pids)


def test_terminate_while_there_is_no_keeper(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "state") as (server, url),
        connect(url, proxy=None, ping_interval=None) as ws,
    ):
        client = Client(ws)
        pids = family(client, "p", "stay")
        os.kill(keeper_of(server), signal.SIGKILL)
        # Without waiting for the next keeper: whoever of the two is asked, it works.
        assert client.call("process/terminate", processId="p")["running"]
        assert all(is_gone(pid) for pid in pids)


def test_the_next_server_reaches_the_families_of_a_killed_keeper(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with serving(state) as (server, url), connect(url, proxy=None, ping_interval=None) as ws:
        client = Client(ws)
        pids = family(client, "p", "leave") + family(client, "q", "stay")
        next_keeper(client, server)
        session = client.session
        server.kill()
        server.wait(LIMIT)
    with serving(state) as (_, url), connect(url, proxy=None, ping_interval=None) as ws:
        client = Client(ws, session)
        assert listed(client, "p")["orphans"] == listed(client, "q")["orphans"] == 2
        for name in "pq":
            client.call("process/terminate", processId=name, tree=True)
        assert all(is_gone(pid) for pid in pids)


def test_a_keeper_that_dies_again_and_again_is_not_started_for_ever(tmp_path: Path) -> None:
    log = tmp_path / "log"
    flags = ("--state-dir", str(tmp_path / "state"))
    with log.open("w") as errors:
        argv = [sys.executable, "-m", "handrail", "serve", *flags]
        server = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert server.stdout is not None
        with connect(server.stdout.readline().strip(), proxy=None) as ws:
            client = Client(ws)
            pids = family(client, "p", "stay")
            for _ in range(BUDGET):
                next_keeper(client, server)
                assert listed(client, "p")["state"] == "running"
            os.kill(keeper_of(server), signal.SIGKILL)
            exited = client.until("process/exited")
            while exited["processId"] != "p":  # those that showed that a keeper was at work
                client.notes.remove({"method": "process/exited", "params": exited})
                exited = client.until("process/exited")
            assert exited["exit"]["kind"] == "lost"
        assert server.wait(LIMIT) == 1
    finally:
        server.kill()
        server.wait()
        server.stdout.close()  # type: ignore[union-attr]
    assert all(is_gone(pid) for pid in pids)
    assert f"the keeper has died {BUDGET + 1} times in 60 s; the server stops" in log.read_text()


def test_a_keeper_that_does_not_answer_cannot_hold_up_the_end(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as (server, _url):
        keeper = keeper_of(server)
        os.kill(keeper, signal.SIGSTOP)
        try:
            server.send_signal(signal.SIGTERM)
            assert server.wait(LIMIT) == 1
        finally:
            os.kill(keeper, signal.SIGKILL)
    assert is_gone(keeper)


def test_a_session_that_ends_while_its_keeper_dies_leaves_nobody(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "state") as (server, url),
        connect(url, proxy=None, ping_interval=None) as ws,
    ):
        client = Client(ws)
        pids = family(client, "p", "stay") + family(client, "q", "leave")
        os.kill(keeper_of(server), signal.SIGKILL)
        client.call("session/close")
        assert all(is_gone(pid) for pid in pids)


def test_a_stop_that_keeps_waits_for_the_next_keeper(tmp_path: Path) -> None:
    """Else nobody would have what the server lets go of."""
    state = tmp_path / "state"
    with (
        serving(state, "--on-stop", "keep") as (server, url),
        connect(url, proxy=None, ping_interval=None) as ws,
    ):
        client = Client(ws)
        client.start("p", "sh", "-c", "echo $$; read line; exit 3", pipeStdin=True)
        pid, session = client.said(), client.session
        os.kill(keeper_of(server), signal.SIGKILL)
        server.send_signal(signal.SIGTERM)
        assert server.wait(LIMIT) == 0
    assert Path(f"/proc/{pid}").exists()
    with serving(state) as (_, url), connect(url, proxy=None, ping_interval=None) as ws:
        client = Client(ws, session)
        line = base64.b64encode(b"go on\n").decode()
        client.call("process/write", processId="p", chunk=line, writeId="1")
        exited = client.until("process/exited")
        assert (exited["exitCode"], exited["exit"]["kind"]) in ((3, "exited"), (-1, "lost"))


def test_a_server_that_gets_no_keeper_says_so_and_stops(tmp_path: Path) -> None:
    state, log = tmp_path / "state", tmp_path / "log"
    argv = [sys.executable, "-m", "handrail", "serve", "--state-dir", str(state)]
    with (
        open(log, "w") as errors,
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, text=True) as server,
    ):
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        with connect(url, proxy=None, ping_interval=None) as ws:
            client = Client(ws)
            client.start("p", "sh", "-c", "echo $$; exec sleep 600")
            pid = client.said()
            keeper = keeper_of(server)
            shutil.rmtree(state)
            os.kill(keeper, signal.SIGKILL)
            assert server.wait(LIMIT) == 1
    assert "no new keeper can be started" in log.read_text()
    assert is_gone(pid)


def test_the_last_descriptors_are_for_those_who_come_back(tmp_path: Path) -> None:
    """At the limit, the next server has room for the client that wants to resume."""
    state = tmp_path / "state"
    limited = ["prlimit", "--nofile=128:128", sys.executable, "-m", "handrail", "serve"]
    argv = [*limited, "--state-dir", str(state)]
    session, count = None, 0
    for last in (False, True):
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                url = server.stdout.readline().strip()
                with connect(url, proxy=None, ping_interval=None) as ws:
                    client = Client(ws, session)
                    session = client.session
                    while not last:
                        name = f"p{count}"
                        params = {"argv": ["sh", "-c", "echo; read x"], "cwd": "file:///"}
                        answer = client.try_call(
                            "process/start",
                            processId=name,
                            **params,
                            env={"PATH": os.environ["PATH"]},
                            tty=False,
                            pipeStdin=True,
                        )
                        if "error" in answer:
                            assert "Too many open files" in answer["error"]["message"]
                            break
                        count += 1
                    rows = client.call("process/list")["processes"]
                    assert len(rows) == count > 5
                    assert all(row["state"] == "running" for row in rows)
            finally:
                server.send_signal(signal.SIGTERM if last else signal.SIGKILL)
                server.wait(LIMIT)


@pytest.mark.fault
@pytest.mark.parametrize("user", ["root", "ordinary"])
def test_a_stopped_keeper_is_named_and_waited_for(tmp_path: Path, user: str) -> None:
    if user == "root" and os.getuid() != 0:
        pytest.skip("only root can try what root can do")
    home = tmp_path / "home"
    prefix = ordinary(home) if user == "ordinary" else ()
    home.mkdir(exist_ok=True)
    argv = [*prefix, sys.executable, "-m", "handrail", "serve", "--state-dir", str(home / "state")]
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(argv, **piped) as server:  # type: ignore[call-overload]
        with connect(server.stdout.readline().strip(), proxy=None, ping_interval=None) as ws:
            client = Client(ws)
            client.start("p", "sh", "-c", "echo $$; exec sleep 600")
            pid, keeper = client.said(), keeper_of(server)
            os.kill(keeper, signal.SIGSTOP)
            refused = subprocess.run(
                argv, capture_output=True, text=True, timeout=LIMIT, check=False
            )
            assert f"`kill -CONT {keeper}`" in refused.stderr
            server.kill()
    with subprocess.Popen(argv, **piped) as server:  # type: ignore[call-overload]
        try:
            said = server.stderr.readline()
            assert f"the keeper, process {keeper}, does not answer: it is stopped" in said
            assert f"`kill -CONT {keeper}`" in said
            os.kill(keeper, signal.SIGCONT)
            with connect(server.stdout.readline().strip(), proxy=None, ping_interval=None) as ws:
                assert listed(Client(ws, client.session), "p")["state"] == "running"
        finally:
            os.kill(keeper, signal.SIGCONT)
            server.send_signal(signal.SIGTERM)
            server.wait(LIMIT)
    assert is_gone(pid)
    assert is_gone(keeper)


@pytest.mark.fault
def test_a_server_that_waits_for_a_stopped_keeper_can_be_stopped(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "handrail", "serve", "--state-dir", str(tmp_path / "state")]
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(argv, **piped) as server:  # type: ignore[call-overload]
        with connect(server.stdout.readline().strip(), proxy=None, ping_interval=None) as ws:
            client = Client(ws)
            client.start("p", "sh", "-c", "echo $$; exec sleep 600")
            pid, keeper = client.said(), keeper_of(server)
            os.kill(keeper, signal.SIGSTOP)
            server.kill()
    try:
        # More often than a server may crash.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            with subprocess.Popen(argv, **piped) as server:  # type: ignore[call-overload]
                try:
                    assert f"process {keeper}" in server.stderr.readline()
                    server.send_signal(number)
                    assert server.wait(LIMIT) == 0
                    assert server.stderr.read() == ""
                finally:
                    server.kill()
    finally:
        os.kill(keeper, signal.SIGCONT)
    with (
        serving(tmp_path / "state") as (_, url),
        connect(url, proxy=None, ping_interval=None) as ws,
    ):
        assert listed(Client(ws, client.session), "p")["state"] == "running"
    assert is_gone(pid)
    assert is_gone(keeper)


@pytest.mark.fault
def test_a_stopped_keeper_that_is_then_killed_costs_what_it_had_and_no_more(
    tmp_path: Path,
) -> None:
    argv = [sys.executable, "-m", "handrail", "serve", "--state-dir", str(tmp_path / "state")]
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(argv, **piped) as server:  # type: ignore[call-overload]
        with connect(server.stdout.readline().strip(), proxy=None, ping_interval=None) as ws:
            client = Client(ws)
            pids, keeper = family(client, "p", "stay"), keeper_of(server)
            os.kill(keeper, signal.SIGSTOP)
            server.kill()
    with subprocess.Popen(argv, **piped) as server:  # type: ignore[call-overload]
        try:
            assert f"process {keeper}" in server.stderr.readline()
            os.kill(keeper, signal.SIGKILL)
            with connect(server.stdout.readline().strip(), proxy=None, ping_interval=None) as ws:
                Client(ws).start("q", "true")
            assert all(is_gone(pid) for pid in pids)
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(LIMIT) == 0
