"""What counts as the same command."""

from __future__ import annotations

import pytest

from handrail.orchestrator.approval_cache import (
    ApprovalCache,
    Extent,
    FileKey,
    canonical,
    command_key,
)
from handrail.orchestrator.call import Call
from handrail.orchestrator.settings import Grants
from tests.orchestrator.scripted import sh


def test_a_wrapper_around_one_plain_command_does_not_matter() -> None:
    assert canonical(("/bin/bash", "-lc", "git status")) == ("git", "status")
    assert canonical(("/bin/bash", "-c", "git  'status'")) == ("git", "status")
    assert canonical(("git", "status")) == ("git", "status")


def test_any_other_script_is_only_ever_itself() -> None:
    scripts = ["a && b", "a > x", "a > x ", "a $X"]
    forms = {canonical(("/bin/bash", "-c", script)) for script in scripts}
    assert len(forms) == len(scripts)
    assert canonical(("bash", "-lc", "a > x")) != canonical(("bash", "-c", "a > x"))


def test_a_script_cannot_pass_for_a_command() -> None:
    assert canonical(("(script)", "bash", "-c", "x")) != canonical(("bash", "-c", "x > y"))


def test_where_and_how_it_runs_is_part_of_the_key() -> None:
    base = command_key(sh("ls"))
    assert command_key(sh("ls", "other-call")) == base
    others = [
        sh("ls", cwd="/w"),
        sh("ls", tty=True),
        sh("ls", environment_id="far"),
        Call("c", ("/bin/sh", "-c", "ls"), "/"),
    ]
    assert len({base, *map(command_key, others)}) == 5


NET = Grants(network=True)
TWO = Grants(write=("/a", "/b"))


#: A program that commands can write, and the same one when it was written again.
ONE = frozenset([("x", "/w/x", (1, 2, 3, 4))])
OTHER = frozenset([("x", "/w/x", (1, 2, 9, 4))])


@pytest.mark.parametrize(
    ("given", "wanted", "covered"),
    [
        (Extent(), Extent(), True),
        (Extent(), Extent(outside=True), False),
        (Extent(), Extent(wants=NET), False),
        (Extent(wants=NET), Extent(), True),
        (Extent(wants=NET), Extent(outside=True), False),
        (Extent(wants=NET.with_(TWO)), Extent(wants=Grants(write=("/a",))), True),
        (Extent(wants=TWO), Extent(wants=Grants(write=("/c",))), False),
        (Extent(wants=TWO), Extent(wants=NET), False),
        (Extent(outside=True), Extent(wants=NET), True),
        (Extent(outside=True), Extent(outside=True), True),
        (Extent(outside=True), Extent(outside=True, programs=ONE), False),
        (Extent(outside=True, programs=ONE), Extent(outside=True, programs=ONE), True),
        (Extent(outside=True, programs=ONE), Extent(outside=True, programs=OTHER), False),
        (Extent(outside=True, programs=ONE), Extent(outside=True), True),
        (Extent(outside=True, programs=ONE), Extent(), True),
    ],
)
def test_a_yes_covers_what_it_was_for_and_less(
    given: Extent, wanted: Extent, covered: bool
) -> None:
    cache = ApprovalCache()
    key = command_key(sh("ls"))
    cache.remember([key], given)
    assert cache.knows([key], wanted) is covered


def test_all_of_several_keys_have_to_be_known() -> None:
    cache = ApprovalCache()
    one, two = FileKey("local", "/a"), FileKey("local", "/b")
    assert not cache.knows([])
    cache.remember([one])
    assert cache.knows([one])
    assert not cache.knows([one, two])
