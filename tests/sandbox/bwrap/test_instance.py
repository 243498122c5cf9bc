"""Everybody in a sandbox, when what holds it ends before its time."""

from __future__ import annotations

import os
import select
import signal

import pytest

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
        assert one.running.signal(signal.SIGKILL, tree=True) == 0


@pytest.mark.parametrize("let", [True, False])
def test_command_of_a_guarded_sandbox_waits_until_it_is_let_start(let: bool) -> None:
    """Without a word from the program that made it, bwrap ends and starts nothing."""
    profile = Profile(rules=(Rule(b"/", Access.READ),))
    alive, theirs = os.pipe()
    with holding() as held, open(alive, "rb", 0) as reader:
        plan = held.planner.plan(profile)
        said = (b"/bin/sh", b"-c", b"echo started")
        one = wrap(Command(said, b"/", ENV), plan, held.bwrap, held.upkeep, guarded=True)
        assert one.running is not None
        bwrap = spawn(one, theirs)
        os.close(theirs)
        one.running.sent()
        if let:
            one.running.let_start()
            assert one.running.stands()
        else:
            while not one.running.first():  # so it is at work, and goes on until it is to wait
                select.select([], [], [], 0.01)
            assert os.waitpid(bwrap, os.WNOHANG) == (0, 0)
            one.running.leave()  # closes what it has, as the end of the program does
        _, status = os.waitpid(bwrap, 0)
        assert (os.waitstatus_to_exitcode(status) == 0) is let
        assert (b"started\n" in reader.read()) is let
