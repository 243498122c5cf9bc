"""Limits, processes that outlive their workspace, and certain denials: near and far."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from handrail import (
    CommandFailed,
    ExitKind,
    Limits,
    ProcessUnknown,
    UsageError,
    Workspace,
    run,
)
from handrail.executor.base import ExecutorFeatures
from handrail.testing import FakeExecutor
from tests.support.eventually import eventually
from tests.support.processes import alive

#: Takes memory until it is refused.
GREEDY = "held = []\nwhile True: held.append(bytearray(4 << 20))"


@pytest.mark.parametrize("sandbox", ["off", "workspace-write"])
def test_limits_of_each_process(at: str | None, root: Path, sandbox: str) -> None:
    with Workspace(root, at=at, sandbox=sandbox) as ws:  # type: ignore[arg-type]
        limits = Limits(open_files=33, file_size=1 << 20, cpu_seconds=5, address_space=1 << 33)
        assert ws.run("ulimit -n; ulimit -v", limits=limits).stdout.split() == ["33", "8388608"]
        big = ws.run("head -c 2M /dev/zero > big", limits=Limits(file_size=1 << 20))
        assert not big.ok
        assert (root / "big").stat().st_size == 1 << 20
        busy = ws.run([sys.executable, "-c", "while True: pass"], limits=Limits(cpu_seconds=1))
        assert busy.exit is not None
        assert (busy.exit.signal, busy.exit.limit) == ("SIGXCPU", "cpu_seconds")
        with pytest.raises(CommandFailed, match="beyond its limit of cpu_seconds"):
            busy.check()


def test_too_much_output_ends_it(at: str | None, root: Path) -> None:
    with Workspace(root, at=at, sandbox="off") as ws:
        result = ws.run("yes", limits=Limits(output=1 << 20))
        assert result.exit is not None
        assert (result.exit.kind, result.exit.limit) == (ExitKind.LIMIT_EXCEEDED, "output")
        process = ws.start("yes", limits=Limits(output=1 << 20))
        info = process.wait()
        assert info is not None
        assert info.kind is ExitKind.LIMIT_EXCEEDED


def test_a_limit_of_the_tree_is_kept(at: str | None, root: Path) -> None:
    with Workspace(root, at=at, sandbox="off", limits=Limits(memory=64 << 20)) as ws:
        assert ws.limits == Limits(memory=64 << 20)
        greedy = ws.run([sys.executable, "-c", GREEDY], timeout=20)
        assert greedy.exit is not None
        assert (greedy.exit.kind, greedy.exit.limit) == (ExitKind.LIMIT_EXCEEDED, "memory")
        forks = "for i in $(seq 50); do sleep 60 & done; wait"
        many = ws.run(forks, limits=Limits(processes=20), timeout=20)
        assert many.exit is not None
        assert many.exit.limit == "processes" or "fork" in many.stderr.lower()


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "2G", 2**63])
def test_what_is_no_limit(bad: object) -> None:
    with pytest.raises(UsageError, match="memory is a whole number"):
        Limits(memory=bad)  # type: ignore[arg-type]


def test_one_command_has_them_too(root: Path) -> None:
    assert run("ulimit -n", cwd=root, sandbox="off", limits=Limits(open_files=40)).stdout == "40\n"
    with pytest.raises(UsageError, match="wait"):
        run("true", wait=1)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="did you mean 'timeout'"):
        run("true", tiemout=1)  # type: ignore[call-overload]


def test_denials_are_certain_when_they_are_watched(at: str | None, root: Path) -> None:
    outside = root.parent / "outside"
    with Workspace(root, at=at) as ws:
        silent = f"mkdir {outside} 2>&-; exit 3"
        guessed = ws.run(silent)
        assert not any(denial.certain and denial.path for denial in guessed.denials)
        watched = ws.run(silent, watch_denials=True)
        assert [(d.op, d.path, d.certain) for d in watched.denials] == [
            ("mkdir", str(outside), True)
        ]
        assert ws.run("echo x > in", watch_denials=True).denials == ()
        with pytest.raises(UsageError, match="sandbox"):
            ws.run("true", watch_denials=True, sandbox="off")


def test_a_detached_process_outlives_its_workspace(url: str, root: Path) -> None:
    gate = root / "gate"
    os.mkfifo(gate)
    with Workspace(root, at=url, sandbox="off") as ws:
        process = ws.start(f"echo $$; read x < {gate}; echo got $x; exit 5", detach=True)
        pid = int(process.wait_for(r"^\d+$", timeout=20).match)
        other = ws.start("sleep 600")
        assert [one.id for one in ws.processes] == [process.id, other.id]
    assert other.exit is not None
    assert alive(pid)
    for _ in range(2):  # looking does not end it either
        with Workspace(root, at=url, sandbox="off") as later:
            again = later.process(process.id)
            assert again.running
            assert later.processes[0].id == process.id
    with Workspace(root, at=url, sandbox="off") as last:
        again = last.process(process.id)
        gate.write_text("word\n")
        result = again.result()
        assert (result.stdout.split(), result.exit_code) == ([str(pid), "got", "word"], 5)
        with pytest.raises(ProcessUnknown):
            last.process("nothing-9")
    eventually(lambda: not alive(pid))


def test_it_outlives_a_workspace_that_was_left_and_found_again(
    url: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(root / "xdg"))
    with Workspace(root, at=url, sandbox="off", detach_ttl=60) as ws:
        kept = ws.start("echo $$; sleep 600", detach=True)
        other = ws.start("sleep 600")
        pid = int(kept.wait_for(r"^\d+$", timeout=20).match)
        left = ws.detach()
    with Workspace.attach(left) as back:
        assert [process.id for process in back.processes] == [kept.id, other.id]
    assert alive(pid)
    with Workspace(root, at=url, sandbox="off") as later:
        with pytest.raises(ProcessUnknown):
            later.process(other.id)
        later.process(kept.id).terminate()
    eventually(lambda: not alive(pid))


def test_a_detached_process_can_be_ended(url: str, root: Path) -> None:
    with Workspace(root, at=url, sandbox="off") as ws:
        process = ws.start("echo $$; sleep 600", detach=True)
        pid = int(process.wait_for(r"^\d+$", timeout=20).match)
    with Workspace(root, at=url, sandbox="off") as later:
        later.process(process.id).terminate()
    eventually(lambda: not alive(pid))


def test_what_an_executor_does_not_offer_is_refused(root: Path) -> None:
    with Workspace(root, sandbox="off") as ws, pytest.raises(UsageError, match="server"):
        ws.start("true", detach=True)
    bare = FakeExecutor(features=ExecutorFeatures())
    bare.replies("true")
    with Workspace("/w", executor=bare) as ws:
        with pytest.raises(UsageError, match="limits"):
            ws.run("true", limits=Limits(open_files=9))
        with pytest.raises(UsageError, match="watch"):
            ws.run("true", watch_denials=True)
        with pytest.raises(UsageError, match="server"):
            ws.start("true", detach=True)
    assert bare.requests == []
