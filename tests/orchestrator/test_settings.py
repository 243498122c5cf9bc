"""Snapshots: what may be written, what a sandbox is asked for, how settings are read."""

from __future__ import annotations

from typing import Any

import pytest

from handrail.errors import UsageError
from handrail.network.settings import Managed
from handrail.orchestrator.settings import (
    Grants,
    Mode,
    SandboxMode,
    Settings,
    is_writable,
    read_approval,
    read_mode,
    sandbox_intent,
    writable_roots,
)
from handrail.policy.context import Approval, Granular
from handrail.sandbox.intent import to_wire


@pytest.mark.parametrize(
    ("path", "roots", "granted", "writable"),
    [
        ("/w/a", ("/w",), (), True),
        ("/w", ("/w",), (), True),
        ("/wide/a", ("/w",), (), False),
        ("/w/.git/config", ("/w",), (), False),
        ("/w/.gitignore", ("/w",), (), True),
        ("/tmp/w/.git/x", ("/tmp", "/tmp/w"), (), False),
        ("/w/.git/config", ("/w",), ("/w/.git",), True),
        ("/etc/.git", ("/",), (), True),
        ("/x", (), (), False),
    ],
)
def test_what_may_be_written(
    path: str, roots: tuple[str, ...], granted: tuple[str, ...], writable: bool
) -> None:
    assert is_writable(path, roots, granted) is writable


def test_roots_by_mode() -> None:
    mode = SandboxMode(writable_roots=("/data/",))
    assert writable_roots(Settings("/w", sandbox=mode), "/t") == ("/w", "/data", "/tmp", "/t")
    closed = SandboxMode(exclude_slash_tmp=True, exclude_tmpdir=True)
    assert writable_roots(Settings("/w", sandbox=closed), "/t") == ("/w",)
    assert writable_roots(Settings("/w", sandbox=SandboxMode(Mode.READ_ONLY))) == ()
    assert writable_roots(Settings("/w", sandbox=SandboxMode(Mode.OFF))) == ("/",)


def permissions(settings: Settings, grants: Grants | None = None) -> dict[str, Any] | None:
    """As it travels."""
    intent = sandbox_intent(settings, grants)
    return None if intent is None else to_wire(intent)


def entries(intent: dict[str, Any] | None) -> list[tuple[str, str]]:
    assert intent is not None
    found = intent["permissions"]["file_system"]["entries"]
    names = [
        entry["path"].get("path") or entry["path"].get("pattern") or entry["path"]["value"]["kind"]
        for entry in found
    ]
    return list(zip(names, (entry["access"] for entry in found), strict=True))


def test_what_a_sandbox_is_asked_for() -> None:
    mode = SandboxMode(writable_roots=("/data",), deny_read=("**/*.env", "/w/secret"))
    intent: Any = permissions(Settings("/w", sandbox=mode), Grants(write=("/srv",)))
    assert entries(intent) == [
        ("root", "read"),
        ("project_roots", "write"),
        ("slash_tmp", "write"),
        ("tmpdir", "write"),
        ("file:///data", "write"),
        ("file:///srv", "write"),
        ("**/*.env", "deny"),
        ("file:///w/secret", "deny"),
    ]
    assert intent["permissions"]["network"] == "restricted"
    assert intent["workspaceRoots"] == ["file:///w"]


def test_network_is_off_unless_given() -> None:
    def network(mode: SandboxMode, grants: Grants | None = None) -> object:
        intent: Any = permissions(Settings("/w", sandbox=mode), grants)
        return intent["permissions"]["network"]

    assert network(SandboxMode(Mode.READ_ONLY)) == "restricted"
    assert network(SandboxMode(network_access=True)) == "enabled"
    assert network(SandboxMode(), Grants(network=True)) == "enabled"


def test_no_sandbox_where_none_is_wanted_unless_something_is_hidden() -> None:
    for mode in (Mode.OFF, Mode.EXTERNAL):
        assert permissions(Settings("/w", sandbox=SandboxMode(mode))) is None
    hidden = SandboxMode(Mode.OFF, deny_read=("/secret",))
    assert entries(permissions(Settings("/w", sandbox=hidden))) == [
        ("root", "write"),
        ("file:///secret", "deny"),
    ]


def test_settings_are_read_strictly() -> None:
    assert read_approval("on-failure") == (Approval.ON_FAILURE, None)
    table = {"granular": {"sandbox_approval": True, "mcp_elicitations": True}}
    assert read_approval(table) == (
        Approval.ON_REQUEST,
        Granular(sandbox_approval=True, rules=False),
    )
    for wrong in ("always", {"granular": 1}, None, {}):
        with pytest.raises(UsageError):
            read_approval(wrong)
    for no_flag in ("false", 1, None):
        with pytest.raises(UsageError, match="rules of an approval policy is True or False"):
            read_approval({"granular": {"rules": no_flag}})
    for unknown in ({"granular": {"x": 1}}, {"granular": {}, "x": 1}):
        with pytest.raises(UsageError, match=r"'x' is nothing .* sandbox_approval"):
            read_approval(unknown)
    assert read_mode("read-only") is Mode.READ_ONLY
    assert read_mode("off") is read_mode("danger-full-access") is Mode.OFF
    with pytest.raises(UsageError):
        read_mode("none")
    with pytest.raises(UsageError, match="absolute"):
        Settings("work")


def test_grants_add_up() -> None:
    both = Grants(("/a",), ("/b",)).with_(Grants(("/a",), ("/c",), network=True))
    assert both == Grants(("/a",), ("/b", "/c"), network=True)
    assert both.covers(Grants(read=("/b",)))
    assert not both.covers(Grants(write=("/a",)))
    assert not Grants()


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.EXTERNAL])
def test_a_managed_network_needs_a_sandbox(mode: Mode) -> None:
    with pytest.raises(UsageError, match="needs a sandbox"):
        SandboxMode(mode, managed=Managed())
