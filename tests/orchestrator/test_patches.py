"""Patches: who is asked, and who writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from handrail.errors import ApprovalRejected, FilesError, Forbidden, PatchError
from handrail.executor.local_files import LocalSandboxedFiles
from handrail.orchestrator.approval_cache import Extent, FileKey
from handrail.orchestrator.approvals import Answer, Choice, Kind, Question, Reviewers
from handrail.orchestrator.patches import PatchAccess, admit_patch
from handrail.orchestrator.settings import Mode, SandboxMode, Settings, sandbox_intent
from handrail.patch.apply import applying, verifying
from handrail.patch.command import LocalFiles
from handrail.patch.grammar import parse
from handrail.patch.io_steps import run, run_async
from handrail.policy.context import Approval
from tests.orchestrator.scripted import Room, played


def add(path: str) -> str:
    return f"*** Begin Patch\n*** Add File: {path}\n+hi\n*** End Patch\n"


def apply(room: Room, text: str, cwd: Path) -> Any:
    patch = parse(text)
    changes = run(verifying(patch, str(cwd)), LocalFiles())

    async def main() -> Any:
        access = PatchAccess(room.orchestrator, room.executor, local=True)
        writer = await admit_patch(access, call_id="c1", cwd=str(cwd), changes=changes)
        try:
            return await run_async(applying(patch, str(cwd)), writer)
        finally:
            await writer.close()
            await access.close()

    return played(room, main)


def settings(cwd: Path, approval: Approval, mode: Mode = Mode.WORKSPACE_WRITE) -> Settings:
    box = SandboxMode(mode, exclude_slash_tmp=True, exclude_tmpdir=True)
    return Settings(str(cwd), approval, sandbox=box)


def test_inside_it_is_written_by_a_helper_in_the_sandbox(tmp_path: Path) -> None:
    room = Room(settings(tmp_path, Approval.ON_REQUEST))
    apply(room, add("sub/a.txt"), tmp_path)
    assert (tmp_path / "sub" / "a.txt").read_text() == "hi\n"
    assert room.scribe.questions == []
    assert list(room.executor.file_intents) == [sandbox_intent(room.orchestrator.settings)]


def test_untrusted_asks_once_for_the_session_and_per_file(tmp_path: Path) -> None:
    room = Room(settings(tmp_path, Approval.UNTRUSTED), Choice.APPROVE_FOR_SESSION)
    apply(room, add("a"), tmp_path)
    (question,) = room.scribe.questions
    assert question.kind is Kind.PATCH
    assert question.paths == (str(tmp_path / "a"),)
    cache = room.orchestrator.approval_cache
    again = Room(settings(tmp_path, Approval.UNTRUSTED), Choice.DENY, approval_cache=cache)
    apply(again, add("a"), tmp_path)
    more = Room(settings(tmp_path, Approval.UNTRUSTED), Choice.DENY, approval_cache=cache)
    both = add("a").replace("*** End", "*** Add File: b\n+x\n*** End")
    with pytest.raises(ApprovalRejected, match="patch rejected by user"):
        apply(more, both, tmp_path)
    assert not (tmp_path / "b").exists()


def test_outside_is_asked_and_then_written_without_a_sandbox(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    room = Room(settings(inside, Approval.ON_REQUEST), Choice.APPROVE)
    apply(room, add("../out.txt"), inside)
    assert (tmp_path / "out.txt").read_text() == "hi\n"
    assert room.executor.file_intents == {}


def test_untrusted_asks_once_about_a_path_outside(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    room = Room(settings(inside, Approval.UNTRUSTED), Choice.APPROVE)
    both = add("../out.txt").replace("*** End", "*** Add File: a\n+x\n*** End")
    apply(room, both, inside)
    assert (tmp_path / "out.txt").read_text() == "hi\n"
    (question,) = room.scribe.questions
    assert question.outside
    assert question.wants.write == (str(tmp_path / "out.txt"),)
    # The path inside is written in the sandbox all the same.
    assert list(room.executor.file_intents) == [sandbox_intent(room.orchestrator.settings)]


def test_never_refuses_outside(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    with pytest.raises(Forbidden, match="outside of the project"):
        apply(Room(settings(inside, Approval.NEVER)), add("../out.txt"), inside)
    read_only = settings(inside, Approval.NEVER, Mode.READ_ONLY)
    with pytest.raises(Forbidden, match="read-only"):
        apply(Room(read_only), add("a"), inside)
    assert os.listdir(tmp_path) == ["in"]


def test_an_approved_path_is_that_path_and_no_link(tmp_path: Path) -> None:
    inside, elsewhere = tmp_path / "in", tmp_path / "elsewhere"
    inside.mkdir()
    elsewhere.mkdir()
    (tmp_path / "way").symlink_to(elsewhere)
    room = Room(settings(inside, Approval.ON_REQUEST), Choice.APPROVE)
    with pytest.raises(PatchError) as caught:
        apply(room, add("../way/x"), inside)
    assert "through a link" in str(caught.value.__cause__)
    assert os.listdir(elsewhere) == []


def test_a_link_that_appears_after_the_yes_is_not_followed(tmp_path: Path) -> None:
    inside, shown, elsewhere = (tmp_path / name for name in ("in", "shown", "elsewhere"))
    for directory in (inside, shown, elsewhere):
        directory.mkdir()
    room = Room(settings(inside, Approval.ON_REQUEST))

    class Swaps:
        async def ask(self, question: Question) -> Answer:
            assert question.outside
            assert question.wants.write == (str(shown / "x"),)
            shown.rename(tmp_path / "aside")
            shown.symlink_to(elsewhere)
            return Answer(Choice.APPROVE)

    room.orchestrator.reviewers = Reviewers(Swaps())
    with pytest.raises(PatchError):
        apply(room, add(str(shown / "x")), inside)
    assert os.listdir(elsewhere) == []
    assert os.listdir(tmp_path / "aside") == []


def test_what_is_inside_is_written_in_the_sandbox_beside_a_path_outside(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    room = Room(settings(inside, Approval.ON_REQUEST), Choice.APPROVE_FOR_SESSION)
    both = add("../deep/er/out").replace("*** End", "*** Add File: sub/a\n+x\n*** End")
    apply(room, both, inside)
    assert (inside / "sub" / "a").read_text() == "x\n"
    assert (tmp_path / "deep" / "er" / "out").read_text() == "hi\n"
    (question,) = room.scribe.questions
    assert question.wants.write == (str(tmp_path / "deep/er/out"),)
    assert list(room.executor.file_intents) == [sandbox_intent(room.orchestrator.settings)]
    # For the session it is outside for the one path only.
    cache = room.orchestrator.approval_cache
    assert cache.knows([FileKey("local", question.wants.write[0])], Extent(outside=True))
    own = FileKey("local", str(inside / "sub" / "a"))
    assert cache.knows([own])
    assert not cache.knows([own], Extent(outside=True))


@pytest.fixture
def _refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the sandbox held more back than the settings tell."""

    async def write(_: LocalSandboxedFiles, path: str, data: bytes, **more: Any) -> None:
        raise FilesError("Read-only file system", kind="read_only", path=path)

    monkeypatch.setattr(LocalSandboxedFiles, "write", write)


@pytest.mark.usefixtures("_refusing")
def test_a_refusal_of_the_sandbox_is_put_to_the_user(tmp_path: Path) -> None:
    room = Room(settings(tmp_path, Approval.ON_REQUEST), Choice.APPROVE)
    apply(room, add("a"), tmp_path)
    assert (tmp_path / "a").exists()
    (question,) = room.scribe.questions
    assert question.kind is Kind.RETRY


@pytest.mark.usefixtures("_refusing")
def test_a_declined_rest_puts_back_what_was_written(tmp_path: Path) -> None:
    room = Room(settings(tmp_path, Approval.ON_REQUEST), Choice.DENY)
    with pytest.raises(PatchError):
        apply(room, add("new/folder/a"), tmp_path)
    assert len(room.scribe.questions) == 1
    assert os.listdir(tmp_path) == []
