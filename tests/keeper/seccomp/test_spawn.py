"""Children whose calls are announced: the filter is there before the program, the listener here."""

from __future__ import annotations

import errno
import os
import platform
import resource
import select
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from handrail.keeper import messages
from handrail.keeper.seccomp import MACHINES
from handrail.keeper.seccomp import spawn as seccomp_spawn
from handrail.keeper.seccomp import stub as seccomp_stub
from handrail.sandbox.syscalls import notify, seccomp_filter
from handrail.sandbox.syscalls.pending_calls import PendingCalls
from tests.keeper.peer import Failed, Peer, embedded
from tests.support.eventually import LIMIT

#: Says how its first connect went.
CONNECT = """
import socket
print(socket.socket().connect_ex(("127.0.0.1", 9)), flush=True)
"""


@contextmanager
def program(text: bytes | None = None) -> Iterator[dict[int, int]]:
    """The program that announces ``connect``, as it is passed."""
    fd = os.memfd_create("program")
    os.write(
        fd, seccomp_filter.announcing(platform.machine(), watch=False) if text is None else text
    )
    try:
        yield {seccomp_spawn.PROGRAM: fd}
    finally:
        os.close(fd)


def answered(listener: int, error: int) -> notify.Notification:
    """The next call that is announced, answered."""
    assert select.select([listener], [], [], LIMIT)[0]
    calls = PendingCalls()
    taken = calls.take(listener)
    calls.close()
    assert taken is not None
    assert notify.answer(listener, taken[1], error)
    return taken[1]


@pytest.mark.parametrize("mode", [messages.MODE_PIPES, messages.MODE_STDIN, messages.MODE_PTY])
def test_calls_are_answered_by_whoever_has_the_listener(server: Peer, mode: bytes) -> None:
    with program() as passed:
        child = server.python(CONNECT, passed=passed, mode=mode)
    listener = child.fds[-1]
    notice = answered(listener, errno.EXDEV)
    assert notice.call == seccomp_filter.connect_number(platform.machine())
    assert notice.pid == child.pid
    assert server.exit(child).status == 0
    assert os.read(child.out, 100).split() == [b"%d" % errno.EXDEV]


def test_the_listener_is_held_for_the_next_server_until_the_streams_end(server: Peer) -> None:
    with program() as passed:
        child = server.spawn(["/bin/sleep", "1000"], passed=passed)
    held = server.listing()[child.name][2]
    assert {b"stdout", b"stderr", b"listener"} <= held.keys()
    for fd in held.values():
        os.close(fd)
    server.signal(child, 9, messages.SCOPE_TREE)
    server.exit(child)
    server.say(messages.RELEASE, child.name)
    assert server.listing()[child.name][2] == {}
    server.say(messages.FORGET, child.name)


def test_a_program_that_is_none_fails_the_spawn(server: Peer) -> None:
    for _ in range(2):  # what it is started by is made the first time, and kept
        before = server.held_open()
        with program(b"\xff" * 8) as passed, pytest.raises(Failed) as caught:
            server.spawn(["/bin/true"], passed=passed)
        assert caught.value.errno == errno.EINVAL
    assert server.held_open() == before


def test_a_program_that_is_not_there_is_told(server: Peer) -> None:
    """By the exit code, or by a failed spawn where the child enters a group."""
    with program() as passed:
        server.say_spawn(["/no/such/program"], passed=passed)
    try:
        number = os.waitstatus_to_exitcode(server.exit(server.spawned()).status)
    except Failed as failed:
        number = failed.errno
    assert number == errno.ENOENT


def test_a_forked_child_is_announced_as_well(server: Peer) -> None:
    """One that has limits, and on machines for which there is no prelude."""
    with program() as passed:
        child = server.python(CONNECT, passed=passed, limits={b"files": 32})
    answered(child.fds[-1], errno.EXDEV)
    assert server.exit(child).status == 0
    assert os.read(child.out, 100).split() == [b"%d" % errno.EXDEV]
    with program(b"\xff" * 8) as passed, pytest.raises(Failed) as caught:
        server.spawn(["/bin/true"], passed=passed, limits={b"files": 32})
    assert caught.value.errno == errno.EINVAL


@pytest.mark.skipif(platform.machine() not in MACHINES, reason="no such program for this machine")
@pytest.mark.parametrize("limits", [{}, {b"files": 32}], ids=["spawned", "forked"])
def test_a_program_that_installs_its_filter_itself(server: Peer, limits: dict[bytes, int]) -> None:
    code = seccomp_filter.announcing(platform.machine(), watch=False)
    fd = seccomp_spawn.executable("filters", seccomp_stub.elf(code, seccomp_spawn.ITS_LINE))
    os.fchmod(fd, 0o700)
    readable = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)  # it may be executed
    os.close(fd)
    passed = {8: readable, seccomp_spawn.ITSELF: readable}
    try:
        child = server.python(CONNECT, passed=passed, program=b"/proc/self/fd/8", limits=limits)
    finally:
        os.close(readable)
    answered(child.fds[-1], errno.EXDEV)
    assert server.exit(child).status == 0
    assert os.read(child.out, 100).split() == [b"%d" % errno.EXDEV]


def test_the_program_finds_its_arguments_and_nothing_of_ours(server: Peer) -> None:
    script = "echo $0 $1 $X; ls /proc/self/fd; grep NoNewPrivs /proc/self/status; exit 3"
    argv: list[str | bytes] = ["/bin/sh", "-c", script, "zero", "one"]
    with program() as passed:
        child = server.spawn(argv, passed=passed, env={"X": "y", "PATH": "/usr/bin:/bin"})
    assert os.waitstatus_to_exitcode(server.exit(child).status) == 3
    said = os.read(child.out, 500).split()
    assert said == [b"zero", b"one", b"y", b"0", b"1", b"2", b"3", b"NoNewPrivs:", b"1"]


def test_only_the_child_has_the_lower_limit() -> None:
    """The keeper may have more descriptors open than a child may: that must not fail its start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, hard))
    try:
        with embedded() as server, program() as passed:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            held = [server.spawn(["/bin/sleep", "1000"]) for _ in range(40)]
            child = server.sh("ulimit -n; ls /proc/self/fd | wc -l", passed=passed)
            assert server.exit(child).status == 0
            assert os.read(child.out, 100).split() == [b"40", b"4"]  # and the one that lists
            for one in held:
                server.signal(one, 9, messages.SCOPE_TREE)
                server.exit(one)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
