"""Control groups: what the probe finds, who is in one, and that none is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.keeper import messages
from handrail.keeper.limits import cgroups
from handrail.keeper.limits.cgroups import Cgroups
from tests.keeper.peer import Failed, embedded, read_all, read_line
from tests.support.eventually import eventually
from tests.support.processes import alive, exists


@pytest.fixture
def made() -> Iterator[Cgroups]:
    made = Cgroups()
    yield made
    made.close()
    for place in made._places():
        assert not os.path.exists(place.base)


@pytest.fixture
def killing(made: Cgroups) -> Cgroups:
    if made.kills is None:
        pytest.skip("no control group is delegated to us on this machine")
    return made


def test_the_probe_leaves_nothing(made: Cgroups) -> None:
    for place in made._places():
        assert not os.path.exists(place.base)
    assert made.rung in (b"cgroup", b"walk")


@pytest.mark.fault
def test_groups_of_another_pid_namespace_are_not_removed(tmp_path: Path) -> None:
    """There the pid may be a keeper's, whose child has not yet stepped into its new group."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    own, other = cgroups.name_of(gone.pid), f"handrail-{gone.pid}.1"
    for name in (own, other, cgroups.name_of(os.getpid()), "handrail-x", "else"):
        (tmp_path / name / "1f").mkdir(parents=True)
    cgroups._sweep(str(tmp_path))
    left = {cgroups.name_of(os.getpid()), other, "handrail-x", "else"}
    assert set(os.listdir(tmp_path)) == left


@pytest.mark.parametrize(
    ("features", "options", "fast"),
    [
        ("nsdelegate\nfavordynmods\n", "rw,nsdelegate", False),
        ("nsdelegate\nfavordynmods\n", "rw,nsdelegate,favordynmods", True),
        ("nsdelegate\nmemory_localevents\n", "rw,nsdelegate", True),  # before Linux 6.0
        ("", "rw", False),  # no /sys
        ("", "rw,favordynmods", True),
    ],
)
def test_the_kernel_says_whether_a_group_is_entered_at_once(
    monkeypatch: pytest.MonkeyPatch, features: str, options: str, fast: bool
) -> None:
    mounts = f"25 1 0:5 / /proc rw - proc proc rw\n41 31 0:38 / /c rw - cgroup2 cgroup2 {options}\n"
    said = {cgroups.FEATURES: features, "/proc/self/mountinfo": mounts}
    monkeypatch.setattr(cgroups, "_read", lambda path: said[path].encode())
    assert cgroups._is_fast() is fast


def test_only_limits_need_a_group_unless_all_are_to_have_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether a group is fast to enter or not, and however long the test of it took."""
    monkeypatch.delenv(cgroups.CHOICE, raising=False)
    for fast in (False, True):
        monkeypatch.setattr(cgroups, "_is_fast", lambda fast=fast: fast)
        made = Cgroups()
        assert made.rung == b"walk"
        assert made.prepare(1, {}) == []
        made.close()
    monkeypatch.setenv(cgroups.CHOICE, "cgroup")
    made = Cgroups()
    assert made.everyone is (made.kills is not None)
    made.close()


def test_a_choice_overrides_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cgroups.CHOICE, "walk")
    made = Cgroups()
    assert (made.rung, made.kills, made.limits) == (b"walk", None, {})
    assert made.prepare(1, {}) == []
    assert made.kill(1) == 0
    # What no group holds is for the watcher.
    assert made.prepare(1, {b"memory": 1 << 30, b"cpu": 5}) == []
    assert made.not_held({b"memory": 1 << 30, b"cpu": 5}) == {b"memory": 1 << 30}
    made.close()


def test_a_kill_reaches_who_is_in_and_nobody_else(
    killing: Cgroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    killing.everyone = True
    doors = killing.prepare(7, {})
    script = f"for d in {' '.join(doors)}; do echo 0 > $d; done; setsid sleep 600 & exec sleep 600"
    inside = subprocess.Popen(["/bin/sh", "-c", script])
    outside = subprocess.Popen(["sleep", "600"])
    try:
        assert killing.kills is not None
        procs = Path(killing.kills.path(7)) / "cgroup.procs"
        eventually(lambda: len(procs.read_text().split()) == 2, "both are in")
        members = [int(pid) for pid in procs.read_text().split()]
        assert killing.kill(8) == 0
        assert killing.kill(7) == 2
        assert inside.wait() == -signal.SIGKILL
        for pid in members:
            eventually(lambda pid=pid: not alive(pid), "it is gone")
            if pid != inside.pid:
                os.waitpid(pid, 0)  # it came to us
        assert outside.poll() is None
    finally:
        outside.kill()
        outside.wait()
    killing.forget(7)
    eventually(lambda: killing.tidy() or not killing._made, "the group is gone")


def test_what_a_dead_keeper_left_is_swept(killing: Cgroups) -> None:
    assert killing.kills is not None
    home = Path(killing.kills.base).parent
    gone = subprocess.Popen(["true"])
    gone.wait()
    (home / cgroups.name_of(gone.pid)).mkdir()
    (home / cgroups.name_of(gone.pid) / "1f").mkdir()
    Cgroups().close()
    assert not (home / cgroups.name_of(gone.pid)).exists()


def test_groups_of_the_keeper_before_an_upgrade_are_found(killing: Cgroups) -> None:
    killing.everyone = True
    killing.prepare(0x2F, {})
    again = Cgroups()
    assert again.kills is not None
    assert again.kills.base in {place.base for place in again._made[0x2F]}
    again.forget(0x2F)
    assert not again._made


def test_groups_of_workspaces_hold_their_children_and_go_with_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(cgroups.CHOICE, "cgroup")
    made = Cgroups()
    if not made.shared:
        pytest.skip("no control groups with memory and cpu are delegated to us on this machine")
    wanted = {cgroups.GROUP: 0xAB, cgroups.GROUP_MEMORY: 1 << 30, cgroups.GROUP_CPUS: 1500}
    doors = made.prepare(0x31, wanted)
    assert all("/of-ab/31/" in door for door in doors)
    assert made.prepare(0x32, wanted)[0] != doors[0]
    around = {name: f"{place.base}/of-ab" for name, place in made.shared.items()}
    again = Cgroups()  # as after an upgrade
    assert again._made.keys() == {0x31, 0x32}
    again.forget(0x31)
    assert all(map(os.path.isdir, around.values()))
    again.forget(0x32)
    assert not any(map(os.path.exists, around.values()))
    # What was asked for of one alone is in a group inside.
    inner = again.prepare(0x33, {**wanted, b"memory": 1 << 29})
    assert all("/of-ab/33/" in door for door in inner)
    again.forget(0x33)
    again.close()
    made.close()


# --- through a keeper ---------------------------------------------------------------------------


def test_a_limited_child_is_like_any_other() -> None:
    """The other way to start one gives it the same session, signals, descriptors and directory."""
    look = (
        "import os, signal\n"
        "print(os.getsid(0) == os.getpid() == os.getpgid(0))\n"
        "print(sorted(map(int, os.listdir('/proc/self/fd')))[:3], os.getcwd())\n"
        "print(len(os.listdir('/proc/self/fd')))\n"
        "print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))\n"
        "status = dict(l.split(':', 1) for l in open('/proc/self/status'))\n"
        # Without 32 and 33, which are the C library's own: posix_spawn may leave them ignored.
        "print(int(status['SigIgn'], 16) & ~(3 << 31), status['SigCgt'].strip())\n"
    )
    with embedded() as server:
        said = []
        for limits in ({}, {b"files": 100}):
            child = server.python(look, limits=limits)
            said.append(read_all(child.out))
            server.exit(child)
        assert said[0] == said[1]
        assert said[0].startswith(b"True\n[0, 1, 2]")


def test_a_limited_child_in_a_terminal() -> None:
    with embedded() as server:
        child = server.sh("tty; ulimit -n", mode=messages.MODE_PTY, limits={b"files": 77})
        words = read_all(child.out).split()
        assert words[0].startswith(b"/dev/pts/")
        assert words[1] == b"77"
        server.exit(child)


def test_a_program_that_is_not_there() -> None:
    with embedded() as server:
        for limits in ({}, {b"files": 100}):
            with pytest.raises(Failed) as failed:
                server.spawn(["/nowhere"], limits=limits)
            assert failed.value.errno == 2
        child = server.sh("echo fine", limits={b"files": 100})
        assert read_all(child.out) == b"fine\n"
        server.exit(child)


def test_core_limit_of_children_is_the_one_we_were_given() -> None:
    script = (
        "import resource, sys; sys.path[:0] = {path!r}\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (4096, 8192))\n"
        "from tests.keeper.peer import embedded, read_all\n"
        "with embedded() as server:\n"
        "    child = server.sh('ulimit -S -c; ulimit -H -c')\n"
        "    print(read_all(child.out).split())\n"
        "    limits = open(f'/proc/{{server.keeper}}/limits').read()\n"
        "    print(next(l for l in limits.splitlines() if 'core' in l).split()[4:6])\n"
        "    server.exit(child)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", script.format(path=sys.path)],
        capture_output=True,
        check=True,
        text=True,
    ).stdout.splitlines()
    # In blocks of 512 bytes, as the shell counts them.
    assert said == ["[b'8', b'16']", "['0', '8192']"]


def test_a_daemon_in_a_group_is_found_after_its_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cgroups.CHOICE, "cgroup")
    with embedded() as server:
        child = server.sh("setsid sleep 600 >/dev/null 2>&1 & echo $!")
        daemon = int(read_line(child.out))
        server.exit(child)
        eventually(lambda: server.orphans() == {child.name: 1}, "it is an orphan")
        assert server.signal(child, signal.SIGKILL, messages.SCOPE_TREE) == 1
        eventually(lambda: not exists(daemon), "it is gone and reaped")
