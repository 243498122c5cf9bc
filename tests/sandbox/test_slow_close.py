"""Descriptors that another thread closes."""

from __future__ import annotations

import os
from pathlib import Path

from handrail.sandbox.slow_close import close_later
from tests.support.eventually import eventually


def is_open(fd: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}")


def test_all_are_closed_however_often() -> None:
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(300)]
    for index in range(0, 300, 3):
        close_later(fds[index : index + 3])
    eventually(lambda: not any(map(is_open, fds)), "closed by the thread")


def test_a_removed_directory_is_gone_at_once(tmp_path: Path) -> None:
    (tmp_path / "removed").mkdir()
    fd = os.open(tmp_path / "removed", os.O_PATH)
    os.rmdir(tmp_path / "removed")
    close_later([fd])
    assert os.listdir(tmp_path) == []
    eventually(lambda: not is_open(fd), "closed")


def test_a_fork_closes_what_waits_in_it() -> None:
    """The thread is in the parent alone; each process has its own descriptors."""
    close_later([os.open("/dev/null", os.O_RDONLY)])
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(50)]
    close_later(fds)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if not any(map(is_open, fds)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    eventually(lambda: not any(map(is_open, fds)), "closed here, too")
