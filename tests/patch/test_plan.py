"""Working patches out without touching anything."""

from __future__ import annotations

import pytest

from handrail.errors import PatchError
from handrail.patch.grammar import PatchSyntaxError, parse
from handrail.patch.plan import Change, ChangeKind, plan, plan_hunk, resolve, touched, verify
from handrail.patch.seek import Level
from tests.patch.memory import MemoryFiles

FILES = {"/w/f": b"a\nb\n", "/w/g": b"x\n"}


def planned(body: str, files: dict[str, bytes] | None = None) -> tuple[Change, ...]:
    patch = parse(f"*** Begin Patch\n{body}\n*** End Patch")
    return plan(patch.hunks, "/w", MemoryFiles(FILES if files is None else files).read)


def refused(body: str, files: dict[str, bytes] | None = None) -> str:
    with pytest.raises(PatchError) as caught:
        planned(body, files)
    return str(caught.value)


def verified(body: str) -> tuple[Change, ...]:
    patch = parse(f"*** Begin Patch\n{body}\n*** End Patch")
    return verify(patch.hunks, "/w", MemoryFiles(FILES).read)


@pytest.mark.parametrize(
    ("path", "absolute"),
    [
        ("f", "/w/f"),
        ("./a//b/../c/", "/w/a/c"),
        ("../../../x", "/x"),
        ("/a/../b", "/b"),
        ("//a", "/a"),
        (".", "/w"),
        ("a\tb", "/w/ab"),
        ("\t/a", "/w/a"),
        (".\t./a", "/a"),
        ("a\\b%2e~$X", "/w/a\\b%2e~$X"),
    ],
)
def test_resolve(path: str, absolute: str) -> None:
    assert resolve(path, "/w") == absolute


def test_a_path_with_a_nul_is_no_path() -> None:
    with pytest.raises(PatchError, match=r"^'a\x00b' is invalid on 'linux'$"):
        resolve("a\0b", "/w")


def test_touched_names_what_has_to_be_read() -> None:
    patch = parse("*** Begin Patch\n*** Update File: f\n*** Move to: d/g\n-a\n*** End Patch")
    assert touched(patch.hunks[0], "/w") == ["/w/f", "/w/d/g"]


def test_changes_carry_before_and_after() -> None:
    add, update, move, delete = planned(
        "*** Add File: n\n+1\n*** Update File: f\n-a\n+A\n"
        "*** Update File: f\n*** Move to: g\n- b\n*** Delete File: ./n"
    )
    assert add == Change(ChangeKind.ADD, "/w/n", "n", None, b"1\n")
    assert update == Change(ChangeKind.UPDATE, "/w/f", "f", b"a\nb\n", b"A\nb\n")
    assert move == Change(
        ChangeKind.UPDATE, "/w/f", "g", b"A\nb\n", b"A\n", "/w/g", b"x\n", Level.AROUND
    )
    assert delete == Change(ChangeKind.DELETE, "/w/n", "./n", b"1\n", None)
    assert (update.target, move.target) == ("/w/f", "/w/g")


def test_a_move_onto_itself_is_an_update() -> None:
    (change,) = planned("*** Update File: f\n*** Move to: ./d/../f\n-a")
    assert (change.move_to, change.target, change.shown) == (None, "/w/f", "./d/../f")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            "*** Update File: n\n-a",
            "Failed to read file to update /w/n: No such file or directory (os error 2)",
        ),
        ("*** Update File: /w\n-a", "Failed to read file to update /w: path `/w` is not a file"),
        ("*** Delete File: n", "Failed to delete file /w/n"),
        ("*** Delete File: .", "Failed to delete file /w"),
        ("*** Add File: .\n+1", "Failed to write file /w"),
        ("*** Add File: f/x\n+1", "Failed to write file /w/f/x"),
        ("*** Update File: f\n*** Move to: g/x\n-a", "Failed to write file /w/g/x"),
        (
            "*** Delete File: f\n*** Update File: f\n-a",
            "Failed to read file to update /w/f: No such file or directory (os error 2)",
        ),
        ("*** Add File: n\n+1\n*** Add File: n/x\n+1", "Failed to write file /w/n/x"),
        ("*** Add File: n/x\n+1\n*** Add File: n\n+1", "Failed to write file /w/n"),
        (
            "*** Update File: f\n*** Move to: n\n-a\n*** Update File: f\n-b",
            "Failed to read file to update /w/f: No such file or directory (os error 2)",
        ),
    ],
)
def test_what_cannot_be_done_is_seen_before(body: str, sentence: str) -> None:
    assert refused(body) == sentence


def test_a_file_may_give_way_to_a_folder() -> None:
    delete, add = planned("*** Delete File: f\n*** Add File: f/x\n+1")
    assert (delete.path, add.path) == ("/w/f", "/w/f/x")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"ab\xff", "invalid utf-8 sequence of 1 bytes from index 2"),
        (b"\xf0\x90(", "invalid utf-8 sequence of 2 bytes from index 0"),
        (b"ab\xe2\x82", "incomplete utf-8 byte sequence from index 2"),
        (b"\xed\xa0\x80", "invalid utf-8 sequence of 1 bytes from index 0"),
    ],
)
def test_only_utf8_can_be_updated(data: bytes, what: str) -> None:
    said = refused("*** Update File: f\n-a", {"/w/f": data})
    assert said == f"Failed to read file to update /w/f: {what}"


def test_anything_can_be_deleted_or_overwritten() -> None:
    files = {"/w/f": b"\xff"}
    assert planned("*** Delete File: f", files)[0].before == b"\xff"
    assert planned("*** Add File: f\n+1", files)[0].before == b"\xff"


def test_one_hunk_says_nothing_about_additions_and_deletions() -> None:
    patch = parse("*** Begin Patch\n*** Delete File: n\n*** End Patch")
    assert plan_hunk(patch.hunks[0], "/w", MemoryFiles().read).before is None


def test_agents_may_name_a_file_once_only() -> None:
    with pytest.raises(PatchSyntaxError, match=r"^multiple operations target /w/f$"):
        verified("*** Update File: f\n-a\n*** Update File: d/../f\n-zz")


def test_the_target_of_a_move_does_not_count() -> None:
    changes = verified("*** Update File: f\n*** Move to: g\n-a\n*** Update File: g\n-x")
    assert [change.after for change in changes] == [b"b\n", b""]


def test_agents_are_told_why_a_file_cannot_be_deleted() -> None:
    with pytest.raises(PatchError) as caught:
        verified("*** Delete File: n")
    assert str(caught.value) == "Failed to read /w/n: No such file or directory (os error 2)"
