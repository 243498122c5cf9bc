"""Families without a keeper: those that are wanted are ended, and nobody else."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess

from handrail.process.recovery import tag_kill


def marked(mark: int) -> subprocess.Popen[bytes]:
    """A process that bears a mark, as a keeper gives it."""
    process = subprocess.Popen(["/bin/sleep", "600"])
    resource.prlimit(process.pid, 10, (mark, resource.RLIM_INFINITY))  # of file locks
    return process


def test_what_a_keeper_has_started_is_ended_but_for_what_is_known() -> None:
    first = random.SystemRandom().getrandbits(31) << 24
    known, stranger, other = marked(first + 1), marked(first + 2), marked(first + (1 << 24))
    try:
        assert tag_kill.end_all_of([first], {first + 1}) == 1
        assert stranger.wait() == -signal.SIGKILL
        assert known.poll() is None
        assert other.poll() is None
        assert tag_kill.end({first + 1, first + (1 << 24)}) == 2
        assert known.wait() == other.wait() == -signal.SIGKILL
        assert tag_kill.end(()) == 0
    finally:
        for process in (known, stranger, other):
            process.kill()
            process.wait()


def test_the_dead_are_not_counted() -> None:
    mark = random.SystemRandom().getrandbits(31) << 24
    process = marked(mark)
    try:
        assert tag_kill.end({mark}) == 1
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, its status not taken
        assert tag_kill.end({mark}) == 0
    finally:
        process.kill()
        process.wait()
