"""The stub becomes its command just as bwrap and the C library would start it."""

from __future__ import annotations

import os
import platform
import resource
import socket
import subprocess
from pathlib import Path

import pytest

from handrail.keeper import waiting_stub
from handrail.keeper.seccomp import spawn as seccomp_spawn

pytestmark = pytest.mark.skipif(
    platform.machine() not in waiting_stub.MACHINES or not seccomp_spawn.startable(),
    reason="there is none for it",
)

#: Beyond those that the test has open.
READY, LINE, PROGRAM = 220, 221, 222
ENV = {b"PATH": b"/nowhere:/usr/bin:/bin"}


class Stub:
    """A stub that waits, outside of any sandbox."""

    def __init__(self) -> None:
        program = seccomp_spawn.executable("stub", waiting_stub.elf(READY, LINE, PROGRAM))
        self.line, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours, theirs = socket.socketpair()
        ours.send(b"\n")
        ours.shutdown(socket.SHUT_WR)
        self.out, out = os.pipe2(os.O_CLOEXEC)
        copies = [os.dup(fd) for fd in (theirs.fileno(), far.fileno(), program)]
        numbers = (READY, LINE, PROGRAM)
        self.pid = os.posix_spawn(
            f"/proc/self/fd/{program}",
            ["stub"],
            {},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, out, 1),
                (os.POSIX_SPAWN_DUP2, out, 2),
                *((os.POSIX_SPAWN_DUP2, fd, n) for fd, n in zip(copies, numbers, strict=True)),
            ],
        )
        for fd in (*copies, program, out):
            os.close(fd)
        far.close()
        theirs.close()
        with ours:
            assert ours.recv(1) == b""  # it has read the byte, and waits

    def end(self) -> tuple[int, bytes]:
        self.line.close()
        with open(self.out, "rb") as file:
            said = file.read()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), said


def became(
    argv: list[bytes],
    env: dict[bytes, bytes] = ENV,
    directory: bytes = b"/",
    limits: dict[int, tuple[int, int]] | None = None,
) -> tuple[int, bytes]:
    stub = Stub()
    stub.line.send(waiting_stub.request(argv, env, directory, limits or {}, terminal=False))
    return stub.end()


def test_words_variables_directory_and_descriptors() -> None:
    assert became([b"printf", b"%s|", b"a b", b"", b"\xff"]) == (0, b"a b||\xff|")
    assert became([b"env"], {**ENV, b"A": b"1=2"}, b"/etc") == (
        0,
        b"PATH=/nowhere:/usr/bin:/bin\nA=1=2\nPWD=/etc\n",
    )
    assert became([b"/bin/pwd"], {}, b"/usr") == (0, b"/usr\n")
    left = became([b"/bin/sh", b"-c", b"cd /proc/self/fd; echo *"])[1].split()
    assert not {b"%d" % fd for fd in (READY, LINE, PROGRAM)} & set(left)


def test_limits() -> None:
    limits = {resource.RLIMIT_NOFILE: (77, 99), resource.RLIMIT_FSIZE: (1024, 1024)}
    script = b"ulimit -Sn; ulimit -Hn; ulimit -f"
    assert became([b"bash", b"-c", script], limits=limits) == (0, b"77\n99\n1\n")


def test_end_of_the_line_is_its_end() -> None:
    assert Stub().end() == (1, b"")


@pytest.mark.parametrize(
    "case", ["plain", "missing", "closed", "directory", "script", "later", "slash", "no path"]
)
def test_a_program_is_found_and_missed_as_by_bwrap(tmp_path: Path, case: str) -> None:
    """bwrap is the judge, in the same directory and with the same PATH."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    path, program, directory = f"{one}:{two}:/usr/bin:/bin", "prog", str(two)
    if case == "closed":
        (one / "prog").write_text("#!/bin/sh\necho closed\n")
    elif case == "directory":
        directory = str(tmp_path / "gone")
    elif case in ("script", "slash", "plain"):
        (two / "prog").write_text(("#!/bin/sh\n" if case == "plain" else "") + 'echo "$0" "$1"\n')
        (two / "prog").chmod(0o755)
        program = "./prog" if case == "slash" else "prog"
    elif case == "later":
        (one / "prog").write_text("")
        (two / "prog").symlink_to("/bin/echo")
    env = {} if case == "no path" else {"PATH": path}
    program = "true" if case == "no path" else program
    variables = [word for item in env.items() for word in ("--setenv", *item)]
    argv = ["bwrap", "--bind", "/", "/", "--clearenv", *variables, "--chdir", directory, "--"]
    told = subprocess.run(
        [*argv, program, "x"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    words = [os.fsencode(program), b"x"]
    given = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
    assert became(words, given, os.fsencode(directory)) == (told.returncode, told.stdout)
