"""What would have to be opened for what was refused."""

from __future__ import annotations

import pytest

from handrail.executor.base import Denied
from handrail.orchestrator.narrow_offer import ancestors, offer, refused_path
from handrail.orchestrator.settings import Grants, SandboxMode, Settings

TEXT = Denied(likely=True)
WORKSPACE = Settings("/w")


@pytest.mark.parametrize(
    ("output", "path"),
    [
        ("touch: cannot touch '/usr/x': Read-only file system", "/usr/x"),
        ("touch: cannot touch ‘/usr/x y’: Permission denied", "/usr/x y"),
        ("bash: line 1: /etc/x: Permission denied", "/etc/x"),
        ("mkdir: cannot create directory 'sub/x': Read-only file system", "/w/sub/x"),
        ("OSError: [Errno 30] Read-only file system: '/usr/x'", "/usr/x"),
        ("PermissionError: [Errno 13] Permission denied: '../up'", "/up"),
        ("nothing of the kind", None),
        ("Permission denied", None),
    ],
)
def test_a_path_from_what_the_program_said(output: str, path: str | None) -> None:
    assert refused_path(TEXT, output.encode(), "/w") == path


def test_evidence_comes_before_words() -> None:
    denied = Denied(likely=True, evidence=({"kind": "file", "path": "/srv/data/f"},))
    assert refused_path(denied, b"touch: cannot touch '/usr/x': Read-only file system", "/") == (
        "/srv/data/f"
    )


def offered(path: str, settings: Settings = WORKSPACE) -> Grants | None:
    found = offer(TEXT, path, settings)
    return found.grants if found else None


def test_just_this_path() -> None:
    assert offered("/data/a/b") == Grants(write=("/data/a/b",))
    assert ancestors("/data/a") == ["/data/a", "/data"]


def test_never_the_root_nor_what_is_open_nor_what_is_hidden() -> None:
    assert offered("/") is None
    assert offered("/w/a") is None
    assert offered("/w/.git/config") == Grants(write=("/w/.git/config",))
    hidden = Settings("/w", sandbox=SandboxMode(deny_read=("/secret",)))
    assert offered("/secret/a", hidden) is None


def test_a_connection_is_offered_as_the_network() -> None:
    denied = Denied(likely=True, evidence=({"kind": "network", "host": "example.org"},))
    found = offer(denied, None, WORKSPACE)
    assert found is not None
    assert found.grants == Grants(network=True)
