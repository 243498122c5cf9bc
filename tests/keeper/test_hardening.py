"""What a child can see of its keeper: nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from handrail.keeper import hardening
from tests.keeper.peer import embedded, read_all
from tests.support.processes import descriptors


def test_a_keeper_gets_no_more_of_an_environment_than_it_needs() -> None:
    environ = {
        "PATH": "/bin",
        "LANG": "C",
        "LD_LIBRARY_PATH": "/x",
        "HOME": "/h",
        "AWS_SECRET_ACCESS_KEY": "s",
        "HANDRAIL_TREES": "walk",
        "HANDRAIL_TOKEN": "t",
        "HANDRAIL_SHARED_SECRET": "s",
        "OPENAI_API_KEY": "k",
    }
    kept = hardening.for_keeper(environ)
    assert kept.keys() == {"PATH", "LANG", "LD_LIBRARY_PATH", "HANDRAIL_TREES"}


def test_no_secret_of_ours_is_in_a_keepers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    canary = f"canary{os.getpid()}"
    monkeypatch.setenv("SOME_API_TOKEN", canary)
    monkeypatch.setenv("ANYTHING", canary)
    monkeypatch.setenv(hardening.INSPECT, "1")
    with embedded() as server:
        server.settle()
        assert canary.encode() not in Path(f"/proc/{server.keeper}/environ").read_bytes()
        child = server.sh("tr '\\0' '\\n' < /proc/self/environ; cat /proc/$PPID/environ")
        said = read_all(child.out)
        assert canary.encode() not in said
        assert b"HANDRAIL" not in said.split(b"PATH", 1)[0]
        server.exit(child)


def test_a_keeper_is_closed_to_others_of_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(hardening.INSPECT, raising=False)
    with embedded() as server:
        server.settle()
        # Who may not be traced belongs to root in /proc, whoever it runs as.
        assert os.stat(f"/proc/{server.keeper}/environ").st_uid == 0
        child = server.sh("sleep 600")
        assert os.stat(f"/proc/{child.pid}/environ").st_uid == os.getuid()
        if os.getuid() == 0:
            # And it has nothing open that a child was not given.
            assert descriptors(server.keeper)
