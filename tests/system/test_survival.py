"""A2, A3, D9 and every fault point: nothing is lost, doubled or reordered, whenever it happens."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from tests.support.processes import nothing_left
from tests.system.survival import ECHO, LIMIT, WRITER, Followed, Rig, expected, flood, typing

MIB = 1024 * 1024


@contextmanager
def rigged(state: Path, *, seed: int = 0, faults: str = "") -> Iterator[Rig]:
    """A rig; nothing of it is left afterwards."""
    with nothing_left():
        rig = Rig(state, seed=seed, faults=faults)
        try:
            yield rig
        finally:
            rig.stop()


@pytest.mark.parametrize("seed", [1])
def test_a2_floods_survive_kills_to_the_byte(tmp_path: Path, seed: int) -> None:
    with rigged(tmp_path / "state", seed=seed) as rig:
        result = flood(rig, 4, [10 * MIB, 7 * MIB], [3 * MIB])
    assert result["kills"] == 4
    assert result["read back"] > 0, "no kill has cut a stream: the run shows nothing"


@pytest.mark.parametrize("tty", [False, True], ids=["pipe", "terminal"])
def test_d9_input_survives_kills_exactly_once(tmp_path: Path, tty: bool) -> None:
    with rigged(tmp_path / "state", seed=3) as rig:
        result = typing(rig, 3, tty=tty)
    assert result["repeated"] == 3


# --- every point at which a server can be killed -------------------------------------------------


def died(rig: Rig) -> bool:
    """Whether the armed server has ended by its fault."""
    assert rig.server is not None
    return rig.server.wait(LIMIT) == -9


def come_back(rig: Rig) -> None:
    """The fault has struck, or the run shows nothing."""
    assert died(rig)
    rig._rest()
    rig.start_server()
    rig.attach()


OUTPUT_POINTS = [
    "spool.open:crash",
    "spool.fill:crash",
    "spool.fill:crash@5",
    "spool.pending:crash",
    "spool.wrapped:crash",
    "output.taken:crash",
    "output.taken:crash@7",
    "output.numbered:crash",
    "output.numbered:crash@7",
    "exit.numbered:crash",
    "close.numbered:crash",
]


TERMINAL_OUTPUT_POINTS = ["spool.fill:crash@5", "spool.wrapped:crash", "output.taken:crash@3"]


@pytest.mark.parametrize(
    ("point", "tty"),
    [(p, False) for p in OUTPUT_POINTS] + [(p, True) for p in TERMINAL_OUTPUT_POINTS],
)
def test_output_survives_a_kill_at_each_point(tmp_path: Path, point: str, tty: bool) -> None:
    size = 3 * MIB
    with rigged(tmp_path / "state", faults=point) as rig:
        rig.attach()
        one = Followed("p", size, 7)
        argv = [sys.executable, "-I", "-S", "-c", WRITER, "1", str(size), "7"]
        try:
            rig.start(one, *argv, tty=tty)
            while not one.closed:
                rig.receive()
        except ConnectionClosed:
            pass
        come_back(rig)
        while not one.closed:
            rig.receive()
        one.verdict()


INPUT_POINTS = [
    "stdin.open:crash",
    "stdin.appended:crash",
    "stdin.appended:crash@3",
    "stdin.recorded:crash",
    "stdin.recorded:crash@3",
    "stdin.sent:crash",
    "stdin.sent:crash@3",
    "stdin.send:short@1000,stdin.sent:crash@9",
]


TERMINAL_INPUT_POINTS = ["stdin.appended:crash@3", "stdin.sent:crash"]


@pytest.mark.parametrize(
    ("point", "tty"),
    [(p, False) for p in INPUT_POINTS] + [(p, True) for p in TERMINAL_INPUT_POINTS],
)
def test_input_survives_a_kill_at_each_point(tmp_path: Path, point: str, tty: bool) -> None:
    sizes = (10, 3000, 20_000, 1, 500)
    with rigged(tmp_path / "state", faults=point) as rig:
        rig.attach()
        one = Followed("echo", sum(sizes), 9, skip=1 if tty else 0)
        argv = [sys.executable, "-I", "-S", "-c", ECHO, str(sum(sizes))]
        rig.start(one, *argv, tty=tty, pipeStdin=not tty)
        while tty and one.skip:
            rig.receive()
        at = struck = 0
        for number, size in enumerate(sizes):
            write = rig.write("echo", f"w{number}", expected(at, size))
            try:
                answer = rig.call("process/write", **write)
            except ConnectionClosed:
                come_back(rig)
                struck += 1
                answer = rig.call("process/write", **write)
            assert answer == {"status": "accepted"}
            at += size
        assert struck == 1
        while not one.closed:
            rig.receive()
        one.verdict()


def test_a3_a_kill_between_a_start_and_its_answer(tmp_path: Path) -> None:
    """The process is there once, and a repetition is told so."""
    with rigged(tmp_path / "state", faults="spawn.answered:crash") as rig:
        rig.attach()
        one = Followed("p", 1000, 7)
        argv = [sys.executable, "-I", "-S", "-c", WRITER, "1", "1000", "7"]
        with pytest.raises(ConnectionClosed):
            rig.start(one, *argv)
        come_back(rig)
        params = {"argv": argv, "cwd": "file:///", "env": {}, "tty": False}
        again = rig.try_call("process/start", processId="p", **params)
        assert again["error"]["message"] == "process p already exists"
        assert [p["processId"] for p in rig.call("process/list")["processes"]] == ["p"]
        while not one.closed:
            rig.receive()
        one.verdict()


@pytest.mark.parametrize(
    "fault",
    [
        "spool.open:EMFILE@1",
        "spool.fill:ENOSPC@3",
        "spool.fill:short@777",
        "output.numbered:delay=0.001",
    ],
)
def test_a_kill_under_trouble(tmp_path: Path, fault: str) -> None:
    """A server that gets nowhere is killed, and the next one has no such trouble."""
    size = MIB
    with rigged(tmp_path / "state", faults=fault) as rig:
        rig.attach()
        one = Followed("p", size, 7)
        rig.start(one, sys.executable, "-I", "-S", "-c", WRITER, "1", str(size), "7")
        rig.restart()
        while not one.closed:
            rig.receive()
        one.verdict()


def test_no_room_for_input_is_said_and_nothing_is_accepted(tmp_path: Path) -> None:
    with rigged(tmp_path / "state", faults="stdin.open:ENOMEM") as rig:
        rig.attach()
        one = Followed("echo", 10, 9)
        argv = (sys.executable, "-I", "-S", "-c", ECHO, "10")
        rig.start(one, *argv, pipeStdin=True)
        write = rig.write("echo", "w", expected(0, 10))
        refused = rig.try_call("process/write", **write)
        assert refused["error"]["code"] == -32603
        assert "nothing was accepted" in refused["error"]["message"]
        rig.restart()
        assert rig.call("process/write", **write) == {"status": "accepted"}
        while not one.closed:
            rig.receive()
        one.verdict()


def test_the_next_server_on_any_port_listens_where_clients_know_it(tmp_path: Path) -> None:
    with rigged(tmp_path / "state") as rig:
        rig.attach()
        before = rig.url
        rig.restart()
        assert rig.url == before
        rig.kill()
        rig._rest()
        with socket.create_server(("127.0.0.1", int(before.rpartition(":")[2]))):
            rig.start_server()
        assert rig.url != before
        rig.attach()
