"""Attempts of real commands under a real sandbox, seen and judged."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from handrail.sandbox import helper
from handrail.sandbox.denial import Denial
from handrail.sandbox.watcher import Watcher, watchable

BWRAP = shutil.which("bwrap")

pytestmark = [
    pytest.mark.skipif(not watchable(), reason="the system calls of this machine are not known"),
    pytest.mark.skipif(BWRAP is None, reason="bwrap is not installed"),
]


def watched(workspace: Path, script: str, *, network: bool = False) -> list[Denial]:
    """What a shell tried in vain, with one directory writable."""
    root = os.fsencode(workspace)
    ours, theirs = socket.socketpair()
    watcher = Watcher(ours, lambda path: (path + b"/").startswith(root + b"/"), network=network)
    try:
        with theirs:
            done = subprocess.run(
                [
                    *(sys.executable, "-I", "-S", helper.__file__, "watch", str(theirs.fileno())),
                    *(str(BWRAP), "--unshare-user", "--unshare-pid", "--unshare-net"),
                    *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
                    *("--bind", str(workspace), str(workspace), "--chdir", str(workspace)),
                    *("--cap-drop", "ALL", "--", "/bin/bash", "-c", script),
                ],
                pass_fds=[theirs.fileno()],
                env={"PATH": "/usr/bin:/bin"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=30,
                check=False,
            )
        assert done.returncode == 0, done.stderr
    finally:
        watcher.close()
    return watcher.denials


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


def test_every_attempt_outside_is_noted(places: tuple[Path, Path]) -> None:
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
        for op, path in notes(watched(workspace, script))
        if op and path
    }
    assert {("open", "new"), ("open", "file"), ("unlink", "file"), ("mkdir", "d")} <= found
    assert {("symlink", "link"), ("rename", "file")} <= found or {("rename", "file2")} <= found
    assert any(op in ("chmod", "fchmod") for op, _ in found)


def test_what_succeeds_or_fails_for_other_reasons_is_not(places: tuple[Path, Path]) -> None:
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
    assert watched(workspace, script) == []


def test_a_link_does_not_hide_where_it_leads(places: tuple[Path, Path]) -> None:
    workspace, outside = places
    (workspace / "way").symlink_to(outside)
    (workspace / "door").symlink_to(outside / "file")
    found = notes(watched(workspace, "echo x > way/new; echo x > door; true"))
    assert {path for _, path in found} == {str(outside / "new"), str(outside / "file")}


def test_connections_are_noted_when_none_may_leave(places: tuple[Path, Path]) -> None:
    workspace, _ = places
    script = "exec 3<>/dev/tcp/192.0.2.7/443; exec 3<>/dev/tcp/127.0.0.1/9; true"
    expected = Denial("network", "connect", "192.0.2.7:443", "notify", certain=True)
    assert watched(workspace, f"({script}) 2>/dev/null; true") == [expected]
    assert watched(workspace, f"({script}) 2>/dev/null; true", network=True) == []


def test_records_are_bounded_and_said_once(places: tuple[Path, Path]) -> None:
    workspace, outside = places
    script = f"for n in $(seq 300) 1 1 1; do : > {outside}/$n; done 2>/dev/null; true"
    assert len(watched(workspace, script)) == 256


def test_a_watcher_without_a_command_ends() -> None:
    ours, theirs = socket.socketpair()
    watcher = Watcher(ours, lambda path: True, network=True)
    theirs.close()
    watcher.close()
    watcher.close()
    assert watcher.denials == []
    ours, theirs = socket.socketpair()
    with theirs:
        Watcher(ours, lambda path: True, network=True).close()
    assert not [t for t in threading.enumerate() if t.name == "handrail-watcher"]
