"""Profiles by name, and as they travel."""

from __future__ import annotations

import pytest

from handrail import UsageError
from handrail.sandbox.intent import to_wire
from handrail.workspace.profile import Sandbox, find_profile, intent

ROOT = "/srv/repo"


def test_names_and_their_intents() -> None:
    assert intent(find_profile("off"), ROOT, None) is None
    made = intent(find_profile("workspace-write"), ROOT, "/tmp/private")
    assert made is not None
    found = to_wire(made)
    assert found["workspaceRoots"] == ["file:///srv/repo"]
    assert found["permissions"] == {
        "type": "managed",
        "file_system": {
            "type": "restricted",
            "entries": [
                {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"},
                {
                    "path": {"type": "special", "value": {"kind": "project_roots"}},
                    "access": "write",
                },
                {"path": {"type": "path", "path": "file:///tmp/private"}, "access": "write"},
            ],
        },
        "network": "restricted",
    }


@pytest.mark.parametrize("name", ["", "none", "danger_full_access", None, 0])
def test_other_names_are_refused(name: Sandbox) -> None:
    with pytest.raises(UsageError, match="no sandbox"):
        find_profile(name)


def test_the_peers_name_for_no_sandbox_is_ours() -> None:
    assert find_profile("danger-full-access") is find_profile("off") is None
