"""Profiles as rules for our own file calls, and as they travel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from handrail import Profile, UsageError
from handrail.sandbox.intent import to_wire
from handrail.sandbox.plan.globs import expand
from handrail.sandbox.profile import Glob
from handrail.workspace.profile import Access, Rules, Sandbox, find_profile, intent

ROOT = "/srv/repo"


@pytest.mark.parametrize(
    ("profile", "path", "access"),
    [
        (Profile(), "/etc/passwd", Access.READ),
        (Profile(), "/srv/repo/a", Access.WRITE),
        (Profile(), "/srv/repository", Access.READ),
        (Profile(), "/srv/repo/.git/config", Access.READ),
        (Profile(), "/srv/repo/sub/.git/config", Access.WRITE),
        (Profile(write=(".", ".git")), "/srv/repo/.git/config", Access.WRITE),
        (Profile(write=()), "/srv/repo/a", Access.READ),
        (Profile(read=("/usr",)), "/etc/passwd", Access.DENY),
        (Profile(deny=("private",)), "/srv/repo/private/key", Access.DENY),
        (
            Profile(deny=("private",), write=(".", "private/x")),
            "/srv/repo/private/x",
            Access.WRITE,
        ),
        (Profile(deny=("**/*.env",)), "/srv/repo/.env", Access.DENY),
        (Profile(deny=("**/*.env",)), "/srv/repo/a/b/x.env", Access.DENY),
        (Profile(deny=("**/*.env",)), "/srv/repo/a/b/x.envs", Access.WRITE),
        (Profile(deny=("*.{key,pem}",)), "/srv/repo/a.key", Access.DENY),
        (Profile(deny=("*.{key,pem}",)), "/srv/repo/sub/a.key", Access.WRITE),
        (Profile(deny=("/etc/*.key",)), "/etc/a.key", Access.DENY),
        (Profile(read=("/",), write=("same",), deny=("same",)), "/srv/repo/same", Access.DENY),
    ],
)
def test_the_longest_entry_decides(profile: Profile, path: str, access: Access) -> None:
    assert Rules(profile, ROOT, None).access(path) is access


NAMES = ("a", "a.key", "b.pem", "x[1]", "{a}")
TREE = [(name,) for name in NAMES] + [("d", name) for name in NAMES] + [("d", "e", "a.key")]
PIECES = st.sampled_from(
    ["*", "**/", "?", ".key", ".pem", "a", "d/", "{a,b}", "[ab]", "[!a]", "\\["]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pattern=st.lists(PIECES, min_size=1, max_size=5).map("".join))
def test_patterns_deny_the_same_to_commands_and_to_file_calls(tmp_path: Path, pattern: str) -> None:
    root = tmp_path / "r[1]{b}"
    if not root.exists():
        for parts in TREE:
            root.joinpath(*parts[:-1]).mkdir(parents=True, exist_ok=True)
            root.joinpath(*parts).touch()
    assume(set("*?[") & set(pattern) and not pattern.endswith("/") and "//" not in pattern)
    found, _ = expand(Glob(os.fsencode(root), pattern), None, {})
    rules = Rules(Profile(deny=(pattern,)), str(root), None)
    for parts in TREE:
        path = root.joinpath(*parts)
        commands = any(os.fsencode(one) in found for one in (path, *path.parents))
        assert (rules.access(str(path)) is Access.DENY) == commands, (pattern, parts)


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


@pytest.mark.parametrize("name", ["", "none", "danger-full-access", None, 0])
def test_other_names_are_refused(name: Sandbox) -> None:
    with pytest.raises(UsageError, match="no sandbox"):
        find_profile(name)
