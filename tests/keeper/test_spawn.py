"""What a child finds when it starts, and what is left of one that did not."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.keeper import messages, spawn_thread
from tests.keeper.peer import Failed, Peer, embedded, read_all, read_line
from tests.support.eventually import eventually
from tests.support.processes import alive, children, descriptors, exists, kilobytes, stat, status

ALL_MODES = [messages.MODE_PIPES, messages.MODE_STDIN, messages.MODE_PTY]


# --- streams -------------------------------------------------------------------------------------


def test_pipes_are_apart_and_stdin_is_the_null_device(server: Peer) -> None:
    child = server.sh("echo out; echo err >&2; stat -Lc %t:%T /dev/stdin; wc -c")
    assert read_all(child.out) == b"out\n1:3\n0\n"
    assert read_all(child.err) == b"err\n"
    assert os.waitstatus_to_exitcode(server.exit(child).status) == 0


def test_stdin_is_a_pipe_that_ends_when_both_copies_are_closed(server: Peer) -> None:
    child = server.sh("cat; echo end", mode=messages.MODE_STDIN)
    os.write(child.inp, b"hello\n")
    assert read_line(child.out) == b"hello"
    os.close(child.inp)
    server.settle()
    assert alive(child.pid)  # it still waits: the keeper has a copy
    server.say(messages.DROP, child.name, b"stdin")
    assert read_all(child.out) == b"end\n"
    server.exit(child)


def test_our_ends_do_not_block_and_the_childs_do(server: Peer) -> None:
    child = server.sh("cat", mode=messages.MODE_STDIN)
    for fd in child.fds:
        assert not os.get_blocking(fd)
    for fd in range(3):
        with open(f"/proc/{child.pid}/fdinfo/{fd}") as file:
            flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags"))
        assert not flags & os.O_NONBLOCK


def test_terminal_is_the_controlling_one(server: Peer) -> None:
    child = server.sh("tty; echo to-tty >/dev/tty; sleep 1000", mode=messages.MODE_PTY)
    path = read_line(child.out)
    assert path.startswith(b"/dev/pts/")
    assert read_line(child.out) == b"to-tty"
    found = stat(child.pid)
    assert found["tty_nr"] == os.stat(path).st_rdev
    assert found["tpgid"] == child.pid
    terminal = path.decode()
    eventually(lambda: list(descriptors(child.pid).values()) == [terminal] * 3, "0, 1 and 2")


@pytest.mark.parametrize("size", [(24, 80), (1, 1), (333, 1000), (65535, 65535)])
def test_window_size(server: Peer, size: tuple[int, int]) -> None:
    child = server.sh("stty size", mode=messages.MODE_PTY, size=size)
    assert read_line(child.out) == b"%d %d" % size
    server.exit(child)


@pytest.mark.parametrize("size", [(65536, 80), (24, -1)])
def test_a_size_no_terminal_has_fails_the_spawn_alone(server: Peer, size: tuple[int, int]) -> None:
    before = server.held_open()
    with pytest.raises(Failed) as caught:
        server.sh("true", mode=messages.MODE_PTY, size=size)
    assert caught.value.errno == errno.EINVAL
    assert server.held_open() == before
    server.exit(server.sh("true"))


def test_terminal_is_cooked_and_echoes(server: Peer) -> None:
    child = server.spawn(["/bin/cat"], mode=messages.MODE_PTY)
    os.write(child.out, b"abd\x7fc\n")
    assert read_line(child.out) == b"abd\b \bc"  # the echo
    assert read_line(child.out) == b"abc"  # the line, as edited
    os.write(child.out, b"\x04")
    assert os.waitstatus_to_exitcode(server.exit(child).status) == 0


def test_interrupt_key_reaches_the_foreground_job(server: Peer) -> None:
    child = server.spawn(["/bin/sleep", "1000"], mode=messages.MODE_PTY)
    os.write(child.out, b"\x03")
    assert os.waitstatus_to_exitcode(server.exit(child).status) == -signal.SIGINT


# --- what a child inherits -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", ALL_MODES)
def test_session_and_group_of_its_own(server: Peer, mode: bytes) -> None:
    child = server.spawn(["/bin/sleep", "1000"], mode=mode)
    found = stat(child.pid)
    assert (found["ppid"], found["pgrp"], found["session"]) == (server.keeper, child.pid, child.pid)
    assert bool(found["tty_nr"]) == (mode == messages.MODE_PTY)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_exactly_three_descriptors(mode: bytes) -> None:
    # Inherited by whoever is started by us: the keeper must not pass it on, nor keep it open.
    leak = os.open("/dev/zero", os.O_RDONLY)
    os.set_inheritable(leak, True)
    try:
        with embedded() as server:
            others = [server.spawn(["/bin/sleep", "1000"], mode=m) for m in ALL_MODES]
            child = server.spawn(["/bin/cat"], mode=messages.MODE_STDIN)
            assert len(others) == 3
            probe = server.spawn(["/bin/sleep", "1000"], mode=mode)
            for pid in (child.pid, probe.pid):
                # The loader has libraries open for a moment.
                eventually(
                    lambda pid=pid: sorted(descriptors(pid)) == [0, 1, 2], f"0, 1, 2 of {pid}"
                )
            assert "/dev/zero" not in server.held_open().values()
    finally:
        os.close(leak)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_signals_are_as_at_boot(mode: bytes) -> None:
    """Whatever the server ignores or blocks."""
    ignored = [signal.SIGUSR1, signal.SIGHUP, signal.SIGCHLD, signal.SIGRTMAX]
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGTERM})
    try:
        with embedded() as server:
            child = server.spawn(["/bin/sleep", "1000"], mode=mode)
            found = status(child.pid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)
    private = 0b11 << 31  # 32 and 33 are the C library's: nobody can set them, whoever started us
    for name in ("SigBlk", "SigIgn", "SigCgt", "SigPnd"):
        assert int(found[name], 16) & ~private == 0, name


def test_soft_limit_on_open_files_is_the_servers_and_not_the_keepers() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = 512
    assert low < hard, "this test needs room above 512 descriptors"
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    try:
        with embedded() as server:
            for mode in ALL_MODES:
                child = server.spawn(["/bin/sleep", "1000"], mode=mode)
                assert resource.prlimit(child.pid, resource.RLIMIT_NOFILE) == (low, hard)
                assert resource.prlimit(server.keeper, resource.RLIMIT_NOFILE) == (hard, hard)
            with pytest.raises(Failed):
                server.spawn(["/no/such/path"])
            assert resource.prlimit(server.keeper, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_umask_is_the_servers() -> None:
    before = os.umask(0o027)
    try:
        with embedded() as server:
            child = server.spawn(["/bin/sleep", "1000"])
            assert status(child.pid)["Umask"] == "0027"
    finally:
        os.umask(before)


def test_environment_is_what_was_given_and_nothing_else(server: Peer) -> None:
    env = {"A": "1", "EMPTY": "", "WITH_EQUALS": "a=b=c", "UNICODE": "ü\n2"}
    child = server.spawn(["/usr/bin/env", "-0"], env=env)
    pairs = read_all(child.out).decode().rstrip("\0").split("\0")
    assert dict(pair.split("=", 1) for pair in pairs) == env
    server.exit(child)


def test_directory_is_the_one_that_was_opened(server: Peer, tmp_path: Path) -> None:
    (tmp_path / "program").write_text("#!/bin/sh\npwd -P\n")
    (tmp_path / "program").chmod(0o755)
    child = server.spawn(["./program"], cwd=str(tmp_path))
    assert read_all(child.out) == os.fsencode(os.path.realpath(tmp_path)) + b"\n"
    server.exit(child)
    assert os.readlink(f"/proc/{server.keeper}/cwd") == "/"


def test_argument_list_of_a_megabyte_arrives_exactly(server: Peer) -> None:
    words = [f"{n:06d}" + "x" * 90_000 for n in range(11)] + ["", " ", "ü"]
    program = (
        "import sys,hashlib;print(hashlib.sha256('/'.join(sys.argv[1:]).encode()).hexdigest())"
    )
    child = server.python(program, *words)
    wanted = hashlib.sha256("/".join(words).encode()).hexdigest()
    assert read_all(child.out).decode().strip() == wanted
    server.exit(child)


def test_first_argument_may_differ_from_the_program(server: Peer) -> None:
    child = server.spawn(["-odd", "-c", 'echo "$0"'], program=b"/bin/sh")
    assert read_all(child.out) == b"-odd\n"
    server.exit(child)


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize(
    ("case", "number"),
    [
        ("missing", errno.ENOENT),
        ("directory", errno.EACCES),
        ("not executable", errno.EACCES),
        ("no program", errno.ENOEXEC),
        ("big argument", errno.E2BIG),
        ("big environment", errno.E2BIG),
        ("empty argv0", errno.EINVAL),
        ("no argv", errno.EINVAL),
        ("empty variable name", errno.EINVAL),
    ],
)
def test_failing_spawn_leaves_nothing(
    server: Peer, tmp_path: Path, case: str, number: int, mode: bytes
) -> None:
    plain = tmp_path / "plain"
    plain.write_bytes(b"\x01\x02 no program\n")
    env: dict[str, str] = {}
    argv: list[str | bytes] = ["/bin/true"]
    if case == "missing":
        argv = ["/no/such/path/program"]
    elif case == "directory":
        argv = [str(tmp_path)]
    elif case == "not executable":
        argv = [str(plain)]
    elif case == "no program":
        plain.chmod(0o755)
        argv = [str(plain)]
    elif case == "big argument":
        argv = ["/bin/true", "x" * 200_000]
    elif case == "big environment":
        env = {f"V{n}": "x" * 100_000 for n in range(40)}
    elif case == "no argv":
        argv = []
    elif case == "empty argv0":
        argv = [""]
    elif case == "empty variable name":
        env = {"": "x"}
    before = server.held_open()
    with pytest.raises(Failed) as caught:
        server.spawn(argv, mode=mode, env=env, program=None if argv else b"/bin/true")
    assert caught.value.errno == number
    assert server.held_open() == before
    assert children(server.keeper) == set()
    assert os.readlink(f"/proc/{server.keeper}/cwd") == "/"
    good = server.spawn(["/bin/true"], mode=mode)  # and the next one works, under the same name
    assert server.exit(good).status == 0


def test_a_name_that_is_taken_is_refused_and_the_child_kept(server: Peer) -> None:
    child = server.spawn(["/bin/sleep", "1000"], name=b"same")
    with pytest.raises(Failed) as caught:
        server.spawn(["/bin/sleep", "1000"], name=b"same")
    assert caught.value.errno == errno.EEXIST
    assert children(server.keeper) == {child.pid}
    assert server.signal(child, signal.SIGKILL, messages.SCOPE_LEADER) == 1
    server.exit(child)


@pytest.fixture
def crowded() -> Iterator[Peer]:
    """The server of a keeper that does not change its limit on open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with embedded() as peer:
            yield peer
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("spare", range(1, 14, 2))
def test_no_descriptor_free_in_the_keeper_fails_spawns_and_nothing_else(
    crowded: Peer, spare: int
) -> None:
    server = crowded
    first = server.sh("(setsid sleep 1000 & echo $!); exec sleep 1000")
    escaped = int(read_line(first.out))
    held = [first]
    top = len(server.held_open()) + spare  # without holes: the numbers are dense
    _, hard = resource.prlimit(server.keeper, resource.RLIMIT_NOFILE)
    resource.prlimit(server.keeper, resource.RLIMIT_NOFILE, (top, hard))
    failed = None
    for mode in ALL_MODES * 2:
        try:
            held.append(server.spawn(["/bin/sleep", "1000"], mode=mode))
        except Failed as error:
            failed = error
    assert failed is not None
    assert failed.errno == errno.EMFILE
    # What failed does not run, what runs is known and can still be ended.
    running = {child.pid for child in held} | {escaped}
    eventually(lambda: children(server.keeper) == running, "no child that nobody knows")
    eventually(lambda: not children(first.pid), "the one between the two is reaped")
    assert server.orphans() == {first.name: 1}
    assert server.signal(first, signal.SIGKILL, messages.SCOPE_TREE) == 2
    server.exit(first)
    eventually(lambda: not exists(escaped), "the daemon is found as well")
    for child in held[1:]:
        assert server.signal(child, signal.SIGKILL, messages.SCOPE_TREE) == 1
        server.exit(child)
    server.say(messages.FORGET, *(child.name for child in held))
    resource.prlimit(server.keeper, resource.RLIMIT_NOFILE, (top + 8, hard))
    server.exit(server.sh("true", mode=messages.MODE_STDIN))  # and there is room again


# --- ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 255", 255), ("kill -9 $$", -9), ("kill -TERM $$", -15)],
)
def test_exit_status(server: Peer, mode: bytes, script: str, code: int) -> None:
    child = server.sh(script, mode=mode)
    assert os.waitstatus_to_exitcode(server.exit(child).status) == code
    assert server.listing()[child.name][:2] == (child.pid, server.exits[child.name].status)


#: Traces a process and leaves its status to be taken until a line comes.
_TRACER = """
import ctypes, os, sys
pid = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
if libc.ptrace(0x4206, pid, 0, 0):  # PTRACE_SEIZE
    sys.exit("refused")
print("traced", flush=True)
sys.stdin.readline()
os.waitpid(pid, 0x40000000)  # __WALL
"""


def test_a_leader_whose_status_a_debugger_holds_stops_no_other(server: Peer) -> None:
    child = server.spawn(["/bin/sleep", "1000"])
    with subprocess.Popen(
        [sys.executable, "-c", _TRACER, str(child.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as tracer:
        assert tracer.stdout is not None
        if tracer.stdout.readline() != "traced\n":
            pytest.skip("no process may be traced here")
        signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
        for code in (3, 4):  # it has ended before the second at the latest
            assert server.exit(server.sh(f"exit {code}")).status == code << 8
        assert child.name not in server.exits
        tracer.communicate("\n")
    assert os.waitstatus_to_exitcode(server.exit(child).status) == -signal.SIGKILL


def test_usage_is_the_kernels(server: Peer) -> None:
    child = server.python(
        "import time\nx = b'x' * (64 << 20)\nwhile time.process_time() < 0.1: pass"
    )
    usage = server.exit(child)
    assert usage.user_ms + usage.system_ms >= 99
    assert usage.max_rss >= 64 << 20


def test_pidfd_is_the_childs(server: Peer) -> None:
    child = server.spawn(["/bin/sleep", "1000"])
    signal.pidfd_send_signal(child.pidfd, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(server.exit(child).status) == -signal.SIGTERM


def test_release_and_forget_close_what_is_held(server: Peer) -> None:
    before = server.held_open()
    held = [server.sh("true", mode=mode) for mode in ALL_MODES]
    for child in held:
        server.exit(child)
    spool = os.memfd_create("spool")
    for child in held:
        server.say(messages.KEEP, child.name, b"spool.stdout", fds=(spool,))
        server.say(
            messages.KEEP, child.name, b"spool.stdout", fds=(spool,)
        )  # in place of the first
    os.close(spool)
    assert len(server.held_open()) == len(before) + 2 + 3 + 1 + 3
    server.say(messages.RELEASE, *(child.name for child in held))
    assert {name: list(fds) for name, (_, _, fds) in server.listing().items()} == {
        child.name: [b"spool.stdout"] for child in held
    }
    server.say(messages.FORGET, *(child.name for child in held))
    assert server.listing() == {}
    assert server.held_open() == before


def test_keeper_stays_small_with_five_hundred_children(server: Peer) -> None:
    for _ in range(500):
        server.say_spawn(["/bin/sleep", "1000"])
    held = [server.spawned() for _ in range(500)]
    assert len(children(server.keeper)) == 500
    assert kilobytes(server.keeper, "VmRSS") <= 16 * 1024
    for child in held:
        assert server.signal(child, signal.SIGKILL, messages.SCOPE_LEADER) == 1
    for child in held:
        server.exit(child)
    server.say(messages.FORGET, *(child.name for child in held))
    server.settle()
    assert kilobytes(server.keeper, "VmRSS") <= 16 * 1024
    assert children(server.keeper) == set()
    assert len(server.held_open()) < 16


def test_a_start_without_a_thread_left_is_made_by_the_keeper_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(spawn_thread, "_started", None)
    monkeypatch.setattr(threading.Thread, "start", refused)
    before = descriptors(os.getpid())
    assert spawn_thread.get() is None
    assert descriptors(os.getpid()) == before
    assert spawn_thread._started is None  # the next start looks again


def test_a_use_that_is_no_question_gets_no_answer(server: Peer) -> None:
    """Its sandbox shows by itself what became of it."""
    unknown = messages.Use(b"7", 24, 80, b"", b"/", [b"true"], {}, {})
    messages.send(server.sock, messages.USE, 0, unknown.pack())
    assert server.ask(messages.WHO).op == messages.DONE
    assert server.ask(messages.USE, *unknown.pack()).op == messages.FAILED
