"""The host's devices as streams of a command that is sandboxed as root: it cannot change them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from handrail.keeper import sealed_device
from tests.cli.user import HANDRAIL

#: Tries to change each stream, and leaves which of them it could.
CHANGE = """
import os
changed = []
streams = [what for fd in range(3) for what in (fd, f"/proc/self/fd/{fd}")]
for what in (*streams, "/dev/null", "/dev/full", "/dev/tty"):
    try:
        os.utime(what, (1, 1))
        changed.append(what)
    except OSError as error:
        assert error.errno in (1, 30), error
assert os.write(os.open("/dev/null", os.O_RDWR | os.O_CREAT | os.O_TRUNC), b"x") == 1
open("changed", "w").write(str((changed, [os.fstat(fd).st_rdev for fd in range(3)])))
"""

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(os.geteuid() != 0, reason="others do not own the host's devices"),
]


@pytest.mark.parametrize("verb", ["run", "sandbox"])
def test_of_the_command_line(verb: str, tmp_path: Path) -> None:
    with open(os.devnull, "r+b") as null, open("/dev/full", "wb") as full:
        words = [*HANDRAIL, verb, "--", "python3", "-Ic", CHANGE]
        done = subprocess.run(
            words, check=False, stdin=null, stdout=full, stderr=null, cwd=tmp_path
        )
    assert done.returncode == 0
    devices = [os.stat(path).st_rdev for path in ("/dev/null", "/dev/full", "/dev/null")]
    assert (tmp_path / "changed").read_text() == str(([], devices))


def test_a_sealed_device_is_the_device() -> None:
    fd = sealed_device.opened(flags=os.O_RDWR)
    try:
        assert (os.write(fd, b"x"), os.read(fd, 1)) == (1, b"")
        assert os.path.samestat(os.fstat(fd), os.stat(os.devnull))
        assert not os.get_inheritable(fd)
        with pytest.raises(OSError, match="Read-only"):
            os.fchmod(fd, 0o666)
    finally:
        os.close(fd)
    mounts = [int(path.rsplit(b"/", 1)[1]) for path in sealed_device._sealed.values()]
    assert not any(map(os.get_inheritable, mounts))
