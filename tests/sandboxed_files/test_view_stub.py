"""The stub in which a helper begins: it passes its mounts, and becomes the helper."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest

from handrail.keeper.seccomp import spawn as seccomp_spawn
from handrail.sandbox.warm import programs
from handrail.sandboxed_files import view_stub
from handrail.sandboxed_files.frames import GREETING

pytestmark = pytest.mark.skipif(
    os.uname().machine not in view_stub.MACHINES or not seccomp_spawn.startable(),
    reason="there is no stub for this machine",
)


def begun(
    theirs: socket.socket, words: list[str], env: dict[str, str]
) -> subprocess.CompletedProcess[bytes]:
    """A command by the stub."""
    line = theirs.fileno()
    # Its own number is in its code, so it has to be known before there is one.
    number = os.dup(line)
    made = programs.sealed("stub", view_stub.elf(line, number))
    os.dup2(made, number)
    os.close(made)
    try:
        return subprocess.run(
            [f"/proc/self/fd/{number}", *words],
            env=env,
            pass_fds=[line, number],
            capture_output=True,
            check=False,
        )
    finally:
        os.close(number)


def test_it_passes_its_mounts_and_becomes_the_command() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        done = begun(theirs, ["/bin/sh", "-c", 'echo "$0 $1 $A"', "a b", "c"], {"A": "1"})
        assert (done.returncode, done.stdout) == (0, b"a b c 1\n")
        said, passed, _, _ = socket.recv_fds(ours, 16, 4, socket.MSG_CMSG_CLOEXEC)
        assert said == GREETING
        root, namespace = passed
        assert os.path.samestat(os.fstat(root), os.stat("/"))
        assert os.path.samestat(os.fstat(namespace), os.stat("/proc/self/ns/mnt"))
        for fd in passed:
            os.close(fd)


def test_its_command_has_no_descriptor_of_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        done = begun(theirs, ["/bin/ls", "-l", "/proc/self/fd"], {})
        assert b"memfd" not in done.stdout
        assert b"mnt:" not in done.stdout
        assert done.stdout.count(b"socket:") == 1


def test_a_command_that_is_missing_is_its_exit_code() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert begun(theirs, ["/no/such/program"], {}).returncode == 2
