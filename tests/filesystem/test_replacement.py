"""All of the new content or all of the old (E3, E6, E9)."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from handrail.errors import FilesError
from handrail.filesystem import syscalls
from handrail.filesystem.local import write_file
from handrail.filesystem.replacement import Replacement
from tests.filesystem.expect import as_nobody, failing


def names(place: Path) -> list[str]:
    return sorted(os.listdir(place))


def test_new_files_get_the_default_mode(tmp_path: Path, stage: str) -> None:
    old = os.umask(0o027)
    try:
        write_file(str(tmp_path / "f"), b"new")
    finally:
        os.umask(old)
    assert (tmp_path / "f").read_bytes() == b"new"
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640
    assert names(tmp_path) == ["f"]


def test_existing_files_keep_mode_and_attributes(tmp_path: Path, stage: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old content")
    path.chmod(0o751)
    try:
        os.setxattr(path, "user.mark", b"kept")
        marked = True
    except OSError:
        marked = False  # this file system has none
    before = path.stat().st_ino
    write_file(str(path), b"new", sync=True)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o7777 == 0o751
    assert path.stat().st_ino != before
    assert not marked or os.getxattr(path, "user.mark") == b"kept"
    assert names(tmp_path) == ["f"]


def test_hard_links_stay_together(tmp_path: Path, stage: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"a longer old content")
    os.link(path, tmp_path / "twin")
    write_file(str(path), b"new")
    assert (tmp_path / "twin").read_bytes() == b"new"
    assert path.stat().st_nlink == 2
    assert names(tmp_path) == ["f", "twin"]


def test_links_are_written_through(tmp_path: Path, stage: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/f").write_bytes(b"old")
    (tmp_path / "two").symlink_to("one")
    (tmp_path / "one").symlink_to("sub/f")
    write_file(str(tmp_path / "two"), b"new")
    assert (tmp_path / "sub/f").read_bytes() == b"new"
    assert (tmp_path / "two").is_symlink()
    assert (tmp_path / "one").is_symlink()
    (tmp_path / "dangling").symlink_to(tmp_path / "sub/made")
    write_file(str(tmp_path / "dangling"), b"made")
    assert (tmp_path / "sub/made").read_bytes() == b"made"
    assert names(tmp_path / "sub") == ["f", "made"]


@pytest.mark.parametrize(
    ("name", "follow", "kind"),
    [
        ("none/f", True, "not_found"),
        ("none/f", False, "not_found"),
        ("lost", True, "not_found"),
        ("loop", True, "other"),
        ("file/x", True, "not_a_directory"),
        ("dir", True, "is_a_directory"),
        ("to-dir", True, "is_a_directory"),
        ("dir", False, "is_a_directory"),
        ("link", False, "other"),
        ("dangling", False, "other"),
        ("/", True, "is_a_directory"),
        ("/dev/null", True, "invalid_input"),
        ("n" * 256, True, "other"),
    ],
)
def test_refusals_change_nothing(
    tmp_path: Path, resolver: str, name: str, follow: bool, kind: str
) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "dir").mkdir()
    for link, target in [
        ("link", "file"),
        ("dangling", "nothing"),
        ("lost", "none/x"),
        ("loop", "loop"),
        ("to-dir", "dir"),
    ]:
        (tmp_path / link).symlink_to(target)
    before = names(tmp_path)
    with failing(kind):
        write_file(str(tmp_path / name), b"new", follow=follow)
    assert names(tmp_path) == before
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_link_on_the_way_is_refused(tmp_path: Path, resolver: str) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "to-dir").symlink_to("dir")
    with pytest.raises(FilesError):
        write_file(str(tmp_path / "to-dir/f"), b"new", follow=False)
    assert names(tmp_path / "dir") == []
    write_file(str(tmp_path / "dir/f"), b"new", follow=False)
    assert (tmp_path / "dir/f").read_bytes() == b"new"


@pytest.mark.parametrize("follow", [True, False])
def test_e6_a_pipe_is_refused_at_once(tmp_path: Path, follow: bool) -> None:
    os.mkfifo(tmp_path / "pipe")
    with failing("invalid_input"):
        write_file(str(tmp_path / "pipe"), b"new", follow=follow)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_long_names_leave_room_for_none_of_ours(tmp_path: Path, stage: str) -> None:
    for _ in range(2):
        write_file(str(tmp_path / ("n" * 255)), b"new")
    assert names(tmp_path) == ["n" * 255]


def test_names_that_are_not_utf8(tmp_path: Path, stage: str) -> None:
    path = os.fsencode(tmp_path) + b"/\xff\xfe"
    write_file(path, b"1")
    write_file(os.fsdecode(path), b"2")
    assert os.listdir(os.fsencode(tmp_path)) == [b"\xff\xfe"]


def test_e3_a_full_disk_keeps_the_old_content(tiny_disk: Path, stage: str) -> None:
    path = tiny_disk / "f"
    path.write_bytes(b"o" * 60_000)
    with failing("other"):
        write_file(str(path), b"n" * 300_000)
    with failing("other"):
        write_file(str(tiny_disk / "new"), b"n" * 300_000)
    assert path.read_bytes() == b"o" * 60_000
    assert names(tiny_disk) == ["f"]
    write_file(str(path), b"n" * 60_000)  # the space came back
    assert path.read_bytes() == b"n" * 60_000


def test_e3_also_when_written_in_place(tiny_disk: Path, tmp_path: Path) -> None:
    path = tiny_disk / "f"
    path.write_bytes(b"o" * 60_000)
    os.link(path, tiny_disk / "twin")
    (tiny_disk / "ballast").write_bytes(b"b" * 70_000)
    # Space for the stage or for the file, but not for both.
    with failing("other"):
        write_file(str(path), b"n" * 120_000)
    assert path.read_bytes() == b"o" * 60_000
    assert names(tiny_disk) == ["ballast", "f", "twin"]


@pytest.mark.parametrize("call", ["write", "link", "rename", "fsync"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_e3_any_failing_step_changes_nothing(
    tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    if call == "link" and stage == "named":
        pytest.skip("a named stage is not linked")
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def fail(*_args: object, **_options: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fail)
    with failing("other"):
        write_file(str(path), b"new", sync=True)
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["f"]


def test_a_failed_reservation_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    os.link(path, tmp_path / "twin")

    def full(_fd: int, _length: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(syscalls, "reserve", full)
    with failing("other"):
        write_file(str(path), b"new content")
    assert path.read_bytes() == b"old"


def test_a_mount_point_is_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"covered")
    (tmp_path / "real").write_bytes(b"old")
    command = ["mount", "--bind", str(tmp_path / "real"), str(path)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("bind mounts are not allowed here")
    try:
        write_file(str(path), b"new")
        assert (tmp_path / "real").read_bytes() == b"new"
    finally:
        subprocess.run(["umount", str(path)], check=True)
    assert names(tmp_path) == ["f", "real"]


def test_permissions_of_the_file_count(open_place: Path) -> None:
    mine = open_place / "mine"
    mine.mkdir()
    os.chown(mine, 65534, 65534)
    path = mine / "f"
    path.write_bytes(b"old")
    # A rename would be allowed, but the file is not ours to write.
    with failing("permission_denied"):
        as_nobody(lambda: write_file(str(path), b"new"))
    path.chmod(0o666)
    as_nobody(lambda: write_file(str(path), b"new"))
    assert path.read_bytes() == b"new"
    assert path.stat().st_uid == 0  # kept, so it was written in place
    assert names(mine) == ["f"]


def test_a_closed_directory_does_not_stop_writing_an_open_file(open_place: Path) -> None:
    path = open_place / "f"
    path.write_bytes(b"a longer old content")
    path.chmod(0o666)
    as_nobody(lambda: write_file(str(path), b"new"))
    assert path.read_bytes() == b"new"
    with failing("permission_denied"):
        as_nobody(lambda: write_file(str(open_place / "other"), b"new"))
    assert names(open_place) == ["f"]


def test_root_keeps_the_owner(open_place: Path) -> None:
    path = open_place / "f"
    path.write_bytes(b"old")
    os.chown(path, 65534, 65533)
    path.chmod(0o4755)
    write_file(str(path), b"new")
    status = path.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (65534, 65533, 0o4755)


def test_our_own_memory_is_not_written() -> None:
    with failing("permission_denied"):
        write_file("/proc/self/oom_score_adj", b"0")


def test_a_name_taken_meanwhile_is_replaced(tmp_path: Path, stage: str) -> None:
    path = tmp_path / "f"
    replacement = Replacement(str(path))
    replacement.write(b"ours")
    path.write_bytes(b"theirs")
    replacement.commit()
    assert path.read_bytes() == b"ours"
    assert names(tmp_path) == ["f"]


def test_a_link_replaced_by_a_file_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, other = tmp_path / "place", tmp_path / "other"
    place.symlink_to(other)
    read = os.readlink

    def replaced(name: bytes, *, dir_fd: int | None = None) -> bytes:
        if name == b"place" and place.is_symlink():
            place.unlink()
            place.write_text("old")
        return read(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "readlink", replaced)
    write_file(str(place), b"new")
    assert place.read_text() == "new"
    assert not other.exists()


def test_one_refused_link_is_enough_to_know(tmp_path: Path, stage: str) -> None:
    for name in "ab":
        write_file(str(tmp_path / name), b"new")
        replacement = Replacement(str(tmp_path / name))
        assert len(names(tmp_path / ".")) == (2 if stage != "nameless" else 1) + "ab".index(name)
        replacement.discard()


def test_discarding_leaves_nothing(tmp_path: Path, stage: str) -> None:
    replacement = Replacement(str(tmp_path / "f"))
    replacement.write(b"ours")
    assert len(names(tmp_path)) == (1 if stage == "named" else 0)
    replacement.discard()
    replacement.discard()
    assert names(tmp_path) == []


def test_e9_a_swapped_directory_never_leads_outside(tmp_path: Path, resolver: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"untouched")
    (root / "d").mkdir(parents=True)
    stop = threading.Event()
    tried = threading.Condition()
    attempts = swaps = 0

    def rest() -> None:
        """Until a whole attempt has been made, so that each outcome comes up on any machine."""
        with tried:
            seen = attempts
            tried.wait_for(lambda: stop.is_set() or attempts >= seen + 2, 30)

    def swap() -> None:
        nonlocal swaps
        while not stop.is_set():
            os.rename(root / "d", root / "away")
            os.symlink(outside, root / "d")
            if swaps % 20 == 10:
                rest()
            os.unlink(root / "d")
            os.rename(root / "away", root / "d")
            if swaps % 20 == 0:
                rest()
            swaps += 1

    racer = threading.Thread(target=swap)
    racer.start()
    written = refused = 0
    try:
        # Bounded by work, not by time; go on until both outcomes have been seen.
        for turn in range(20_000):
            try:
                write_file(str(root / "d/f"), b"%d" % turn, follow=False)
                written += 1
            except FilesError:
                refused += 1
            with tried:
                attempts += 1
                tried.notify()
            if turn >= 300 and written and refused:
                break
    finally:
        stop.set()
        with tried:
            tried.notify()
        racer.join()
    assert written
    assert refused
    assert swaps
    assert names(outside) == ["f"]
    assert (outside / "f").read_bytes() == b"untouched"


def test_e9_a_swapped_file_is_never_written_through(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"untouched")
    path = tmp_path / "f"
    path.write_bytes(b"plain")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.symlink(tmp_path / "secret", tmp_path / "next")
            os.rename(tmp_path / "next", path)
            (tmp_path / "next").write_bytes(b"plain")
            os.rename(tmp_path / "next", path)

    racer = threading.Thread(target=swap)
    racer.start()
    try:
        for _ in range(500):
            try:
                write_file(str(path), b"ours", follow=False)
            except FilesError:
                pass
    finally:
        stop.set()
        racer.join()
    assert (tmp_path / "secret").read_bytes() == b"untouched"
