"""Reading: what is refused, what is streamed, what changes meanwhile (E4, E5)."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from handrail.errors import UsageError
from handrail.filesystem.regular_file import BLOCK, READ_LIMIT, ReadPlan, read_file
from tests.filesystem.expect import failing


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir/inner").write_bytes(b"in")
    os.mkfifo(tmp_path / "pipe")
    for name, target in [
        ("link", "file"),
        ("link2", "link"),
        ("dangling", "nothing"),
        ("to-dir", "dir"),
        ("loop", "loop"),
    ]:
        (tmp_path / name).symlink_to(target)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "socket"))
    server.close()
    return tmp_path


@pytest.mark.parametrize("name", ["file", "link", "link2", "file/", "dir/inner", "to-dir/inner"])
def test_files_are_read(zoo: Path, name: str) -> None:
    assert read_file(f"{zoo}/{name}") in (b"abc", b"in")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("none", "not_found"),
        ("none/x", "not_found"),
        ("dangling", "not_found"),
        ("file/x", "not_a_directory"),
        ("loop", "other"),
        ("socket", "other"),
    ],
)
def test_what_cannot_be_opened(zoo: Path, name: str, kind: str) -> None:
    with failing(kind):
        read_file(str(zoo / name))


@pytest.mark.parametrize(
    "name", ["dir", "to-dir", "pipe", "/dev/null", "/dev/zero", "/dev/urandom"]
)
def test_only_regular_files(zoo: Path, name: str) -> None:
    path = str(zoo / name)
    if not os.path.exists(path):
        pytest.skip(f"{path} is not here")
    with failing("invalid_input", f"path `{path}` is not a file"):
        read_file(path)


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("dir", "invalid_input", "path is not a regular file"),
        ("pipe", "invalid_input", "path is not a regular file"),
        ("link", "other", None),
        ("dangling", "other", None),
        ("loop", "other", None),
        ("none", "not_found", None),
    ],
)
def test_without_following(
    zoo: Path, resolver: str, name: str, kind: str, text: str | None
) -> None:
    assert read_file(str(zoo / "dir/inner"), follow=False) == b"in"
    with failing(kind, text):
        read_file(str(zoo / name), follow=False)


def test_a_link_on_the_way_is_refused(zoo: Path, resolver: str) -> None:
    with pytest.raises(Exception) as caught:
        read_file(str(zoo / "to-dir/inner"), follow=False)
    assert caught.value.kind in ("other", "not_a_directory")  # type: ignore[attr-defined]


def test_the_path_of_an_error_keeps_every_byte(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff"
    with pytest.raises(Exception) as caught:
        read_file(path)
    assert os.fsencode(caught.value.path) == path  # type: ignore[attr-defined]
    os.mkdir(path)
    with failing("invalid_input", f"path `{tmp_path}/\ufffd` is not a file"):
        read_file(path)


def test_the_limit_is_exact(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 10)
    assert read_file(str(path), limit=10) == b"x" * 10
    with failing("invalid_input", "file is too large to read: limit is 9 bytes"):
        read_file(str(path), limit=9)
    with failing("invalid_input"):
        ReadPlan(str(path), limit=9)
    os.truncate(path, READ_LIMIT + 1)
    with failing("invalid_input", "file is too large to read: limit is 536870912 bytes"):
        read_file(str(path))


@pytest.mark.parametrize("path", ["/proc/version", "/proc/sys/kernel/ostype"])
def test_proc_files_are_read_though_they_claim_to_be_empty(path: str) -> None:
    whole = read_file(path)
    assert whole == Path(path).read_bytes()
    with ReadPlan(path) as plan:
        assert plan.size == len(whole)
        assert b"".join(plan) == whole


def test_our_own_process_is_not_shown() -> None:
    pid = os.getpid()
    for place in ("/proc/self", "/proc/thread-self", f"/proc/{pid}", f"/proc/self/task/{pid}"):
        for name in ("environ", "maps"):
            with failing("permission_denied"):
                read_file(f"{place}/{name}")


def test_blocks_join_to_one_base64_text(tmp_path: Path) -> None:
    data = os.urandom(10_000)
    path = tmp_path / "f"
    path.write_bytes(data)
    with ReadPlan(str(path)) as plan:
        pieces = list(iter(lambda: plan.next_block(999), b""))
    assert [len(piece) for piece in pieces] == [999] * 10 + [10]
    text = b"".join(base64.b64encode(piece) for piece in pieces)
    assert text == base64.b64encode(data)
    assert BLOCK % 3 == 0
    with pytest.raises(UsageError):
        with ReadPlan(str(path)) as plan:
            plan.next_block(1000)


def test_growth_is_not_seen(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"a" * 3000)
    with ReadPlan(str(path)) as plan:
        assert plan.size == 3000
        first = plan.next_block(300)
        with path.open("ab") as file:
            file.write(b"b" * 3000)
        assert first + b"".join(plan) == b"a" * 3000
        assert plan.delivered == plan.size


def test_shrinking_ends_early_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"a" * 3000)
    with ReadPlan(str(path)) as plan:
        plan.next_block(300)
        os.truncate(path, 450)
        assert plan.next_block(300) == b"a" * 150
        os.truncate(path, 3000)
        assert plan.next_block(300) == b""
        assert (plan.delivered, plan.size) == (450, 3000)


def test_closing_a_plan_twice_is_harmless(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    plan = ReadPlan(str(tmp_path / "f"))
    plan.close()
    plan.close()
    assert plan.next_block() == b""


_MEASURE = """
import sys
from handrail.filesystem.regular_file import ReadPlan

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

before = peak()
with ReadPlan(sys.argv[1]) as plan:
    total = sum(len(piece) for piece in plan)
assert total == plan.size == 500 * 1024 * 1024
print(peak() - before)
"""


def test_e4_streaming_500_mib_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 500 * 1024 * 1024)
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(path)], check=True, capture_output=True
    )
    assert int(done.stdout) < 16 * 1024  # KiB; the promise is 64 MiB
