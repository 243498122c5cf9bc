"""The shell's backend and the patch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from handrail.errors import ApprovalRejected, Forbidden
from handrail.orchestrator.approvals import Choice
from handrail.orchestrator.backends import (
    PatchBackend,
    PatchMode,
    ShellBackend,
    ShellMode,
    run_request,
)
from handrail.orchestrator.one_shot import Command
from handrail.orchestrator.result import ModelError
from handrail.orchestrator.settings import SandboxMode, Settings, Table
from handrail.policy.context import Approval
from tests.orchestrator.scripted import PATH, Room, played, sh

ADD = "*** Begin Patch\n*** Add File: a\n+{}\n*** End Patch\n"
COMMAND = Command(sh("echo hi"), PATH, on_output=lambda kind, data: None)


def mode(folder: Path, text: str = "hi", **more: Any) -> PatchMode:
    return PatchMode(ADD.format(text), str(folder), **more)


def settings(folder: Path, approval: Approval, table: Table = Table.CURRENT) -> Settings:
    return Settings(str(folder), approval, sandbox=SandboxMode(), table=table)


def run(room: Room, request: PatchMode | ShellMode) -> Any:
    return played(room, lambda: run_request(room.orchestrator, room.executor, COMMAND, request))


def test_a_backend_takes_its_own_mode_only(tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        ShellBackend().prepare(COMMAND, mode(tmp_path))
    with pytest.raises(ModelError):
        PatchBackend().prepare(COMMAND, ShellMode())


def test_a_patch_is_a_program_of_its_own(tmp_path: Path) -> None:
    ready = PatchBackend().prepare(COMMAND, mode(tmp_path))
    assert dict(ready.env) == {}
    assert ready.on_output is None
    assert ready.call.cwd == str(tmp_path)
    assert not PatchBackend.streams
    assert ShellBackend.streams


def test_a_shell_command_is_run_as_it_is() -> None:
    room = Room(settings(Path("/"), Approval.ON_REQUEST))
    assert run(room, ShellMode()).stdout == b"hi\n"


def test_a_large_patch_is_applied_in_the_sandbox(tmp_path: Path) -> None:
    room = Room(settings(tmp_path, Approval.ON_REQUEST))
    output = run(room, mode(tmp_path, "x" * 300_000))
    assert output.exit_code == 0, output.stderr
    assert output.stdout == b"Success. Updated the following files:\nA a\n"
    assert (tmp_path / "a").stat().st_size == 300_001
    assert room.executor.requests[0].sandbox is not None


def test_an_approved_patch_runs_without_a_sandbox(tmp_path: Path) -> None:
    room = Room(settings(tmp_path, Approval.UNTRUSTED))
    run(room, mode(tmp_path, approved=True))
    assert room.scribe.questions == []
    assert room.executor.requests[0].sandbox is None
    assert (tmp_path / "a").read_text() == "hi\n"


def test_an_approved_patch_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    room = Room(settings(tmp_path, Approval.UNTRUSTED))
    text = ADD.format("hi").replace("File: a", "File: link/a")
    output = run(room, PatchMode(text, str(tmp_path), approved=True))
    assert output.exit_code == 1
    assert list((tmp_path / "real").iterdir()) == []


def test_an_unapproved_patch_is_asked_about_or_refused(tmp_path: Path) -> None:
    room = Room(settings(tmp_path, Approval.UNTRUSTED), Choice.DENY)
    with pytest.raises(ApprovalRejected, match="patch rejected by user"):
        run(room, mode(tmp_path))
    assert room.scribe.questions[0].paths == (str(tmp_path / "a"),)
    seed = Room(settings(tmp_path, Approval.UNTRUSTED, Table.SEED))
    with pytest.raises(Forbidden, match="patch requires approval but none was recorded"):
        run(seed, mode(tmp_path))
