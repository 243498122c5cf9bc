"""A sandboxed command does not notice that its server died: not its calls, its signals, its end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from tests.support.processes import reaping
from tests.system.permissions import sandbox
from tests.system.survival import LIMIT, Followed, Rig
from tests.system.test_server_rows import keeper_of
from tests.system.test_survival import come_back, rigged

#: Somebody inside who answers, and somebody who connects to it again and again, by all kinds of
#: sockets; an address that leads nowhere in between.
CALLS = """
import os, socket, sys, threading
def serve(s):
    def run():
        while True:
            visitor = s.accept()[0]
            visitor.sendall(b"ok")
            visitor.close()
    threading.Thread(target=run, daemon=True).start()
    return s
unix, inet = socket.socket(socket.AF_UNIX), socket.socket()
unix.bind("in")
inet.bind(("127.0.0.1", 0))
for s in (unix, inet):
    s.listen()
    serve(s)
for n in range(20):
    family, address = ((1, "in"), (1, os.path.abspath("in")), (2, inet.getsockname()))[n % 3]
    s = socket.socket(family)
    if n % 2:
        s.settimeout(20)
    s.connect(address)
    assert s.recv(9) == b"ok"
    print("call", n, flush=True)
sys.exit(7)
"""


#: Somebody who makes pairs of datagram sockets again and again.
PAIRS = """
import socket, sys
for n in range(20):
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    a.send(b"one"); a.send(b"two")
    assert (b.recv(9), b.recv(9)) == (b"one", b"two")
    a.close()
    assert b.recv(9) == b""
    print("call", n, flush=True)
sys.exit(7)
"""


class Said(Followed):
    """A process whose words are kept."""

    text = b""

    def _check(self, data: bytes) -> None:
        self.text += data


def sandboxed(rig: Rig, ws: Path, *argv: str, **more: Any) -> Said:
    ws.mkdir(exist_ok=True)
    one = Said("p", 0, 0)
    rig.start(one, *argv, cwd=ws.as_uri(), sandbox=sandbox(ws), **more)
    return one


def follow(rig: Rig, one: Said, until: bytes | None = None) -> None:
    while not (one.closed if until is None else until in one.text):
        rig.receive()


@pytest.mark.parametrize("script", [CALLS, PAIRS], ids=["connect", "pair"])
@pytest.mark.parametrize(
    "point",
    [
        *("call.taken:crash", "call.made:crash", "call.answered:crash"),
        *("call.taken:crash@5", "call.made:crash@6", "call.answered:crash@2"),
    ],
)
def test_calls_survive_a_kill_at_each_point(tmp_path: Path, point: str, script: str) -> None:
    with rigged(tmp_path / "state", faults=point) as rig:
        rig.attach()
        try:
            one = sandboxed(rig, tmp_path / "w", sys.executable, "-I", "-c", script)
            follow(rig, one)
        except ConnectionClosed:
            one = rig.followed["p"]  # type: ignore[assignment]
        come_back(rig)
        follow(rig, one)
    lines = one.text.decode().split("\n")
    assert [line for line in lines if line.startswith("call")] == [f"call {n}" for n in range(20)]
    assert one.exit_code == 7


def test_calls_wait_while_no_server_is_there(tmp_path: Path) -> None:
    script = CALLS.replace("for n in range(20):", "input()\nfor n in range(20):")
    with rigged(tmp_path / "state") as rig:
        rig.attach()
        argv = (sys.executable, "-I", "-c", "print('ready', flush=True)\n" + script)
        one = sandboxed(rig, tmp_path / "w", *argv, pipeStdin=True)
        follow(rig, one, b"ready")
        rig.call("process/write", **rig.write("p", "w", b"\n"))
        rig.kill()
        rig._rest()
        rig.start_server()
        rig.attach()
        follow(rig, one)
    assert one.exit_code == 7
    assert one.text.count(b"call") == 20


@pytest.mark.parametrize("tty", [False, True], ids=["pipe", "terminal"])
def test_signals_go_inside_after_a_crash(tmp_path: Path, tty: bool) -> None:
    script = (
        "trap 'echo caught' INT; trap 'echo bye; exit 5' TERM HUP;"
        " echo ready; while :; do sleep 0.1; done"
    )
    with rigged(tmp_path / "state") as rig:
        rig.attach()
        one = sandboxed(rig, tmp_path / "w", "/bin/sh", "-c", script, tty=tty)
        follow(rig, one, b"ready")
        rig.restart()
        (row,) = rig.call("process/list")["processes"]
        assert (row["argv"][:2], row["cwd"]) == (["/bin/sh", "-c"], (tmp_path / "w").as_uri())
        rig.call("process/signal", processId="p", signal="interrupt")
        follow(rig, one, b"caught")
        rig.call("process/terminate", processId="p", graceMs=int(LIMIT * 1000))
        follow(rig, one)
    assert b"bye" in one.text
    assert one.exit_code == 5


def test_the_end_is_judged_after_a_crash(tmp_path: Path) -> None:
    script = "echo ready; read x; echo x > /usr/not-here"
    with rigged(tmp_path / "state") as rig:
        rig.attach()
        one = sandboxed(rig, tmp_path / "w", "/bin/sh", "-c", script, pipeStdin=True)
        follow(rig, one, b"ready")
        rig.restart()
        rig.call("process/write", **rig.write("p", "w", b"\n"))
        follow(rig, one)
        answer = rig.call("process/read", processId="p")
    assert answer["sandboxDenied"] is True
    assert signal.SIGKILL + 128 != one.exit_code != 0


# --- the keeper ----------------------------------------------------------------------------------


@contextmanager
def orphaned(state: Path) -> Iterator[Rig]:
    """A rig whose keeper will be killed: its children get another parent, who reaps them."""
    with rigged(state) as rig, reaping(lambda: 0 if rig.server is None else rig.server.pid):
        yield rig


def lose_keeper(rig: Rig) -> None:
    """Kill it; the next one is at work when this returns."""
    os.kill(keeper_of(rig), signal.SIGKILL)
    rig.call("process/list")  # answered by one that knows the children


@pytest.mark.parametrize("then", ["go on", "crash"])
def test_calls_and_output_go_on_without_the_keeper(tmp_path: Path, then: str) -> None:
    script = CALLS.replace("for n in range(20):", "for n in range(20):\n    n % 5 or input()")
    with orphaned(tmp_path / "state") as rig:
        rig.attach()
        argv = (sys.executable, "-I", "-c", "print('ready', flush=True)\n" + script)
        one = sandboxed(rig, tmp_path / "w", *argv, pipeStdin=True)
        follow(rig, one, b"ready")
        for n in range(4):
            if n == 1:
                lose_keeper(rig)  # one call or more has been made, so there is a ledger
            if n == 2 and then == "crash":
                rig.restart()
            rig.call("process/write", **rig.write("p", f"w{n}", b"\n"))
            follow(rig, one, b"call %d\n" % (5 * n + 4))
        follow(rig, one)
    # A kernel before 6.15 does not tell the status of somebody else's child.
    assert one.exit_code in (7, -1)
    assert one.text.count(b"call") == 20
    assert b"again" not in one.text


@pytest.mark.parametrize("tty", [False, True], ids=["pipe", "terminal"])
@pytest.mark.parametrize("how", ["signals", "kill", "close"])
def test_a_sandbox_without_its_keeper_is_reached_and_ended(
    tmp_path: Path, how: str, tty: bool
) -> None:
    script = (
        "trap 'echo caught' INT; trap 'echo bye; exit 5' TERM HUP;"
        " setsid sleep 600 & echo ready; while :; do sleep 0.1; done"
    )
    with orphaned(tmp_path / "state") as rig:
        rig.attach()
        one = sandboxed(rig, tmp_path / "w", "/bin/sh", "-c", script, tty=tty)
        follow(rig, one, b"ready")
        lose_keeper(rig)
        if how == "close":
            rig.call("session/close")
            return  # nobody is left, or the rig says so
        if how == "kill":
            rig.call("process/terminate", processId="p")
        else:
            rig.call("process/signal", processId="p", signal="interrupt")
            follow(rig, one, b"caught")
            rig.call("process/terminate", processId="p", graceMs=int(LIMIT * 1000))
        follow(rig, one)
    assert (b"bye" in one.text) == (how == "signals")


@pytest.mark.parametrize("keeper", ["there", "another"])
def test_a_sandbox_ends_with_what_holds_it(tmp_path: Path, keeper: str) -> None:
    script = "setsid sleep 600 & echo ready; sleep 600"
    with orphaned(tmp_path / "state") as rig:
        rig.attach()
        one = sandboxed(rig, tmp_path / "w", "/bin/sh", "-c", script)
        follow(rig, one, b"ready")
        if keeper == "another":
            lose_keeper(rig)
        (row,) = rig.call("process/list")["processes"]
        os.kill(row["pid"], signal.SIGKILL)  # and nobody inside goes on: the rig would say so
        follow(rig, one)
        (row,) = rig.call("process/list")["processes"]
        assert row["orphans"] == 0
        assert not row["heldOpen"]
    assert one.exit_code in (128 + signal.SIGKILL, -1)


def test_whoever_has_ended_is_with_the_next_keeper_too(tmp_path: Path) -> None:
    ws = tmp_path / "w"
    ws.mkdir()
    call = "import socket; socket.socket().connect_ex(('127.0.0.1', 1)); print('done')"
    with orphaned(tmp_path / "state") as rig:
        rig.attach()
        for number in range(4):
            one = Said(f"ended{number}", 0, 0)
            argv = (sys.executable, "-I", "-c", call)
            rig.start(one, *argv, cwd=ws.as_uri(), sandbox=sandbox(ws))
            follow(rig, one)
        runs = sandboxed(rig, ws, "/bin/sh", "-c", "echo ready; read x; exit 6", pipeStdin=True)
        follow(rig, runs, b"ready")
        lose_keeper(rig)
        lose_keeper(rig)
        rig.restart()
        names = {row["processId"] for row in rig.call("process/list")["processes"]}
        assert names == {"p", "ended0", "ended1", "ended2", "ended3"}
        rig.call("process/write", **rig.write("p", "w", b"\n"))
        follow(rig, runs)
    assert runs.exit_code in (6, -1)
