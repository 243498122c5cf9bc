"""File calls stay out of /proc of this runtime's own processes, by every spelling."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from handrail.errors import FilesError
from handrail.filesystem import local, own_processes, syscalls
from handrail.filesystem.handles import HandleTable
from handrail.filesystem.walk import WalkOptions, walk

pytestmark = pytest.mark.fault

PID = os.getpid()
OPTIONS = WalkOptions(max_depth=2, max_directories=100, max_entries=1000)


@pytest.fixture(params=["openat2", "by steps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "by steps":
        monkeypatch.setattr(syscalls, "supports", lambda rules: False)


@pytest.fixture
def secret() -> Iterator[int]:
    """A descriptor of this process whose content is nobody else's business."""
    fd = os.memfd_create("secret")
    os.write(fd, b"secret")
    yield fd
    os.close(fd)


@pytest.fixture
def thread() -> Iterator[int]:
    """The number of another thread of this process."""
    end = threading.Event()
    one = threading.Thread(target=end.wait)
    one.start()
    assert one.native_id is not None
    yield one.native_id
    end.set()
    one.join()


@pytest.fixture
def other() -> Iterator[int]:
    """The pid of a process of the same user that is no child; our parent may be another's."""
    script = "sleep 1000 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        pid = int(shell.stdout.readline())
        yield pid
        os.kill(pid, signal.SIGKILL)


def refused(work: Callable[[], object]) -> None:
    with pytest.raises(FilesError, match="Permission denied") as caught:
        work()
    assert caught.value.kind == "permission_denied"


def spellings(name: str, thread: int) -> list[str]:
    return [
        f"/proc/self/{name}",
        f"/proc/thread-self/{name}",
        f"/proc/{PID}/{name}",
        f"/proc/{PID}/task/{thread}/{name}",
        f"/proc/{thread}/{name}",
        f"/proc/1/../{PID}/./{name}",
        f"/proc/{PID}/root/proc/self/{name}",
    ]


def test_content(way: None, thread: int, secret: int, tmp_path: Path) -> None:
    for name in ("environ", "maps", f"fd/{secret}", f"fdinfo/{secret}", "root/etc/passwd"):
        for path in spellings(name, thread):
            refused(lambda path=path: local.read_file(path))  # type: ignore[misc]
            link = tmp_path / "link"
            link.symlink_to(path)
            refused(lambda link=link: local.read_file(str(link)))  # type: ignore[misc]
            refused(lambda path=path: local.copy(path, str(tmp_path / "x")))  # type: ignore[misc]
            link.unlink()


def test_names(way: None, thread: int, secret: int, tmp_path: Path) -> None:
    for path in spellings("fd", thread):
        refused(lambda path=path: local.read_directory(path))  # type: ignore[misc]
        refused(lambda path=path: local.get_metadata(f"{path}/{secret}"))  # type: ignore[misc]
        refused(lambda path=path: local.canonicalize(f"{path}/{secret}"))  # type: ignore[misc]
        refused(lambda path=path: local.copy(f"{path}/{secret}", str(tmp_path / "x")))  # type: ignore[misc]
        refused(
            lambda path=path: local.copy(path, str(tmp_path / "y"), recursive=True)  # type: ignore[misc]
        )
        found = walk(path, OPTIONS)
        assert not found.entries
        assert "Permission denied" in found.errors[0].message
    assert not (tmp_path / "x").exists()


def test_a_walk_from_above_does_not_enter(way: None) -> None:
    found = walk("/proc", WalkOptions(1, 10_000, 50_000))
    assert not any(entry.parent == b"/proc/%d/" % PID for entry in found.entries)
    assert any(entry.parent == b"/proc/%d/" % os.getppid() for entry in found.entries)


def test_changes(way: None, thread: int, secret: int) -> None:
    for path in spellings(f"fd/{secret}", thread):
        refused(lambda path=path: local.write_file(path, b"changed"))  # type: ignore[misc]
        refused(lambda path=path: local.remove(path))  # type: ignore[misc]
        refused(lambda path=path: HandleTable().open("h", path))  # type: ignore[misc]
    refused(lambda: local.write_file("/proc/self/comm", b"changed"))
    assert os.pread(secret, 100, 0) == b"secret"


def test_a_registered_process(way: None, other: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_processes, "_registered", [lambda: 0])
    assert local.read_file(f"/proc/{other}/stat").startswith(b"%d" % other)
    own_processes.register(lambda: other)
    refused(lambda: local.read_file(f"/proc/{other}/stat"))
    refused(lambda: local.read_directory(f"/proc/{other}/task"))


def test_other_processes_and_the_rest_of_proc_stay_open(way: None, other: int) -> None:
    assert local.read_file("/proc/cpuinfo")
    assert local.read_file("/proc/sys/kernel/pid_max").strip().isdigit()
    assert local.canonicalize(f"/proc/{other}/cwd") == os.fsencode(
        os.path.realpath(f"/proc/{other}/cwd")
    )
    assert local.get_metadata(f"/proc/{other}/cwd").is_directory
    assert local.read_directory(f"/proc/{other}/task")


def test_links_that_loop(way: None, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(FilesError, match="Too many levels"):
        local.read_file(str(tmp_path / "a"))
