"""Files by the mounts of a sandbox: what is hidden stays hidden, and root has no more rights."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from handrail.errors import FilesError
from handrail.filesystem import other_root, syscalls
from handrail.sandbox import probe
from handrail.sandboxed_files import mount_view
from handrail.sandboxed_files.mount_view import MountView

_PROGRAM = """
import os, socket, sys
line = socket.socket(fileno=int(sys.argv[1]))
passed = [os.open("/", os.O_PATH), os.open("/proc/self/ns/mnt", os.O_RDONLY)]
socket.send_fds(line, [b"x"], passed)
line.recv(1)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "secret").write_text("secret")
    (tmp_path / "file").write_text("content")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "writable").mkdir()
    (tmp_path / "writable" / "kept").mkdir()
    (tmp_path / "writable" / "kept.txt").write_text("kept")
    return tmp_path


@pytest.fixture
def sandbox(tree: Path) -> Iterator[tuple[MountView, subprocess.Popen[bytes]]]:
    """A process whose mounts cover a directory, and the view of them."""
    rules = syscalls.RESOLVE_CACHED | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_IN_ROOT
    if not syscalls.supports(rules):
        pytest.skip("the kernel cannot open a path from its cache alone")
    ours, theirs = socket.socketpair()
    bwrap = [probe.bubblewrap().path, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    writable = str(tree / "writable")
    bwrap += ["--bind", writable, writable]
    for kept in ("kept", "kept.txt"):
        bwrap += ["--ro-bind", f"{writable}/{kept}", f"{writable}/{kept}"]
    bwrap += ["--tmpfs", str(tree / "hidden"), "--unshare-all", "--cap-drop", "ALL", "--"]
    words = [sys.executable, "-c", _PROGRAM, str(theirs.fileno())]
    with ours:
        with theirs:
            process = subprocess.Popen([*bwrap, *words], pass_fds=[theirs.fileno()])
        passed = socket.recv_fds(ours, 1, 2, socket.MSG_CMSG_CLOEXEC)[1]
        view = MountView.of(passed, [os.fsencode(tree / "writable" / ".git")])
        assert view is not None
        yield view, process
        view.close()
    process.wait(30)


View = tuple[MountView, subprocess.Popen[bytes]]


def test_it_shows_what_the_sandbox_sees(sandbox: View, tree: Path) -> None:
    view, _ = sandbox
    path = os.fsencode(tree / "file")
    os.stat(path)
    assert view.get_metadata(path).size == 7
    assert view.read_file(path, 7) == b"content"
    assert view.canonicalize(path) == path
    with pytest.raises(BlockingIOError):  # larger than is wanted at once
        view.read_file(path, 6)
    with pytest.raises(BlockingIOError):  # no file
        view.read_file(os.fsencode(tree), 100)


def test_links_and_processes_are_left_to_the_helper(sandbox: View, tree: Path) -> None:
    view, _ = sandbox
    for path in (os.fsencode(tree / "link"), b"/proc/self/status", b"/proc/1/root/etc", b"file"):
        with pytest.raises(BlockingIOError):
            view.get_metadata(path)
    with pytest.raises(BlockingIOError):
        view.canonicalize(os.fsencode(tree) + b"/../" + os.fsencode(tree.name))


def test_what_is_covered_stays_covered_when_the_sandbox_has_ended(
    sandbox: View, tree: Path
) -> None:
    view, process = sandbox
    secret = os.fsencode(tree / "hidden" / "secret")
    os.stat(secret)
    for ended in (False, True):
        if ended:
            process.kill()
            process.wait(30)
        with pytest.raises((BlockingIOError, FilesError)):
            view.get_metadata(secret)
        with pytest.raises((BlockingIOError, FilesError)):
            view.read_file(secret, 100)
        out = os.fsencode(tree) + b"/hidden/../../../../../../.." + secret
        with pytest.raises((BlockingIOError, FilesError)):
            view.read_file(out, 100)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root passes over the modes of files")
def test_root_has_no_more_rights_than_its_helper(sandbox: View, tree: Path) -> None:
    view, _ = sandbox
    foreign = tree / "foreign"
    foreign.write_text("of another")
    foreign.chmod(0o600)
    os.chown(foreign, 12345, 12345)
    closed = tree / "closed"
    (closed / "below").mkdir(parents=True)
    os.chown(closed, 12345, 12345)
    closed.chmod(0o700)
    os.stat(closed / "below")
    with pytest.raises(BlockingIOError):
        view.read_file(os.fsencode(foreign), 100)
    with pytest.raises(BlockingIOError):
        view.get_metadata(os.fsencode(closed / "below"))
    assert foreign.read_text() == "of another"  # ours are what they were


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to lay down")
@pytest.mark.parametrize("at", [0, 1])
def test_root_has_its_rights_again_after_an_interrupt(
    sandbox: View, tree: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    view, _ = sandbox
    real, calls = mount_view._capset, []

    def interrupted(*given: object) -> int:
        result: int = real(*given)
        calls.append(result)
        if len(calls) == at + 1:
            raise KeyboardInterrupt  # as a handler does, right behind the call
        return result

    def rights() -> str:
        return Path("/proc/thread-self/status").read_text().partition("CapEff:")[2].split()[0]

    before = rights()
    monkeypatch.setattr(mount_view, "_capset", interrupted)
    with pytest.raises(KeyboardInterrupt):
        view.write_file(os.fsencode(tree / "writable" / "new"), b"new")
    assert calls == [0, 0]
    assert rights() == before
    view.close()
    assert view._calls == 0


def test_mounts_of_our_own_are_no_view(tree: Path) -> None:
    passed = [os.open("/", os.O_PATH), os.open("/proc/self/ns/mnt", os.O_RDONLY)]
    assert MountView.of(passed) is None
    for fd in passed:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    assert MountView.of([]) is None


def test_a_closed_view_answers_nothing(sandbox: View, tree: Path) -> None:
    view, _ = sandbox
    view.close()
    view.close()
    assert view.closed
    with pytest.raises(BlockingIOError):
        view.get_metadata(os.fsencode(tree / "file"))


# --- changes, and listings --------------------------------------------------------------------


def _path(place: Path) -> bytes:
    """The path, whose directory is in memory."""
    os.stat(place.parent)
    return os.fsencode(place)


def test_what_the_mounts_allow_is_changed(sandbox: View, tree: Path, briefly: bool) -> None:
    view, _ = sandbox
    work = tree / "writable"
    view.write_file(_path(work / "new"), b"one", briefly=briefly)
    view.write_file(_path(work / "new"), b"two", briefly=briefly)
    view.copy(_path(work / "new"), _path(work / "copy"), briefly=briefly)
    view.create_directory(_path(work / "sub"), recursive=False, briefly=briefly)
    view.create_directory(_path(work / "sub"), recursive=True, briefly=briefly)
    assert (work / "new").read_bytes() == (work / "copy").read_bytes() == b"two"
    found = view.read_directory(_path(work))
    rows = [(os.fsdecode(entry.name), entry.is_directory, entry.is_file) for entry in found]
    assert sorted(rows) == [
        ("copy", False, True),
        ("kept", True, False),
        ("kept.txt", False, True),
        ("new", False, True),
        ("sub", True, False),
    ]
    for name in ("copy", "new", "sub", "missing"):
        view.remove(_path(work / name), force=True, briefly=briefly)
    assert sorted(os.listdir(work)) == ["kept", "kept.txt"]
    with pytest.raises(FilesError) as missing:
        view.remove(_path(work / "missing"), force=False)
    assert missing.value.kind == "not_found"


def test_a_file_keeps_its_mode_and_a_copy_has_that_of_its_source(sandbox: View, tree: Path) -> None:
    view, _ = sandbox
    script = tree / "writable" / "script"
    script.write_text("old")
    script.chmod(0o750)
    view.write_file(_path(script), b"new")
    view.copy(_path(script), _path(tree / "writable" / "copy"))
    for made in (script, tree / "writable" / "copy"):
        assert stat.S_IMODE(made.stat().st_mode) == 0o750
        assert made.read_bytes() == b"new"


def _changes(
    view: MountView, place: Path, source: Path, *, briefly: bool = False
) -> dict[str, Callable[[], None]]:
    path, how = _path(place), {"briefly": briefly}
    return {
        "write": lambda: view.write_file(path, b"changed", **how),
        "copy": lambda: view.copy(_path(source), path, **how),
        "remove": lambda: view.remove(path, force=False, **how),
        "mkdir": lambda: view.create_directory(path, recursive=False, **how),
    }


@pytest.fixture(params=[False, True], ids=["thread", "loop"])
def briefly(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether it is the event loop that makes the change; every file system is a tmpfs then."""
    if request.param:
        monkeypatch.setattr(other_root.syscalls, "is_tmpfs", lambda _: True)
    return bool(request.param)


@pytest.mark.parametrize("change", ["write", "copy", "remove", "mkdir"])
@pytest.mark.parametrize("name", ["file", "new", "writable/.git", "writable/.git/hooks", "link"])
def test_nothing_else_is_changed(
    sandbox: View, tree: Path, change: str, name: str, briefly: bool
) -> None:
    """Read-only mounts, refused names and what is below them, and links, whose target is not."""
    view, _ = sandbox
    (tree / "writable" / ".git").mkdir()
    (tree / "writable" / "source").write_text("source")
    before = sorted(os.walk(tree))
    with pytest.raises((BlockingIOError, FilesError)):
        source = tree / "writable" / "source"
        _changes(view, tree / name, source, briefly=briefly)[change]()
    assert sorted(os.walk(tree)) == before
    assert (tree / "file").read_text() == "content"


@pytest.mark.parametrize("change", ["write", "copy", "remove", "mkdir"])
@pytest.mark.parametrize("name", ["kept", "kept.txt"])
def test_a_name_on_which_the_sandbox_has_a_mount_stays(
    sandbox: View, tree: Path, change: str, name: str, briefly: bool
) -> None:
    """The kernel refuses to remove or replace a mount point only in the caller's own namespace, so
    it would take the mount and the name away."""
    view, _ = sandbox
    place, source = tree / "writable" / name, tree / "writable" / "source"
    source.write_text("source")
    before = place.stat()
    with pytest.raises(BlockingIOError):
        _changes(view, place, source, briefly=briefly)[change]()
    assert os.path.samestat(place.stat(), before)
    assert (tree / "writable" / "kept.txt").read_text() == "kept"
    with pytest.raises((BlockingIOError, FilesError)):  # its mount is still there
        view.create_directory(_path(tree / "writable" / "kept" / "sub"), recursive=False)


def test_no_link_leads_out_of_what_may_be_changed(sandbox: View, tree: Path) -> None:
    """Links inside it: as the last name, on the way, and as a source."""
    view, _ = sandbox
    work = tree / "writable"
    (work / "out").symlink_to(tree / "file")
    (work / "away").symlink_to(tree)
    (work / "secret").symlink_to(tree / "hidden" / "secret")
    os.stat(tree / "hidden" / "secret")
    calls: list[Callable[[], object]] = [
        lambda: view.write_file(_path(work / "out"), b"changed"),
        lambda: view.write_file(_path(work / "away" / "file"), b"changed"),
        lambda: view.remove(_path(work / "away" / "file"), force=True),
        lambda: view.copy(_path(work / "secret"), _path(work / "copy")),
        lambda: view.copy(_path(tree / "hidden" / "secret"), _path(work / "copy")),
        lambda: view.read_directory(_path(work / "away")),
        lambda: view.read_directory(_path(work)),  # its links are described by their targets
    ]
    for call in calls:
        with pytest.raises(BlockingIOError):
            call()
    assert (tree / "file").read_text() == "content"
    assert not (work / "copy").exists()


def test_what_a_rename_cannot_replace_alike_is_left_to_the_helper(
    sandbox: View, tree: Path
) -> None:
    view, _ = sandbox
    work = tree / "writable"
    shared = work / "shared"
    shared.write_text("old")
    (work / "other-name").hardlink_to(shared)
    program = work / "program"
    program.write_text("old")
    program.chmod(0o4755)
    os.mkfifo(work / "pipe")
    for name in ("shared", "program", "pipe", ""):
        with pytest.raises(BlockingIOError):
            view.write_file(_path(work / name), b"new")
    for name in ("program", "pipe", "."):  # a copy would have its set-id bits
        with pytest.raises(BlockingIOError):
            view.copy(_path(work / name), _path(work / "copy"))
    (work / "full" / "sub").mkdir(parents=True)
    with pytest.raises(BlockingIOError):
        view.remove(_path(work / "full"), force=True)
    assert shared.read_text() == program.read_text() == "old"
    assert not [name for name in os.listdir(work) if name.startswith(".handrail")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root passes over the modes of files")
def test_root_changes_no_more_than_its_helper(sandbox: View, tree: Path, briefly: bool) -> None:
    view, _ = sandbox
    closed = tree / "writable" / "closed"
    closed.mkdir()
    (closed / "file").write_text("of another")
    os.chown(closed / "file", 12345, 12345)
    os.chown(closed, 12345, 12345)
    for change in _changes(view, closed / "file", tree / "file", briefly=briefly).values():
        with pytest.raises(BlockingIOError):
            change()
    foreign = tree / "writable" / "foreign"
    foreign.write_text("of another")
    os.chown(foreign, 12345, 12345)
    foreign.chmod(0o666)
    with pytest.raises(BlockingIOError):  # a stage would be our own
        view.write_file(_path(foreign), b"new", briefly=briefly)
    assert (closed / "file").read_text() == foreign.read_text() == "of another"
    (closed / "ours").write_text("")  # our rights are what they were


def test_a_view_that_is_closed_in_a_call_lasts_as_long_as_that(
    sandbox: View, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, process = sandbox
    begun, go_on = threading.Event(), threading.Event()
    create = other_root.create_directory

    def slow(*given: bytes, root: int, **options: bool) -> None:
        begun.set()
        assert go_on.wait(30)
        os.fstat(root)
        create(*given, root=root, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(other_root, "create_directory", slow)
    path = _path(tree / "writable" / "sub")
    thread = threading.Thread(target=lambda: view.create_directory(path, recursive=False))
    thread.start()
    assert begun.wait(30)
    view.close()
    process.kill()
    process.wait(30)
    with pytest.raises(BlockingIOError):
        view.remove(path, force=True)
    go_on.set()
    thread.join(30)
    assert (tree / "writable" / "sub").is_dir()
    assert view._root < 0
