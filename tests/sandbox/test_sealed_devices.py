"""Root's sandboxed commands cannot change the host's devices, as stdin or in /dev."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from handrail import Workspace
from handrail.keeper import null_device

#: Tries to change each, and prints which it could.
CHANGE = """
import os
changed = []
for what in (0, "/proc/self/fd/0", "/dev/null", "/dev/full", "/dev/tty"):
    try:
        os.utime(what, (1, 1))
        changed.append(what)
    except OSError as error:
        assert error.errno in (1, 30), error
assert os.write(os.open("/dev/null", os.O_RDWR | os.O_CREAT | os.O_TRUNC), b"x") == 1
print(changed, os.fstat(0).st_rdev)
"""

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(os.geteuid() != 0, reason="others do not own the host's devices"),
]


def test_of_a_workspace(tmp_path: Path) -> None:
    with Workspace(tmp_path) as ws:
        for _ in range(4):  # cold, then copied
            done = ws.run(["python3", "-Ic", CHANGE], check=True)
            assert done.stdout == f"[] {os.stat(os.devnull).st_rdev}\n"


def test_a_null_device_is_the_device() -> None:
    fd = null_device.opened()
    try:
        assert os.read(fd, 1) == b""
        assert os.path.samestat(os.fstat(fd), os.stat(os.devnull))
        assert not os.get_inheritable(fd)
        with pytest.raises(OSError, match="Read-only"):
            os.fchmod(fd, 0o666)
    finally:
        os.close(fd)
    assert not os.get_inheritable(int(null_device._path[0].rsplit(b"/", 1)[1]))
