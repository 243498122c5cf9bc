"""A process that forks and exits between the look and the signal, again and again, is caught.

Whether one that flees is faster than the keeper is a matter of the machine; here it always is, for
a number of turns.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from handrail.keeper import RLIMIT_LOCKS, orphan_kill, tree
from tests.support.eventually import eventually
from tests.support.processes import alive, bearing, reaped

pytestmark = pytest.mark.fault

MARK = (0x1000_0000 + (os.getpid() << 4) + 15) << 24  # of this test process alone
TURNS = 6
#: Leaves a child in its place, which says its pid, for each byte it is given.
FLEEING = """
import os
while True:
    os.write(1, b"%d\\n" % os.getpid())
    if not os.read(0, 1):
        break
    if os.fork():
        os._exit(0)
    os.setsid()
"""


class Flight:
    """One that flees whenever it is about to be signalled, as long as it has turns left."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin, self.stdout = process.stdin, process.stdout
        self.pids = [int(self.stdout.readline())]
        self.turns = TURNS

    def before(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def late(pid: int, *args: Any) -> Any:
            if self.turns and pid == self.pids[-1]:
                self.turns -= 1
                os.write(self.stdin.fileno(), b"x")
                self.pids.append(int(self.stdout.readline()))
                eventually(lambda: not alive(pid), "it has fled")
            return real(pid, *args)

        return late


def test_one_that_always_flees_in_time_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    token = f"fleeing {os.urandom(8).hex()}"
    argv = [sys.executable, "-I", "-S", "-c", FLEEING, token]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    flight = Flight(process)
    resource.prlimit(process.pid, RLIMIT_LOCKS, (MARK, resource.RLIM_INFINITY))
    monkeypatch.setattr(tree, "_signal_one", flight.before(tree._signal_one))
    monkeypatch.setattr(orphan_kill, "_kill", flight.before(orphan_kill._kill))
    monkeypatch.setattr(orphan_kill, "SECONDS", 30.0)  # of a machine that does other things too
    assert tree.kill(None, MARK, set()) >= TURNS
    assert flight.turns == 0
    eventually(lambda: not bearing(token), "all are gone")
    flight.stdin.close()
    flight.stdout.close()
    process.wait()
    for pid in flight.pids:  # one that was killed last may be dying yet
        eventually(lambda pid=pid: reaped(pid), "its status is taken")  # type: ignore[misc]


def test_one_that_flees_before_the_signal_is_not_taken_for_the_whole_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    argv = [sys.executable, "-I", "-S", "-c", FLEEING]
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    flight = Flight(process)
    flight.turns = 1
    resource.prlimit(process.pid, RLIMIT_LOCKS, (MARK, resource.RLIM_INFINITY))
    with monkeypatch.context() as patched:
        patched.setattr(tree.os, "kill", flight.before(os.kill))
        assert not tree.kill_lone(process.pid, MARK, {process.pid})
    assert flight.turns == 0
    assert alive(flight.pids[-1])
    assert tree.kill(None, MARK, {process.pid}) == 1
    flight.stdin.close()
    flight.stdout.close()
    process.wait()
    eventually(lambda: reaped(flight.pids[-1]), "its status is taken")


def test_one_without_children_or_orphans_is_the_whole_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here the signal takes its time, so that the process still runs when it is looked at again."""
    orphan = subprocess.Popen(["sleep", "600"])
    lone = subprocess.Popen(["sleep", "600"], start_new_session=True)
    sent: list[tuple[int, int]] = []
    with monkeypatch.context() as patched:
        for name in ("kill", "killpg"):
            patched.setattr(tree.os, name, lambda pid, number: sent.append((pid, number)))
        assert tree.kill_lone(lone.pid, MARK, {lone.pid})
        resource.prlimit(orphan.pid, RLIMIT_LOCKS, (MARK, resource.RLIM_INFINITY))
        assert not tree.kill_lone(lone.pid, MARK, {lone.pid})
        assert tree.kill_lone(lone.pid, MARK, {lone.pid, orphan.pid})  # another leader, then
    assert set(sent) == {(lone.pid, signal.SIGKILL)}
    for process in (lone, orphan):
        process.kill()
        process.wait()


def test_a_namespace_is_ended_with_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing flees from it: all is over when its first process is reaped, and that is counted."""
    token = f"namespace {os.urandom(8).hex()}"
    script = """sh -c 'sleep 600; :' "$0" & echo; wait"""
    argv = ["prlimit", f"--locks={MARK}:", "unshare", "--user", "--map-current-user"]
    argv += ["--pid", "--fork", "sh", "-c", script, token]
    leader = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert leader.stdout is not None
    if not leader.stdout.readline():
        leader.wait()
        pytest.skip("no user namespaces here")
    other = subprocess.Popen(["sleep", "600"])
    leader.kill()
    leader.wait()
    assert bearing(token)
    for limit in ("SECONDS", "_END_SECONDS"):
        monkeypatch.setattr(orphan_kill, limit, 30.0)  # of a machine that does other things too
    counted: list[resource.struct_rusage] = []
    with monkeypatch.context() as patched:
        patched.setattr("time.sleep", lambda _: pytest.fail("it pauses"))
        assert orphan_kill.end_near(MARK, {other.pid}, counted.append, looks=1) == 1
    assert not bearing(token)
    assert len(counted) == 1
    assert alive(other.pid)
    leader.stdout.close()
    other.kill()
    other.wait()
