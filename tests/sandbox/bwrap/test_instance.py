"""Everybody in a sandbox, when what holds it ends before its time."""

from __future__ import annotations

import os
import select
import signal

from handrail.sandbox.bwrap.command import wrap
from handrail.sandbox.profile import Access, Profile, Rule
from handrail.sandbox.sandboxed_command import Command
from tests.support.sandboxes import ENV, holding, spawn

#: Long enough to be noticed, never waited for.
WAITS = (b"/bin/sh", b"-c", b"echo ready; setsid sleep 600 & sleep 600")


def test_those_inside_are_ended_though_nobody_told_them_to_end_with_bwrap() -> None:
    """A first process that has not come to ask for that is like one that was told not to."""
    profile = Profile(rules=(Rule(b"/", Access.READ),))
    alive, theirs = os.pipe()
    with holding() as held, open(alive, "rb", 0) as reader:
        plan = held.planner.plan(profile)
        one = wrap(Command(WAITS, b"/", ENV), plan, held.bwrap, held.upkeep, lasting=True)
        assert one.running is not None
        bwrap = spawn(one, theirs)
        os.close(theirs)
        one.running.sent()
        assert reader.readline() == b"ready\n"
        os.kill(bwrap, signal.SIGKILL)
        os.waitpid(bwrap, 0)
        one.running.wait(20)
        # Everybody inside holds the other end of this pipe.
        assert select.select([reader], [], [], 20)[0]
        assert reader.read() == b""
        assert one.running.over()
