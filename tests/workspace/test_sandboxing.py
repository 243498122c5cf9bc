"""Sandboxed unless said otherwise: what commands and files of a workspace may touch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from handrail import AsyncFiles, ExecutorSpawnFailed, FilesError, Profile, UsageError, Workspace
from handrail.sandbox import probe
from handrail.sandbox.landlock import ruleset
from handrail.workspace.profile import Access


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "repo"
    path.mkdir()
    (tmp_path / "outside").write_text("old")
    return path


def test_writes_only_below_the_root(root: Path) -> None:
    with Workspace(root) as ws:
        result = ws.run("echo in > inside; echo out > ../outside; echo $?")
    assert (root / "inside").read_text() == "in\n"
    assert (root.parent / "outside").read_text() == "old"
    assert result.stdout == "2\n" or "Read-only" in result.stderr


def test_a_refusal_is_told(root: Path) -> None:
    with Workspace(root) as ws:
        result = ws.run(["touch", str(root.parent / "new")])
        assert not result.ok
        assert [denial.path for denial in result.denials] == [str(root.parent / "new")]
        assert ws.run("exit 3").denials == ()


def test_no_network(root: Path) -> None:
    connect = "import socket; socket.create_connection(('192.0.2.1', 9), 1)"
    with Workspace(root) as ws:
        result = ws.run(["python3", "-c", connect])
    assert "Network is unreachable" in result.stderr or "not permitted" in result.stderr


def test_temporary_files_are_private_and_go_away(root: Path) -> None:
    with Workspace(root) as ws:
        assert ws.run('echo x > /tmp/file && echo "$TMPDIR"', check=True).stdout == "/tmp\n"
        ws.run("echo y > /var/tmp/file", check=True)
        assert ws.run("cat /tmp/file /var/tmp/file", check=True).stdout == "x\ny\n"
        assert ws.files.read("/tmp/file") == "x\n"
        ws.files.write("/tmp/other", "z")
        assert ws.run("cat /tmp/other", check=True).stdout == "z"
        place = ws._twin._ground.temporary
        assert place is not None
        assert os.stat(place).st_mode & 0o077 == 0
    assert not os.path.exists(place)


def test_read_only_and_off(root: Path) -> None:
    with Workspace(root, sandbox="read-only") as ws:
        assert not ws.run("touch file").ok
        assert ws.run("touch file", sandbox="off").ok
        assert ws.run("echo more > file", sandbox="workspace-write").ok
    assert (root / "file").read_text() == "more\n"


def test_the_whole_machine_is_no_workspace() -> None:
    with Workspace("/") as ws:
        with pytest.raises(UsageError, match="holds nothing back"):
            ws.run("true")
        assert ws.run("true", sandbox="read-only").ok


def test_a_profile_of_ones_own(root: Path) -> None:
    (root / "out").mkdir()
    (root / "secret.env").write_text("secret")
    profile = Profile(write=("out",), deny=("**/*.env",))
    with Workspace(root, sandbox=profile) as ws:
        assert ws.run("echo x > out/file").ok
        assert not ws.run("echo x > file").ok
        assert "secret" not in ws.run("cat secret.env").stdout
        with pytest.raises(FilesError) as info:
            ws.files.read("secret.env")
        assert info.value.kind == "permission_denied"
        ws.files.write("out/other", "y")
        with pytest.raises(FilesError):
            ws.files.write("file", "y")


def test_connections_that_were_refused_are_known(root: Path) -> None:
    script = "import socket; socket.create_connection(('192.0.2.7', 80))"
    with Workspace(root) as ws:
        result = ws.run(["python3", "-c", script])
        assert not result.ok
        found = [(d.kind, d.path, d.source, d.certain) for d in result.denials]
        assert found == [("network", "192.0.2.7:80", "notify", True)]
        assert ws.run("true").denials == ()


def test_a_terminal_inside(root: Path) -> None:
    with Workspace(root) as ws, ws.start("cat", tty=True) as process:
        process.send("hello\n")
        assert process.wait_for("hello\r?\nhello", timeout=20)
        process.send(b"\x03")
        assert process.wait_for("never", timeout=20).exit is not None


def test_files_keep_to_the_same_rules(root: Path) -> None:
    (root / "link").symlink_to(root.parent)
    (root / ".git").mkdir()
    with Workspace(root) as ws:
        ws.files.write("sub/deep/notes.txt", "hi", parents=True)
        assert ws.files.read("sub/deep/notes.txt") == "hi"
        for path in ("../outside", "link/outside", str(root.parent / "new"), ".git/hooks"):
            with pytest.raises(FilesError) as info:
                ws.files.write(path, "escaped")
            assert info.value.kind == "permission_denied", path
        ws.files.write("target", "kept")
        (root / "name").symlink_to("target")
        with pytest.raises(FilesError):
            ws.files.remove("name")
        assert ws.files.read("target") == "kept"
        ws.files.remove("target")
        with pytest.raises(FilesError, match="root"):
            ws.files.remove(".", recursive=True)
        assert ws.files.read("../outside") == "old"  # reading is not restricted


def test_a_link_that_appears_after_the_check_leads_nowhere(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "sub").mkdir()
    check = AsyncFiles._allowed

    async def swapped(self: AsyncFiles, full: str, wanted: Access, *, entry: bool = False) -> str:
        real = await check(self, full, wanted, entry=entry)
        (root / "sub").rmdir()
        (root / "sub").symlink_to(root.parent)  # as a command in the background could
        return real

    monkeypatch.setattr(AsyncFiles, "_allowed", swapped)
    with Workspace(root) as ws, pytest.raises(FilesError):
        ws.files.write("sub/outside", "escaped")
    assert (root.parent / "outside").read_text() == "old"


@pytest.mark.parametrize("sandbox", ["off", "workspace-write"])
@pytest.mark.parametrize("far", [False, True])
def test_a_program_that_is_not_there(far: bool, sandbox: str, root: Path) -> None:
    at = f"stdio:{sys.executable} -m handrail serve --listen stdio" if far else None
    (root / "plain").write_text("no program")
    with Workspace(root, at=at, sandbox=sandbox) as ws:  # type: ignore[arg-type]
        for program, why in (
            ("no-such-program", "No such file or directory"),
            ("./no-such-program", "No such file or directory"),
            ("./plain", "Permission denied"),
        ):
            with pytest.raises(ExecutorSpawnFailed, match=f"cannot start {program}: {why}"):
                ws.run([program])


def test_arguments_that_make_no_sense(root: Path) -> None:
    with Workspace(root, sandbox="off") as ws:
        for command, options in (
            ([1], {}),
            (5, {}),
            ("true", {"timeout": "5"}),
            ("true", {"wait": -1}),
            ("cat", {"input": 5}),
        ):
            with pytest.raises(UsageError):
                ws.run(command, **options)  # type: ignore[call-overload]


def test_a_root_that_is_not_there(root: Path) -> None:
    with pytest.raises(FilesError, match="nowhere cannot be a workspace") as caught:
        Workspace(root / "nowhere").run("true")
    assert (caught.value.kind, caught.value.path) == ("not_found", str(root / "nowhere"))


@pytest.mark.skipif(
    ruleset.abi_version() < ruleset.LOWEST_ABI, reason="this kernel has no Landlock to speak of"
)
def test_landlock_takes_the_place_of_bubblewrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(probe, "BWRAP_PLACES", ())
    with Workspace(tmp_path, sandbox=Profile(write=())) as ws:
        result = ws.run('echo a > "$TMPDIR/t" && cat "$TMPDIR/t"; touch x')
        assert (result.stdout, result.exit_code) == ("a\n", 1)
        assert result.denials
        with pytest.raises(ExecutorSpawnFailed, match=r"process sandbox: bubblewrap.*; Landlock"):
            ws.run("touch x", sandbox="workspace-write")
    assert os.listdir(tmp_path) == []
    assert caplog.text.count("sandboxed by Landlock instead") == 1
