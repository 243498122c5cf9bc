"""Attempts of real commands under a real sandbox, seen and judged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from handrail.sandbox.denial import Denial
from handrail.sandbox.profile import Access, Entry, Intent, Machine, resolve
from tests.support.sandboxes import Held


def watched(held: Held, workspace: Path, script: str, *, network: bool = False) -> list[Denial]:
    """What a shell tried in vain, with one directory writable."""
    root = os.fsencode(workspace)
    intent = Intent(
        entries=(Entry(Access.READ, special="root"), Entry(Access.WRITE, path=root)),
        network=network,
    )
    profile = resolve(intent, root, Machine())
    code, said = held.run(profile, ["/bin/bash", "-c", script], root, watch=True)
    assert code == 0, said
    return held.denials


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    workspace, outside = tmp_path / "w", tmp_path / "out"
    workspace.mkdir()
    outside.mkdir()
    (outside / "file").write_text("as it was")
    return workspace, outside


def notes(found: list[Denial]) -> set[tuple[str | None, str | None]]:
    assert all(d.source == "notify" and d.certain for d in found)
    return {(d.op, d.path) for d in found}


def test_every_attempt_outside_is_noted(held: Held, places: tuple[Path, Path]) -> None:
    workspace, outside = places
    script = f"""
        exec 2>/dev/null
        echo x > {outside}/new
        echo x >> {outside}/file
        cd {outside}; rm file; mkdir d; mv file file2; ln -s x link; chmod 600 file
        true
    """
    found = {
        (op.removesuffix("at").removesuffix("at2"), Path(path).name)
        for op, path in notes(watched(held, workspace, script))
        if op and path
    }
    assert {("open", "new"), ("open", "file"), ("unlink", "file"), ("mkdir", "d")} <= found
    assert {("symlink", "link"), ("rename", "file")} <= found or {("rename", "file2")} <= found
    assert any(op in ("chmod", "fchmod") for op, _ in found)


def test_what_succeeds_or_fails_for_other_reasons_is_not(
    held: Held, places: tuple[Path, Path]
) -> None:
    workspace, outside = places
    script = f"""
        exec 2>/dev/null
        echo x > here; mkdir d; mv here d/; rm -r d; echo x > /dev/null
        mkdir -p {outside}; mkdir {outside}
        rm -f {outside}/nosuch; cat {outside}/file {outside}/nosuch
        echo x > {outside}/no/such/place
        : < {outside}/file
        true
    """
    assert watched(held, workspace, script) == []


def test_a_link_does_not_hide_where_it_leads(held: Held, places: tuple[Path, Path]) -> None:
    workspace, outside = places
    (workspace / "way").symlink_to(outside)
    (workspace / "door").symlink_to(outside / "file")
    found = notes(watched(held, workspace, "echo x > way/new; echo x > door; true"))
    assert {path for _, path in found} == {str(outside / "new"), str(outside / "file")}


def test_connections_are_noted_when_none_may_leave(held: Held, places: tuple[Path, Path]) -> None:
    workspace, _ = places
    script = "exec 3<>/dev/tcp/192.0.2.7/443; exec 3<>/dev/tcp/127.0.0.1/9; true"
    (denial,) = watched(held, workspace, f"({script}) 2>/dev/null; true")
    assert denial.members() == {
        "kind": "network",
        "op": "connect",
        "path": "192.0.2.7:443",
        "source": "notify",
        "certain": True,
        "host": "192.0.2.7",
        "port": 443,
        "pid": denial.host and denial.host.pid,
        "comm": "bash",
        "count": 1,
    }
    assert watched(held, workspace, f"({script}) 2>/dev/null; true", network=True) == []


def test_records_are_bounded_and_said_once(held: Held, places: tuple[Path, Path]) -> None:
    workspace, outside = places
    script = f"for n in $(seq 300) 1 1 1; do : > {outside}/$n; done 2>/dev/null; true"
    assert len(watched(held, workspace, script)) == 256
