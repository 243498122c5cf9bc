"""What counts as the same command."""

from __future__ import annotations

from handrail.orchestrator.calls import Call, Request
from handrail.orchestrator.memory import FileKey, Memory, canonical, command_key, host_key

from .scripted import sh


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
        sh("ls", request=Request.REQUIRE_ESCALATED),
        sh("ls", environment_id="far"),
        Call("c", ("/bin/sh", "-c", "ls"), "/"),
    ]
    assert len({base, *map(command_key, others)}) == 6


def test_all_of_several_keys_have_to_be_known() -> None:
    memory = Memory()
    one, two = FileKey("local", "/a"), FileKey("local", "/b")
    assert not memory.knows([])
    memory.remember([one])
    assert memory.knows([one])
    assert not memory.knows([one, two])
    memory.clear()
    assert not memory.knows([one])


def test_hosts_know_no_case_and_a_denial_wins() -> None:
    memory = Memory()
    key = host_key("local", "https", "Example.ORG.", 443)
    assert key == host_key("local", "https", "example.org", 443)
    memory.deny(key)
    assert memory.denies(key)
