"""Children that enter control groups without a fork of the interpreter."""

from __future__ import annotations

import errno
import os
import platform
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.keeper import fork, messages
from handrail.keeper.limits import cgroups, group_spawn
from handrail.keeper.seccomp import MACHINES
from handrail.keeper.seccomp import spawn as seccomp_spawn
from handrail.sandbox.syscalls import seccomp_filter
from tests.keeper.peer import Failed, Peer, embedded, read_all
from tests.support.processes import children

CODE = seccomp_filter.announcing(platform.machine(), watch=False)
ALL = sorted(int(s) for s in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})

by_program = pytest.mark.skipif(
    platform.machine() not in MACHINES, reason="children are forked here"
)


def posix_spawn(
    program: bytes | int,
    argv: list[bytes],
    env: dict[bytes, bytes],
    actions: seccomp_spawn.Actions,
    signals: list[int],
) -> int:
    path = b"/proc/self/fd/%d" % program if isinstance(program, int) else program
    return os.posix_spawn(path, argv, env, file_actions=actions, setsid=True, setsigdef=signals)


@pytest.fixture(autouse=True)
def own_programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The programs that are kept go with the test."""
    kept: dict[tuple[bytes, int, int], int] = {}
    monkeypatch.setattr(seccomp_spawn, "_preludes", kept)
    yield
    for fd in kept.values():
        os.close(fd)


@pytest.fixture
def no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter must not be forked."""

    def forked(*_: object) -> tuple[int, int]:
        raise AssertionError("forked")

    monkeypatch.setattr(fork, "start", forked)


def started(
    argv: list[bytes], doors: list[str], code: bytes = b"", program: bytes | None = None
) -> tuple[int, bytes]:
    """The exit code and the output of a program that was started with these doors."""
    ours, theirs = os.pipe()
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, b"/dev/null", 0, 0),
        (os.POSIX_SPAWN_DUP2, theirs, 1),
        (os.POSIX_SPAWN_DUP2, theirs, 2),
    ]
    env = {b"PATH": b"/usr/bin:/bin"}
    before = fork.Before(doors, code=code)
    try:
        pid, listener = group_spawn.start(
            program or argv[0], argv, env, actions, ALL, before, posix_spawn
        )
        assert (listener >= 0) is bool(code)
        if listener >= 0:
            os.close(listener)
    finally:
        os.close(theirs)
        with open(ours, "rb") as file:
            said = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said


@by_program
@pytest.mark.usefixtures("no_fork")
@pytest.mark.parametrize("code", [b"", CODE], ids=["plain", "filtered"])
@pytest.mark.parametrize("doors", [1, 3])
def test_doors_are_written_to_before_the_program_runs(
    tmp_path: Path, code: bytes, doors: int
) -> None:
    files = [tmp_path / str(n) for n in range(doors)]
    for file in files:
        file.touch()
    script = b"cat %b; ls /proc/self/fd; echo $0 $1; exit 3" % b" ".join(map(os.fsencode, files))
    done = started([b"name", b"-c", script, b"a", b"b"], list(map(str, files)), code, b"/bin/sh")
    # 3 is that of the listing.
    assert done == (3, b"0" * doors + b"0\n1\n2\n3\na b\n")


@by_program
@pytest.mark.usefixtures("no_fork")
@pytest.mark.parametrize("code", [b"", CODE], ids=["plain", "filtered"])
@pytest.mark.parametrize(
    ("program", "door", "number"),
    [
        ("/no/such/program", "/dev/null", errno.ENOENT),
        ("/", "/dev/null", errno.EACCES),
        ("/etc/passwd", "/dev/null", errno.EACCES),
        ("/bin/sh", "/dev/full", errno.ENOSPC),
    ],
)
def test_the_error_is_that_of_the_step_that_failed(
    program: str, door: str, number: int, code: bytes
) -> None:
    before = children()
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        started([os.fsencode(program)], [door], code)
    assert caught.value.errno == number
    assert children() == before


@by_program
@pytest.mark.usefixtures("no_fork")
def test_a_filter_that_is_none_is_told() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        started([b"/bin/true"], ["/dev/null"], b"\xff" * 8)


def test_what_the_program_cannot_do_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert started([b"/bin/true"], ["/dev/null"]) == (0, b"")
    monkeypatch.setattr(seccomp_spawn, "_startable", [False])
    assert started([b"/bin/true"], ["/dev/null"]) == (0, b"")
    with pytest.raises(FileNotFoundError):
        started([b"/bin/true"], ["/no/such/door"])


def test_one_that_cannot_be_started_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where memory may not be executed, or with as many arguments as the kernel takes."""

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "refused")

    monkeypatch.setitem(globals(), "posix_spawn", refuse)
    assert started([b"/bin/true"], ["/dev/null"]) == (0, b"")


# --- through a keeper ---------------------------------------------------------------------------


@pytest.fixture
def grouped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    """The server of a keeper whose children all have groups."""
    monkeypatch.setenv(cgroups.CHOICE, "cgroup")
    groups = cgroups.Cgroups()
    groups.close()
    if groups.kills is None:
        pytest.skip("no control group is delegated to us on this machine")
    with embedded() as server:
        yield server


@pytest.mark.parametrize("mode", [messages.MODE_PIPES, messages.MODE_STDIN, messages.MODE_PTY])
def test_the_program_is_in_its_group(grouped: Peer, mode: bytes) -> None:
    child = grouped.sh("grep ^0: /proc/self/cgroup", mode=mode)
    assert cgroups.name_of(grouped.keeper).encode() in read_all(child.out)
    assert grouped.exit(child).status == 0


def test_a_child_in_a_group_is_like_any_other(grouped: Peer) -> None:
    look = (
        "import os, signal\n"
        "print(os.getsid(0) == os.getpid() == os.getpgid(0), os.getcwd())\n"
        "print(sorted(map(int, os.listdir('/proc/self/fd'))))\n"
        "status = dict(l.split(':', 1) for l in open('/proc/self/status'))\n"
        "print(status['SigBlk'].strip(), int(status['SigIgn'], 16) & ~(3 << 31))\n"
        "print(status['SigCgt'].strip(), status['NoNewPrivs'].strip())\n"
        "print(open('/proc/self/limits').read().replace(str(os.getpid()), ''))\n"
    )
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cgroups.CHOICE, "walk")
        with embedded() as plain:
            for server in (grouped, plain):
                child = server.python(look)
                lines = read_all(child.out).splitlines()
                # The tag is another for each child.
                said.append([line for line in lines if not line.startswith(b"Max file locks")])
                server.exit(child)
    assert said[0] == said[1]
    assert said[0][:2] == [b"True /", b"[0, 1, 2, 3]"]


def test_it_has_a_name_of_its_own_and_may_be_missing(grouped: Peer) -> None:
    before = grouped.held_open()
    child = grouped.spawn(["name", "-c", "echo $0"], program=b"/bin/sh")
    assert read_all(child.out) == b"name\n"
    grouped.exit(child)
    grouped.say(messages.FORGET, child.name)
    with pytest.raises(Failed) as caught:
        grouped.spawn(["name"], program=b"/no/such/program")
    assert caught.value.errno == errno.ENOENT
    assert grouped.held_open() == before
