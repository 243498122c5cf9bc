"""Ending what a dead keeper has left, and nobody else."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from pathlib import Path

from handrail.server.recovery import orphan_sweep
from tests.support.processes import alive, ended

#: Of this test process alone: others run at the same time, and each ends what bears its mark.
MARK = (0x1000_0000 + (os.getpid() << 4)) << 24


def marked(mark: int) -> subprocess.Popen[bytes]:
    """A process that bears a mark, as a keeper gives it."""
    process = subprocess.Popen(["/bin/sleep", "600"])
    resource.prlimit(process.pid, 10, (mark, resource.RLIM_INFINITY))  # of file locks
    return process


def test_those_with_the_mark_are_ended(tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    ours, other = [marked(MARK + 5), marked(MARK + 6)], marked(MARK + (1 << 24))
    try:
        orphan_sweep.remember(directory, MARK)
        orphan_sweep.remember(directory, MARK)
        assert orphan_sweep.end(directory) >= 2
        assert all(ended(process.pid) for process in ours)
        assert alive(other.pid)
        assert not (tmp_path / "marks").exists()
        assert orphan_sweep.end(directory) == 0
    finally:
        for process in (*ours, other):
            process.kill()
            process.wait()
        os.close(directory)


def test_an_orderly_end_leaves_nothing_to_look_for(tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    process = marked(MARK + 7)
    try:
        orphan_sweep.remember(directory, MARK)
        orphan_sweep.forget(directory)
        orphan_sweep.forget(directory)
        assert orphan_sweep.end(directory) == 0
        assert alive(process.pid)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        os.close(directory)


def test_what_other_keepers_left_is_ended_but_for_what_was_given_on(tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    other, found = MARK, MARK + (9 << 24)
    lost, given, own = marked(other + 1), marked(other + 2), marked(found + 1)
    try:
        for mark in (other, found, found):
            orphan_sweep.remember(directory, mark)
        assert orphan_sweep.end_others(directory, found, {other + 2, found + 1}) == 1
        assert ended(lost.pid)
        assert alive(given.pid)
        assert alive(own.pid)
        # Should both be killed later, the family that was given on is still known by its mark.
        assert (tmp_path / "marks").read_text().split() == [str(other), str(found)]
        assert orphan_sweep.end_others(directory, found, {found + 1}) == 1
        assert ended(given.pid)
        assert (tmp_path / "marks").read_text().split() == [str(found)]
    finally:
        for process in (lost, given, own):
            process.kill()
            process.wait()
        os.close(directory)


def test_a_mark_that_was_cut_short_ends_nobody(tmp_path: Path) -> None:
    """It would be a small number, and other processes may have that as their limit."""
    directory = os.open(tmp_path, os.O_RDONLY)
    process = marked(4096)
    try:
        for text in ("12", "0", "9" * 5000, f"7\n{MARK}\n"):
            (tmp_path / "marks").write_text(text)
            orphan_sweep.end(directory)
            assert alive(process.pid)
    finally:
        process.kill()
        process.wait()
        os.close(directory)
