"""Carrying patches out where things go wrong."""

from __future__ import annotations

import asyncio

import pytest

from handrail.errors import ConnectionLost, PatchError
from handrail.patch.apply import Mode, apply, applying, preparing
from handrail.patch.commit import PartlyAppliedError, committing
from handrail.patch.grammar import parse
from handrail.patch.hunks import Patch
from handrail.patch.io_steps import run, run_async
from tests.patch.memory import AwaitedFiles, MemoryFiles

BEFORE = {"/w/f": b"a\n", "/w/g": b"x\n", "/w/h": b"y\n"}
EVERYTHING = (
    "*** Add File: n/o/p\n+1\n*** Update File: f\n-a\n+A\n"
    "*** Update File: g\n*** Move to: q/g\n-x\n+X\n*** Delete File: h"
)
AFTER = {"/w/n/o/p": b"1\n", "/w/f": b"A\n", "/w/q/g": b"X\n"}


def patch(body: str) -> Patch:
    return parse(f"*** Begin Patch\n{body}\n*** End Patch")


def failing(body: str, files: MemoryFiles, mode: Mode = Mode.ATOMIC) -> PatchError:
    with pytest.raises(PatchError) as caught:
        apply(patch(body), files, "/w", mode)
    return caught.value


@pytest.mark.parametrize("mode", Mode)
def test_everything_at_once(mode: Mode) -> None:
    files = MemoryFiles(BEFORE)
    changes = apply(patch(EVERYTHING), files, "/w", mode)
    assert files.files == AFTER
    assert [change.shown for change in changes] == ["n/o/p", "f", "q/g", "h"]


@pytest.mark.parametrize("mode", Mode)
def test_no_hunks_no_success(mode: Mode) -> None:
    with pytest.raises(PatchError, match=r"^No files were modified\.$"):
        apply(Patch(()), MemoryFiles(), "/w", mode)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (("write", "/w/n/o/p"), "Failed to write file /w/n/o/p"),
        (("mkdir", "/w/n"), "Failed to create parent directories for /w/n/o/p"),
        (("mkdir", "/w/n/o"), "Failed to create parent directories for /w/n/o/p"),
        (("write", "/w/f"), "Failed to write file /w/f"),
        (("write", "/w/q/g"), "Failed to write file /w/q/g"),
        (("mkdir", "/w/q"), "Failed to create parent directories for /w/q/g"),
        (("remove", "/w/g"), "Failed to remove original /w/g"),
        (("remove", "/w/h"), "Failed to delete file /w/h"),
    ],
)
def test_a_failure_at_any_point_leaves_nothing_behind(call: tuple[str, str], sentence: str) -> None:
    files = MemoryFiles(BEFORE)
    files.fail.add(call)
    error = failing(EVERYTHING, files)
    assert str(error) == sentence
    assert not isinstance(error, PartlyAppliedError)
    assert files.files == BEFORE
    assert files.folders == {"/", "/w"}


def test_a_hunk_that_does_not_fit_is_found_out_before_anything_is_written() -> None:
    files = MemoryFiles(BEFORE)
    failing(f"{EVERYTHING}\n*** Update File: /w/zz\n-a", files)
    assert {name for name, _ in files.calls} == {"read"}


def test_an_interrupt_is_undone_too() -> None:
    files = MemoryFiles(BEFORE)
    files.interrupt = ("remove", "/w/h")
    with pytest.raises(KeyboardInterrupt):
        apply(patch(EVERYTHING), files, "/w")
    assert files.files == BEFORE
    assert files.folders == {"/", "/w"}


def test_what_cannot_be_put_back_is_named() -> None:
    class Stubborn(MemoryFiles):
        def write(self, path: str, data: bytes) -> None:
            if path == "/w/f" and data == b"a\n":
                self.fail.add(("write", path))
            super().write(path, data)

    files = Stubborn(BEFORE)
    files.fail.add(("remove", "/w/h"))
    error = failing(EVERYTHING, files)
    assert isinstance(error, PartlyAppliedError)
    assert error.stuck == ("/w/f",)
    assert str(error) == "Failed to delete file /w/h (could not be put back: /w/f)"
    assert {path for path, data in BEFORE.items() if files.files.get(path) != data} == {"/w/f"}


def test_a_lost_connection_does_not_stop_the_undoing() -> None:
    class Flaky(MemoryFiles):
        lost = 0

        def remove(self, path: str) -> None:
            self.lost += 1
            if self.lost <= 2:
                raise ConnectionLost("gone")
            super().remove(path)

    files = Flaky({"/w/f": b"a\n", "/w/h": b"y\n"})
    with pytest.raises(PartlyAppliedError) as caught:
        apply(patch("*** Add File: n\n+1\n*** Update File: f\n-a\n*** Delete File: h"), files, "/w")
    assert caught.value.stuck == ("/w/n",)
    assert isinstance(caught.value.__cause__, ConnectionLost)
    assert files.files == {"/w/f": b"a\n", "/w/h": b"y\n", "/w/n": b"1\n"}


def test_a_foreign_edit_between_plan_and_commit_is_not_overwritten() -> None:
    files = MemoryFiles(BEFORE)
    changes = run(preparing(patch(EVERYTHING), "/w"), files)
    files.files["/w/f"] = b"mine\n"
    with pytest.raises(PatchError, match=r"^/w/f changed while the patch was applied$"):
        run(committing(changes), files)
    assert files.files == BEFORE | {"/w/f": b"mine\n"}


def test_a_file_that_appears_between_plan_and_commit_is_not_overwritten() -> None:
    files = MemoryFiles(BEFORE)
    changes = run(preparing(patch("*** Add File: n\n+1"), "/w"), files)
    files.files["/w/n"] = b"mine\n"
    with pytest.raises(PatchError, match="changed while"):
        run(committing(changes), files)
    assert files.files["/w/n"] == b"mine\n"


def test_added_and_deleted_again_touches_nothing() -> None:
    files = MemoryFiles(BEFORE)
    apply(patch("*** Add File: n/m\n+1\n*** Delete File: n/m"), files, "/w")
    assert files.files == BEFORE
    assert files.folders == {"/", "/w"}


@pytest.mark.parametrize("mode", Mode)
def test_a_file_gives_way_to_a_folder(mode: Mode) -> None:
    files = MemoryFiles({"/w/f": b"a\n"})
    apply(patch("*** Delete File: f\n*** Add File: f/x\n+1"), files, "/w", mode)
    assert files.files == {"/w/f/x": b"1\n"}


def test_a_file_that_gave_way_comes_back() -> None:
    files = MemoryFiles({"/w/f": b"a\n", "/w/h": b"y\n"})
    files.fail.add(("remove", "/w/h"))
    failing("*** Delete File: f\n*** Add File: f/x\n+1\n*** Delete File: h", files)
    assert files.files == {"/w/f": b"a\n", "/w/h": b"y\n"}
    assert "/w/f" not in files.folders


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("target", ["f", "./f", "d/../f", "/w/f"])
def test_a_file_moved_onto_itself_survives(mode: Mode, target: str) -> None:
    files = MemoryFiles({"/w/f": b"a\n"})
    (change,) = apply(
        patch(f"*** Update File: f\n*** Move to: {target}\n-a\n+A"), files, "/w", mode
    )
    assert files.files == {"/w/f": b"A\n"}
    assert change.shown == target


def test_one_by_one_keeps_what_came_before_and_says_so() -> None:
    files = MemoryFiles(BEFORE)
    error = failing(
        "*** Add File: n\n+1\n*** Delete File: zz\n*** Delete File: h", files, Mode.COMPATIBLE
    )
    assert isinstance(error, PartlyAppliedError)
    assert [change.shown for change in error.changes] == ["n"]
    assert str(error) == "Failed to delete file /w/zz"
    assert files.files == BEFORE | {"/w/n": b"1\n"}


def test_one_by_one_without_anything_done_is_a_plain_failure() -> None:
    error = failing("*** Delete File: zz", MemoryFiles(), Mode.COMPATIBLE)
    assert not isinstance(error, PartlyAppliedError)


@pytest.mark.parametrize("mode", Mode)
def test_awaited_files_work_the_same(mode: Mode) -> None:
    files = MemoryFiles(BEFORE)
    asyncio.run(run_async(applying(patch(EVERYTHING), "/w", mode), AwaitedFiles(files)))
    assert files.files == AFTER


def test_being_cancelled_is_undone_and_not_swallowed() -> None:
    files = MemoryFiles(BEFORE)

    class Waiting(AwaitedFiles):
        async def remove(self, path: str) -> None:
            if path == "/w/h":
                reached.set()
                await asyncio.Event().wait()
            await super().remove(path)

    async def main() -> None:
        task = asyncio.create_task(run_async(applying(patch(EVERYTHING), "/w"), Waiting(files)))
        await reached.wait()
        assert files.files != BEFORE
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    reached = asyncio.Event()
    asyncio.run(main())
    assert files.files == BEFORE
    assert files.folders == {"/", "/w"}


def test_steps_can_be_abandoned() -> None:
    steps = applying(patch(EVERYTHING), "/w")
    next(steps)
    steps.close()
