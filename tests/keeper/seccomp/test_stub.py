"""The bytes of the prelude, as another reader of executables sees them."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from handrail.keeper import RLIMIT_LOCKS
from handrail.keeper.seccomp import MACHINES
from handrail.keeper.seccomp import spawn as seccomp_spawn
from handrail.keeper.seccomp import stub as seccomp_stub
from handrail.sandbox.syscalls import seccomp_filter

CODE = seccomp_filter.announcing("x86_64", watch=False)


@pytest.mark.parametrize("doors", [0, 2])
def test_parts_lie_where_the_head_says(doors: int) -> None:
    program = seccomp_stub.elf(CODE, 77, doors=doors)
    assert program[:4] == b"\x7fELF"
    entry, table = struct.unpack_from("<QQ", program, 24)
    size, count = struct.unpack_from("<HH", program, 54)
    parts = [struct.unpack_from("<IIQQQQQQ", program, table + n * size) for n in range(count)]
    (_, run, start, at, _, length, memory, align), (_, write, start2, at2, _, length2, _, _) = parts
    assert (run, write) == (5, 6)  # nothing is both written and run
    assert (start, length, memory) == (0, start2, length)
    assert at <= entry < at + length
    assert start2 + length2 == len(program)
    assert at2 % align == start2 % align
    assert program.endswith(CODE)


@pytest.mark.skipif(platform.machine() not in MACHINES, reason="there is none for it")
def test_without_a_line_it_says_so_and_runs_nothing(tmp_path: Path) -> None:
    place = tmp_path / "prelude"
    place.write_bytes(seccomp_stub.elf(CODE, 200))
    place.chmod(0o755)
    done = subprocess.run(
        [shutil.which("touch") or "touch", str(tmp_path / "made")], executable=place, check=False
    )
    assert os.strerror(done.returncode) == "Bad file descriptor"
    assert not (tmp_path / "made").exists()


@pytest.mark.skipif(platform.machine() not in MACHINES, reason="there is none for it")
def test_tag_is_the_soft_limit_of_the_program_and_the_hard_one_stays() -> None:
    tag = 0x1234_5678 << 24
    hard = resource.getrlimit(RLIMIT_LOCKS)[1]
    argv = [b"/bin/sh", b"-c", b"grep locks /proc/self/limits"]
    ours, theirs = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, theirs, 1)]
    pid, listener = seccomp_spawn.start(
        argv, {}, actions, (), CODE, made=lambda code, line: seccomp_stub.elf(code, line, tag)
    )
    os.close(theirs)
    with open(ours, "rb") as file:
        words = file.read().split()
    os.waitpid(pid, 0)
    os.close(listener)
    shown = b"unlimited" if hard == resource.RLIM_INFINITY else b"%d" % hard
    assert words[3:5] == [b"%d" % tag, shown]
    assert resource.getrlimit(RLIMIT_LOCKS)[0] != tag
