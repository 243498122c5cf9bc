"""Ending whole families: setsid, daemons, storms, the stopped and the orphaned."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from handrail.keeper import messages, proc_children
from handrail.process.keeper_client.start_keeper import PROGRAM
from tests.keeper.peer import Held, Peer, lodge, read_line
from tests.support.eventually import eventually
from tests.support.processes import (
    alive,
    bearing,
    children,
    exists,
    nothing_left,
    stat,
    status,
    zombies,
)

#: Starts one of each kind, tells their pids, and then waits or leaves.
FAMILY = """
import os, signal, sys, time
token, then = sys.argv[1:]
def tell(name):
    os.write(1, b"%s %d\\n" % (name.encode(), os.getpid()))
def start(work, *args):
    if os.fork() == 0:
        work(*args)
        while True:
            signal.pause()
def plain():
    tell("plain")
def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell("deaf")
def session():
    os.setsid()
    start(grandchild)
    tell("session")
def grandchild():
    os.setpgid(0, 0)
    tell("grandchild")
def stopped():
    tell("stopped")
    os.kill(os.getpid(), signal.SIGSTOP)
def daemon():
    os.setsid()
    between = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.001)
    tell("daemon")
    for fd in range(3):
        os.close(fd)
    os.execve("/bin/sleep", ["sleep", "1000." + token], {})
start(daemon)
os.wait()  # the one between us and it
for work in (plain, deaf, session, stopped):
    start(work)
if then == "stay":
    tell("leader")
    while True:
        signal.pause()
"""
KINDS = {"plain", "deaf", "session", "grandchild", "stopped", "daemon"}


def _token() -> str:
    return f"{random.SystemRandom().getrandbits(60):020d}"


def _family(server: Peer, then: str) -> tuple[Held, dict[str, int], str]:
    token = _token()
    leader = server.python(FAMILY, token, then)
    wanted = KINDS | {"leader"} if then == "stay" else KINDS
    pids: dict[str, int] = {}
    while pids.keys() != wanted:
        name, pid = read_line(leader.out).split()
        pids[name.decode()] = int(pid)
    eventually(lambda: status(pids["stopped"])["State"][0] == "T", "the stopped one is stopped")
    eventually(lambda: stat(pids["daemon"])["ppid"] == server.keeper, "the daemon came to us")
    return leader, pids, token


def _all_gone(server: Peer, pids: dict[str, int]) -> None:
    for name, pid in pids.items():
        eventually(lambda pid=pid: not exists(pid), f"{name} is gone and reaped")
    assert children(server.keeper) == set()


# --- who is reached ------------------------------------------------------------------------------


def test_kill_reaches_every_descendant(server: Peer) -> None:
    leader, pids, token = _family(server, "stay")
    assert server.signal(leader, signal.SIGKILL, messages.SCOPE_TREE) == len(pids)
    assert os.waitstatus_to_exitcode(server.exit(leader).status) == -signal.SIGKILL
    _all_gone(server, pids)
    assert bearing(token) == set()


def test_kill_after_the_leaders_exit_ends_those_it_left(server: Peer) -> None:
    leader, pids, token = _family(server, "leave")
    assert server.exit(leader).status == 0
    eventually(lambda: server.orphans() == {leader.name: len(pids)}, "all are orphans")
    assert server.signal(leader, signal.SIGKILL, messages.SCOPE_GROUP) == 0
    assert server.signal(leader, signal.SIGKILL, messages.SCOPE_LEADER) == 0
    assert server.signal(leader, signal.SIGKILL, messages.SCOPE_TREE) == len(pids)
    _all_gone(server, pids)
    assert server.orphans() == {}
    assert bearing(token) == set()


def test_an_exit_tells_that_nothing_was_left(server: Peer) -> None:
    assert server.exit(server.spawn(["/bin/true"])).alone
    daemon = "setsid sleep 1000 </dev/null >/dev/null 2>&1 & exit 0"
    some = [server.spawn(["/bin/sh", "-c", daemon if one % 2 else "exit 0"]) for one in range(20)]
    exits = [server.exit(child) for child in some]
    left = server.orphans()
    assert left == {child.name: 1 for child in some[1::2]}
    assert not any(told.alone for told in exits if told.child in left)
    assert not server.exit(server.spawn(["/bin/true"])).alone  # it could be one of its own
    for child in some:
        server.signal(child, signal.SIGKILL, messages.SCOPE_TREE)
    assert server.orphans() == {}
    assert server.exit(server.spawn(["/bin/true"])).alone


def test_another_family_is_left_alone(server: Peer) -> None:
    one, first, _ = _family(server, "leave")
    two, second, _ = _family(server, "stay")
    server.exit(one)
    eventually(lambda: server.orphans() == {one.name: len(first), two.name: 1}, "two families")
    server.signal(two, signal.SIGKILL, messages.SCOPE_TREE)
    server.exit(two)
    for pid in second.values():
        eventually(lambda pid=pid: not exists(pid), "the second family is gone")
    assert all(alive(pid) for pid in first.values())
    assert server.orphans() == {one.name: len(first)}
    server.signal(one, signal.SIGKILL, messages.SCOPE_TREE)
    _all_gone(server, first)


def test_a_signal_to_the_tree_reaches_each_once(server: Peer) -> None:
    leader, pids, _ = _family(server, "stay")
    assert server.signal(leader, signal.SIGTERM, messages.SCOPE_TREE) == len(pids)
    for name in pids.keys() - {"deaf", "stopped"}:
        eventually(lambda name=name: not exists(pids[name]), f"{name} took it")
    assert alive(pids["deaf"])
    os.kill(pids["stopped"], signal.SIGCONT)  # now it finds what was sent to it
    eventually(lambda: not exists(pids["stopped"]), "the stopped one took it")
    server.exit(leader)
    assert server.orphans() == {leader.name: 1}
    assert server.signal(leader, signal.SIGKILL, messages.SCOPE_TREE) == 1
    _all_gone(server, pids)


def test_group_and_leader_are_what_they_say(server: Peer) -> None:
    leader, pids, _ = _family(server, "stay")
    assert server.signal(leader, signal.SIGKILL, messages.SCOPE_GROUP) == 1
    for name in ("leader", "plain", "deaf", "stopped"):
        eventually(lambda name=name: not exists(pids[name]), f"{name} was in the group")
    assert all(alive(pids[name]) for name in ("session", "grandchild", "daemon"))
    server.exit(leader)
    server.signal(leader, signal.SIGKILL, messages.SCOPE_TREE)
    _all_gone(server, pids)

    alone = server.sh("sleep 1000 & echo $!; wait")
    other = int(read_line(alone.out))
    assert server.signal(alone, signal.SIGKILL, messages.SCOPE_LEADER) == 1
    server.exit(alone)
    assert alive(other)
    server.signal(alone, signal.SIGKILL, messages.SCOPE_TREE)
    eventually(lambda: not exists(other), "what the leader left")


@pytest.mark.parametrize(
    "scope", [messages.SCOPE_LEADER, messages.SCOPE_GROUP, messages.SCOPE_TREE]
)
def test_signals_that_reach_nobody(server: Peer, scope: bytes) -> None:
    child = server.sh("true")
    server.exit(child)
    assert server.signal(child, signal.SIGTERM, scope) == 0
    assert server.signal(child, signal.SIGKILL, scope) == 0
    stranger = Held(b"stranger", 1, -1, [])
    assert server.signal(stranger, signal.SIGKILL, scope) == 0
    running = server.spawn(["/bin/sleep", "1000"])
    assert server.signal(running, 4711, scope) == 0
    assert alive(running.pid)


def test_orphans_are_reaped(server: Peer) -> None:
    child = server.sh("(sleep 1000 & echo $!) ; (sleep 1000 & echo $!)")
    orphans = [int(read_line(child.out)), int(read_line(child.out))]
    server.exit(child)
    for pid in orphans:
        assert stat(pid)["ppid"] == server.keeper
        os.kill(pid, signal.SIGKILL)
    for pid in orphans:
        eventually(lambda pid=pid: not exists(pid), "reaped by the keeper")
    assert zombies(server.keeper) == set()
    assert server.orphans() == {}


def test_children_of_a_thread_are_found(server: Peer) -> None:
    program = """
import os, signal, threading
def work():
    for _ in range(3):
        pid = os.posix_spawn("/bin/sleep", ["sleep", "1000"], {}, setsid=True)
        os.write(1, b"%d\\n" % pid)
    signal.pause()
threading.Thread(target=work).start()
signal.pause()
"""
    leader = server.python(program)
    pids = [int(read_line(leader.out)) for _ in range(3)]
    assert server.signal(leader, signal.SIGKILL, messages.SCOPE_TREE) == 4
    server.exit(leader)
    for pid in pids:
        eventually(lambda pid=pid: not exists(pid), "a child of the thread")


def test_a_thread_that_ends_meanwhile_hides_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen(["/bin/sleep", "1000"])
    try:
        listed = os.listdir
        monkeypatch.setattr(proc_children.os, "listdir", lambda path: ["999999999", *listed(path)])
        assert child.pid in proc_children.children_of(os.getpid())
    finally:
        monkeypatch.undo()
        child.kill()
        child.wait()


def test_orphans_of_a_subreaper_inside_the_family(server: Peer) -> None:
    """Somebody below the leader collects orphans too: they move while they are looked for."""
    program = """
import ctypes, os, signal
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.write(1, b"%d\\n" % os.getpid())
    while True:
        signal.pause()
while True:
    signal.pause()
"""
    leader = server.python(program)
    orphan = int(read_line(leader.out))
    eventually(lambda: stat(orphan)["ppid"] == leader.pid, "it came to the leader, not to us")
    server.signal(leader, signal.SIGKILL, messages.SCOPE_TREE)
    server.exit(leader)
    eventually(lambda: not exists(orphan), "found below the leader")


def test_a_family_that_was_forgotten_ends_with_the_keeper(server: Peer) -> None:
    leader, pids, _ = _family(server, "leave")
    server.exit(leader)
    server.say(messages.FORGET, leader.name)
    assert server.orphans() == {}
    assert server.ask(messages.STOP).op == messages.DONE
    assert server.take() is None
    for pid in pids.values():
        eventually(lambda pid=pid: not exists(pid), "ended by STOP")


# --- storms --------------------------------------------------------------------------------------

#: Each forks on as fast as it can until it is killed, or for so many turns: a test that fails
#: must not take the machine along.
STORMS = {
    # The leader stays and everybody it starts takes a session of their own.
    "leader": """
import os, signal, sys
os.write(1, b"go\\n")
for turn in range(20_000):
    if os.fork() == 0:
        os.setsid()
        while True:
            signal.pause()
    if turn > 300:
        os.waitpid(-1, os.WNOHANG)
        signal.sigtimedwait([], 0.002)
""",
    # Nobody stays: each starts the next one and ends.
    "comet": """
import os, sys
os.write(1, b"go\\n")
for turn in range(200_000):
    if os.fork():
        os._exit(0)
    if turn % 7 == 0:
        os.setsid()
""",
    # Both: a leader that lets comets go.
    "comets": """
import os, signal, sys
for _ in range(4):
    if os.fork() == 0:
        for turn in range(100_000):
            if os.fork():
                os._exit(0)
            if turn % 5 == 0:
                os.setsid()
        os._exit(0)
os.write(1, b"go\\n")
while True:
    signal.pause()
""",
}


@pytest.mark.parametrize("storm", list(STORMS))
def test_nobody_outruns_a_kill(server: Peer, storm: str) -> None:
    token = _token()
    leader = server.python(STORMS[storm], token)
    read_line(leader.out)
    if storm == "comet":
        server.exit(leader)
    eventually(lambda: len(bearing(token)) > 0, "it runs")
    server.signal(leader, signal.SIGKILL, messages.SCOPE_TREE)
    if storm != "comet":
        assert os.waitstatus_to_exitcode(server.exit(leader).status) == -signal.SIGKILL
    eventually(lambda: not bearing(token), "all of the storm is gone", limit=3)
    eventually(lambda: children(server.keeper) == set(), "and reaped")


@pytest.mark.parametrize("storm", list(STORMS))
def test_nobody_outruns_the_end_of_the_keeper(server: Peer, storm: str) -> None:
    token = _token()
    leader = server.python(STORMS[storm], token)
    read_line(leader.out)
    eventually(lambda: len(bearing(token)) > 0, "it runs")
    server.sock.shutdown(2)
    eventually(lambda: not alive(server.keeper), "the keeper ends")
    assert not bearing(token)


# --- families of a keeper that was killed --------------------------------------------------------


def test_an_adopted_family_is_found_by_its_mark(tmp_path: Path) -> None:
    """Also by the keeper this one becomes; and nobody else is."""
    with lodge(tmp_path) as keeper:
        server = keeper.first.hello()
        mark = random.SystemRandom().getrandbits(31) << 24
        leader, orphan, other = (subprocess.Popen(["/bin/sleep", "600"]) for _ in range(3))
        for process, its in ((leader, mark), (orphan, mark), (other, mark + 1)):
            resource.prlimit(process.pid, 10, (its, resource.RLIM_INFINITY))  # of file locks
        lone = os.pidfd_open(leader.pid)
        try:
            state = messages.ChildState(
                b"far", leader.pid, mark, False, None, 0, 0, 0, 0, b"", [b"lone"]
            )
            server.say(messages.ADOPT, *state.pack(), fds=(lone,))
            assert (
                server.ask(messages.REEXEC, *(word.encode() for word in PROGRAM)).op
                == messages.DONE
            )
            assert server.orphans() == {b"far": 1}
            far = Held(b"far", leader.pid, -1, [])
            assert server.signal(far, signal.SIGCONT, messages.SCOPE_LEADER) == 1
            assert server.signal(far, signal.SIGTERM, messages.SCOPE_TREE) == 2
            assert leader.wait() == orphan.wait() == -signal.SIGTERM
            assert server.orphans() == {}
            assert server.signal(far, signal.SIGKILL, messages.SCOPE_TREE) == 0
            assert server.signal(far, signal.SIGKILL, messages.SCOPE_GROUP) == 0
            assert other.poll() is None
        finally:
            os.close(lone)
            for process in (leader, orphan, other):
                process.kill()
                process.wait()


#: Bears a tag with its child ``sleep``; another child, which does not, kills what bears it.
GUARDED = """
import os, resource, subprocess, sys
from handrail.keeper import RLIMIT_LOCKS, tree

tag = 0x2468_ACE1 << 24
before = resource.getrlimit(RLIMIT_LOCKS)
resource.setrlimit(RLIMIT_LOCKS, (tag, before[1]))
subprocess.Popen(["sleep", "600"])
if os.fork() == 0:
    resource.setrlimit(RLIMIT_LOCKS, before)
    tree.kill_afar(None, {tag})
    os.write(1, b"survived")
    os._exit(0)
os.wait()
"""


@pytest.mark.fault
def test_what_ends_a_tree_that_it_hangs_below_goes_on() -> None:
    """A guard below its dying parent, which bears the tag, once stopped or killed itself."""
    argv = [sys.executable, "-c", GUARDED]
    with nothing_left():  # orphans come to this process, and are reaped
        ended = subprocess.run(argv, stdout=subprocess.PIPE, timeout=30, check=False)
    assert ended.stdout == b"survived"  # and ``sleep`` has no other end of the pipe any more
    assert ended.returncode == -signal.SIGKILL
