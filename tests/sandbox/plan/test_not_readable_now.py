"""What cannot be looked at for the moment is not taken for gone."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.sandbox.plan.safe_open import Refused
from handrail.sandbox.profile import Access, Profile, Rule
from tests.support.sandboxes import Held


def writable(ws: Path) -> Profile:
    return Profile(rules=(Rule(b"/", Access.READ), Rule(os.fsencode(ws), Access.WRITE)))


def test_a_pointer_that_cannot_be_read_now_is_refused(held: Held, ws: Path) -> None:
    """Else the next command would write where it leads."""
    (ws / ".git").write_text("gitdir: store\n")
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    fd = os.open(ws / ".git", os.O_RDONLY)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with pytest.raises(Refused, match="cannot be read now"):
            held.planner.plan(writable(ws))
    finally:
        os.close(fd)
        signal.signal(signal.SIGIO, before)


def test_a_directory_that_cannot_be_read_now_is_refused(
    held: Held, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without descriptors it looked empty, also to later commands."""
    (ws / "a/repo/.git/x").mkdir(parents=True)
    scandir = os.scandir

    def exhausted(path: bytes) -> Iterator[os.DirEntry[bytes]]:
        if path == os.fsencode(ws / "a"):
            raise OSError(errno.EMFILE, "Too many open files", path)
        return scandir(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", exhausted)
        with pytest.raises(Refused, match="a cannot be read now"):
            held.planner.plan(writable(ws))
    assert os.fsencode(ws / "a/repo/.git") in held.planner.plan(writable(ws)).rules
