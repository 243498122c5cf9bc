"""Files by the mounts of a sandbox: what is hidden stays hidden, and root has no more rights."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.errors import FilesError
from handrail.filesystem import syscalls
from handrail.sandbox import probe
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
    return tmp_path


@pytest.fixture
def sandbox(tree: Path) -> Iterator[tuple[MountView, subprocess.Popen[bytes]]]:
    """A process whose mounts cover a directory, and the view of them."""
    rules = syscalls.RESOLVE_CACHED | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_IN_ROOT
    if not syscalls.supports(rules):
        pytest.skip("the kernel cannot open a path from its cache alone")
    ours, theirs = socket.socketpair()
    bwrap = [probe.bubblewrap().path, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    bwrap += ["--tmpfs", str(tree / "hidden"), "--unshare-all", "--cap-drop", "ALL", "--"]
    words = [sys.executable, "-c", _PROGRAM, str(theirs.fileno())]
    with ours:
        with theirs:
            process = subprocess.Popen([*bwrap, *words], pass_fds=[theirs.fileno()])
        passed = socket.recv_fds(ours, 1, 2, socket.MSG_CMSG_CLOEXEC)[1]
        view = MountView.of(passed)
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
