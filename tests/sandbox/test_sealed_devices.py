"""Root's sandboxed commands cannot change the host's devices, as stdin or in /dev."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from handrail import Workspace
from handrail.keeper import null_device
from handrail.sandbox.bwrap import mounter

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


@pytest.mark.parametrize("beside", [True, False])
def test_where_other_programs_make_the_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """Of many places, which are mounted beside bwrap or before it."""
    monkeypatch.setenv("HANDRAIL_WARM", "off")
    if not beside:
        monkeypatch.setattr(mounter, "works", lambda bwrap: False)
    for number in range(60):
        (tmp_path / f"r{number}" / ".git").mkdir(parents=True)
    with Workspace(tmp_path) as ws:
        mounts = ws.run(["cat", "/proc/self/mountinfo"], check=True).stdout.splitlines()
    places = {line.split()[4]: line.split()[5].split(",") for line in mounts}
    assert f"{tmp_path}/r7/.git" in places
    devices = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
    assert {place: places[place][0] for place in devices} == dict.fromkeys(devices, "ro")
