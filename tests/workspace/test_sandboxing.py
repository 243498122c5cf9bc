"""Sandboxed unless said otherwise: what commands and files of a workspace may touch."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from handrail import (
    AgentShell,
    AsyncWorkspace,
    ExecutorSpawnFailed,
    FilesError,
    Profile,
    SandboxName,
    SandboxUnavailable,
    UsageError,
    Workspace,
)
from handrail.executor.base import Executor
from handrail.executor.local import LocalExecutor
from handrail.sandbox import probe
from handrail.sandbox.landlock import ruleset
from handrail.testing import memory_executor
from handrail.unified_exec.tools import ToolFailed
from tests.support.servers import server_process


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "repo"
    path.mkdir()
    (tmp_path / "outside").write_text("old")
    return path


def test_more_words_than_bubblewrap_takes(root: Path) -> None:
    with Workspace(root) as ws:
        with pytest.raises(
            SandboxUnavailable, match=r"has 20001 words, and bubblewrap takes \d+"
        ) as it:
            ws.run(["true", *["x"] * 20_000])
        most = int(str(it.value).partition("bubblewrap takes ")[2].split()[0])
        assert ws.run(["true", *["x"] * (most - 1)]).ok


@pytest.mark.parametrize("sandbox", ["workspace-write", "off"])
def test_a_variable_that_is_too_long(root: Path, sandbox: SandboxName) -> None:
    """bubblewrap would start, and exit with 1 as if the command had."""
    with Workspace(root, sandbox=sandbox) as ws:
        with pytest.raises(ExecutorSpawnFailed, match="longer than 131071"):
            ws.run("true", env={"LONG": "x" * 131_067})
        assert ws.run("printf ${#LONG}", env={"LONG": "x" * 131_066}).stdout == "131066"


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
        place = ws._twin._location.temporary
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
            assert "with a Profile that allows this" in str(info.value)
        ws.files.write("target", "kept")
        (root / "name").symlink_to("target")
        ws.files.remove("name")  # the link, as a command would
        assert ws.files.read("target") == "kept"
        ws.files.remove("target")
        with pytest.raises(FilesError, match="root"):
            ws.files.remove(".", recursive=True)
        assert ws.files.read("/etc/passwd")  # reading is not restricted


def test_nothing_is_made_up_by_file_calls_and_no_helper_stays(root: Path) -> None:
    with Workspace(root, sandbox="off") as other:  # which keeps the executor of the loop
        with Workspace(root) as ws:
            ws.files.write("a", "x")
            assert [entry.name for entry in ws.files.list()] == ["a"]
            assert os.listdir(root) == ["a"]
            for name in (".git", ".git/x", ".codex"):
                with pytest.raises(FilesError, match="cannot be made"):
                    ws.files.mkdir(name)
            executor = ws._twin._location.executor
            assert isinstance(executor, LocalExecutor)
            assert executor._sandbox is not None
            helpers = executor._sandbox._helpers
            assert helpers is not None
            assert len(helpers) > 0
        assert len(helpers) == 0
        assert other.files.read("a") == "x"


def test_the_placeholder_of_a_running_command_is_left_alone(root: Path) -> None:
    with Workspace(root) as ws, ws.start("echo up; cat") as process:
        assert process.wait_for("up", timeout=20)
        assert ".git" in os.listdir(root)
        for change in (
            lambda: ws.files.remove(".git", recursive=True),
            lambda: ws.files.write(".git/config", "x"),
        ):
            with pytest.raises(FilesError) as info:
                change()
            assert info.value.kind == "permission_denied"
        assert os.listdir(root / ".git") == []


def test_a_tree_with_hidden_files_is_neither_copied_nor_removed(root: Path) -> None:
    (root / "d").mkdir()
    (root / "d" / "secret").write_text("s3cret")
    with Workspace(root, sandbox=Profile(deny=("d/secret",))) as ws:
        for call in (
            lambda: ws.files.copy("d", "e", recursive=True),
            lambda: ws.files.remove("d", recursive=True),
        ):
            with pytest.raises(FilesError) as info:
                call()
            assert info.value.kind == "permission_denied"
    assert (root / "d" / "secret").read_text() == "s3cret"
    assert not (root / "e" / "secret").exists()


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
        assert ws.files.list() == []
        with pytest.raises(FilesError, match="cannot be written"):
            ws.files.write("x", "")
        ws.files.write(f"{ws._twin._location.temporary}/t", "b")
    with (
        Workspace(tmp_path) as ws,
        pytest.raises(FilesError, match=r"file sandbox: bubblewrap.*; Landlock"),
    ):
        ws.files.write("x", "")
    assert os.listdir(tmp_path) == []
    assert caplog.text.count("sandboxed by Landlock instead") == 1


@pytest.mark.parametrize("place", [contextlib.nullcontext, memory_executor])
async def test_a_sandbox_that_cannot_be_enforced(
    place: Callable[[], AbstractAsyncContextManager[Executor | None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "BWRAP_PLACES", ())
    (tmp_path / "f").write_text("")
    add = "*** Begin Patch\n*** Add File: a\n+b\n*** End Patch\n"
    async with place() as executor, AsyncWorkspace(tmp_path, executor=executor) as ws:
        with pytest.raises(SandboxUnavailable) as refused:
            await ws.run("true")
        assert isinstance(refused.value, ExecutorSpawnFailed)
        with pytest.raises(SandboxUnavailable, match="file sandbox: bubblewrap") as refused:
            await ws.files.write("f", "x")
        assert isinstance(refused.value, FilesError)
        assert refused.value.kind == "sandboxUnavailable"
        assert isinstance(pickle.loads(pickle.dumps(refused.value)), SandboxUnavailable)
        async with AgentShell(ws) as shell:
            with pytest.raises(ToolFailed, match=r"write file .*/a: .*sandbox: bubblewrap"):
                await shell.apply_patch(add)
    assert (tmp_path / "f").read_text() == ""


def test_a_signal_at_once_reaches_the_command(root: Path) -> None:
    with Workspace(root) as ws:
        for _ in range(12):
            process = ws.start(["sleep", "600"])
            process.signal("TERM")  # perhaps while bubblewrap still sets the sandbox up
            end = process.wait(timeout=30)
            assert end is not None
            assert end.signal == "SIGTERM"


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no shared memory to work in")
@pytest.mark.parametrize("sandbox", ["workspace-write", "read-only"])
def test_a_workspace_in_shared_memory_is_shown_and_nothing_beside_it(
    sandbox: SandboxName, tmp_path: Path
) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        root = Path(place, "repo")
        root.mkdir()
        (root / "inside").write_text("in\n")
        Path(place, "beside").write_text("")
        with Workspace(root, sandbox=sandbox) as ws:
            assert ws.run("cat inside; ls ..").stdout == "in\nrepo\n"
            assert ws.files.read("inside") == "in\n"
            assert ws.files.download(".", tmp_path / "back").files == 1
            assert ws.run("touch new").ok == (sandbox == "workspace-write")


@pytest.mark.parametrize("far", [False, True])
def test_program_of_a_path_below_tmp_is_judged_before_it_is_started(
    far: bool, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of a virtual environment there, which the sandbox does not show."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place, contextlib.ExitStack() as stack:
        tool = Path(place, "bin/tool")
        tool.parent.mkdir()
        tool.write_text("#!/bin/sh\necho run\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
        at = stack.enter_context(server_process(tmp_path / "state")).url if far else None
        with Workspace(root, at=at) as ws:
            for name, why in (("missing-tool", r"\(os error 2\)$"), ("tool", "a /tmp of its own")):
                with pytest.raises(ExecutorSpawnFailed, match=f"cannot start {name}: .*{why}"):
                    ws.run([name])
            shown = Profile(read=("/", str(tool.parent)))
            assert ws.run(["tool"], sandbox=shown).stdout == "run\n"
            own = f"mkdir -p {tool.parent}; printf '#!/bin/sh\necho own' > {tool}; chmod +x {tool}"
            ws.run(own, check=True)
            assert ws.run(["tool"]).stdout == "own\n"
