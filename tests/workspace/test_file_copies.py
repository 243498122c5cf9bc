"""Trees that are copied into and out of a workspace, near and far, sandboxed and not."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import random
import socket
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from handrail import AsyncWorkspace, FilesError, NotCopied, Profile, UsageError, Workspace
from handrail.executor.fake_files import FakeFiles
from handrail.executor.trees import copy_between_machines as copying
from handrail.executor.trees.base import Outcomes, Trees
from handrail.executor.trees.copy_between_machines import Side
from handrail.filesystem.trees.entry import Batch, Change, Contents, Names, TreeEntry, joined
from handrail.filesystem.trees.listing import Page
from handrail.filesystem.trees.names_listing import Directory, NamesPage
from handrail.workspace import file_transfer
from tests.executor.chaos import Mood, chaos
from tests.executor.places import KINDS, Room, run_in, serving
from tests.support.coroutines import run

WHEN = 1_600_000_000_123_456_789


def make_tree(root: Path) -> None:
    """Files of each kind; times are in the past."""
    (root / "sub/deep").mkdir(parents=True)
    (root / "empty").mkdir(mode=0o750)
    (root / "a.txt").write_text("grüße")
    (root / "nothing").touch()
    (root / "sub/tool").write_text("#!/bin/sh\necho works\n")
    (root / "sub/tool").chmod(0o755)
    (root / "sub/deep/private").write_bytes(bytes(range(256)) * 9)
    (root / "sub/deep/private").chmod(0o600)
    (root / "big").write_bytes(random.Random(1).randbytes(2_500_000))
    (root / "sub/link").symlink_to("../a.txt")
    (root / "dangling").symlink_to("no/such/file")
    (root / "outside").symlink_to("/etc")
    for directory, names, files in os.walk(root, topdown=False):
        for name in (*names, *files):
            os.utime(os.path.join(directory, name), ns=(WHEN, WHEN), follow_symlinks=False)
    os.utime(root, ns=(WHEN, WHEN))


def described(root: Path, unit: int = 1) -> dict[str, Any]:
    """Everything that is to be kept of a tree."""
    found: dict[str, Any] = {}
    for directory, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(directory) / name
            status = path.lstat()
            content: Any = None
            if path.is_symlink():
                content = os.readlink(path)
            elif path.is_file():
                content = path.read_bytes()
            mode = 0 if path.is_symlink() else stat.S_IMODE(status.st_mode)
            when = 0 if path.is_symlink() and unit > 1 else status.st_mtime_ns // unit
            found[str(path.relative_to(root))] = (stat.S_IFMT(status.st_mode), mode, when, content)
    return found


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_tree_goes_there_and_back(kind: str, tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    source.mkdir()
    make_tree(source)
    told: list[tuple[int, int, int]] = []

    async def main(room: Room) -> None:
        async with AsyncWorkspace(room.base, sandbox="off", executor=room.executor) as ws:
            copied = await ws.files.upload(
                source, "there/it", progress=lambda *now: told.append(now)
            )
            assert (copied.files, copied.links, copied.directories) == (5, 3, 4)
            await ws.files.download("there/it", back)
        unit = 1 if room.ours else 1_000_000
        assert described(tmp_path / "there/it", unit) == described(source, unit)
        assert described(back, unit) == described(source, unit)
        size = sum(len(one[3]) for one in described(source).values() if isinstance(one[3], bytes))
        assert told[-1] == (5, size, size)
        assert [now[1] for now in told] == sorted(now[1] for now in told)

    run_in(kind, tmp_path, main)


@pytest.fixture(params=["here", "there"])
def held_ws(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workspace]:
    """A sandboxed workspace, near or far."""
    from tests.support.servers import ServerProcess

    (tmp_path / "ws").mkdir()
    if request.param == "here":
        with Workspace(tmp_path / "ws") as ws:
            yield ws
        return
    server = ServerProcess(tmp_path / "state")
    try:
        with Workspace(tmp_path / "ws", at=server.url) as ws:
            yield ws
    finally:
        server.stop()
        server.close()


def test_the_sandbox_holds_for_copies(held_ws: Workspace, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    make_tree(source)
    files = held_ws.files
    files.upload(source, "in")
    assert described(tmp_path / "ws/in") == described(source)
    assert held_ws.run("sub/tool", cwd="in").stdout == "works\n"
    files.download("in", tmp_path / "out")
    assert described(tmp_path / "out") == described(source)
    with pytest.raises(PermissionError, match="elsewhere"):
        files.upload(source, tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()
    # A protected name of the sandbox is refused, and the rest is copied.
    (source / ".git").mkdir()
    (source / ".git/hooks").write_text("evil")
    with pytest.raises(NotCopied, match=r"\.git") as info:
        files.upload(source, ".")
    assert {os.path.basename(one.path) for one in info.value.failures} <= {".git", "hooks"}
    assert not (tmp_path / "ws/.git/hooks").exists()
    assert (tmp_path / "ws/a.txt").read_text() == "grüße"


def test_what_is_hidden_is_not_downloaded(tmp_path: Path) -> None:
    (tmp_path / "ws/sub").mkdir(parents=True)
    (tmp_path / "ws/sub/.env").write_text("secret")
    (tmp_path / "ws/sub/seen").write_text("x")
    with Workspace(tmp_path / "ws", sandbox=Profile(write=(".",), deny=("**/.env",))) as ws:
        with pytest.raises(NotCopied) as info:
            ws.files.download(".", tmp_path / "out")
        assert [os.path.basename(one.path) for one in info.value.failures] == [".env"]
    assert (tmp_path / "out/sub/seen").read_text() == "x"
    assert not (tmp_path / "out/sub/.env").exists()


def test_excluded_names_are_left_out(ws: Workspace, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("a.py", "a.pyc", "sub/b.pyc", "node_modules/x/y.js", "sub/node_modules/z"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    ws.files.upload(source, "there", exclude=["**/*.pyc", "node_modules/"])
    assert sorted(described(tmp_path / "there")) == [
        *("a.py", "sub", "sub/node_modules", "sub/node_modules/z"),
    ]
    ws.files.download("there", tmp_path / "back", exclude="sub")
    assert sorted(described(tmp_path / "back")) == ["a.py"]
    assert ws.files.glob("**/{z,a.py}", "there") == ["a.py", "sub/node_modules/z"]
    assert [one.path for one in ws.files.walk("there", exclude="sub/*")] == ["a.py", "sub"]
    with pytest.raises(FilesError, match="brackets"):
        ws.files.upload(source, "there", exclude="[z-a]")
    with pytest.raises(UsageError):
        ws.files.upload(source, "there", exclude=[5])  # type: ignore[list-item]


@pytest.mark.parametrize("kind", list(KINDS))
def test_more_than_fits_into_one_answer(kind: str, tmp_path: Path) -> None:
    """Sizes are not known before files are read; what does not fit is read another time."""
    source = tmp_path / "source"
    source.mkdir()
    rng = random.Random(3)
    for number in range(30):
        (source / f"f{number}").write_bytes(rng.randbytes(rng.randrange(300_000)))
    (source / "large").write_bytes(rng.randbytes(3_000_000))
    (source / "empty").touch()

    async def main(room: Room) -> None:
        async with AsyncWorkspace(room.base, sandbox="off", executor=room.executor) as ws:
            assert (await ws.files.upload(source, "there")).files == 32
            assert (await ws.files.download("there", tmp_path / "back")).files == 32

    run_in(kind, tmp_path, main)
    unit = 1_000_000
    assert described(tmp_path / "there", unit) == described(source, unit)
    assert described(tmp_path / "back", unit) == described(source, unit)


def test_a_tree_is_copied_into_itself(ws: Workspace, tmp_path: Path) -> None:
    (tmp_path / "tree/sub").mkdir(parents=True)
    for name in ("a", "sub/b"):
        (tmp_path / "tree" / name).write_text(name)
    assert ws.files.upload(tmp_path / "tree", "tree/sub/copy").files == 2
    assert sorted(described(tmp_path / "tree/sub/copy")) == ["a", "sub", "sub/b"]


def test_one_file(ws: Workspace, tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("x")
    tool.chmod(0o755)
    (tmp_path / "alias").symlink_to("tool")
    ws.files.upload(tmp_path / "alias", "new/place/named")
    assert (tmp_path / "new/place/named").stat().st_mode & 0o777 == 0o755
    ws.files.upload(tool, "new")  # a directory: under its own name
    assert (tmp_path / "new/tool").read_text() == "x"
    ws.files.download("new/tool", tmp_path / "back")
    assert (tmp_path / "back").read_text() == "x"
    with pytest.raises(FileNotFoundError, match="missing"):
        ws.files.upload(tmp_path / "missing", "x")
    with pytest.raises(FileNotFoundError, match="missing"):
        ws.files.download("missing", tmp_path / "x")


def test_repeated_copies_replace_and_skip(ws: Workspace, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    make_tree(source)
    ws.files.upload(source, "there")
    (tmp_path / "there/a.txt").unlink()
    (tmp_path / "there/a.txt").symlink_to(tmp_path / "victim")
    (tmp_path / "victim").write_text("untouched")
    (source / "nothing").write_text("now something")
    copied = ws.files.upload(source, "there", skip_unchanged=True)
    assert described(tmp_path / "there") == described(source)
    assert (copied.files, copied.unchanged) == (2, 6)
    assert (tmp_path / "victim").read_text() == "untouched"  # the link was replaced


def test_pipes_and_sockets_are_named_and_skipped(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    os.mkfifo(source / "pipe")
    (source / "file").write_text("x")
    with socket.socket(socket.AF_UNIX) as one:
        monkeypatch.chdir(source)  # a socket's path is short
        one.bind("socket")
        copied = ws.files.upload(source, "there")
    assert copied.skipped == (f"{source}/pipe", f"{source}/socket")
    assert sorted(os.listdir(tmp_path / "there")) == ["file"]


def test_what_cannot_be_copied_is_named_and_the_rest_is_copied(
    ws: Workspace, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("a", "b", "c"):
        (source / name).write_text(name)
    (tmp_path / "there/b").mkdir(parents=True)  # where a file is to be
    with pytest.raises(NotCopied, match="there/b: ") as info:
        ws.files.upload(source, "there")
    assert [one.path for one in info.value.failures] == [f"{tmp_path}/there/b"]
    assert isinstance(info.value.failures[0], IsADirectoryError)
    assert info.value.copied.files == 2
    assert (tmp_path / "there/c").read_text() == "c"
    assert not [name for name in os.listdir(tmp_path / "there") if name.startswith(".handrail")]


def test_names_that_are_no_text_are_copied(ws: Workspace, tmp_path: Path) -> None:
    source = os.fsencode(tmp_path) + b"/s\xff"
    os.mkdir(source)
    with open(source + b"/f %41\xfe\n", "wb") as file:
        file.write(b"x")
    os.symlink(b"to\xfd", source + b"/l")
    ws.files.upload(source, "there")
    assert sorted(os.listdir(os.fsencode(tmp_path) + b"/there")) == [b"f %41\xfe\n", b"l"]
    assert os.readlink(os.fsencode(tmp_path) + b"/there/l") == b"to\xfd"


class Hostile(FakeFiles):
    """A machine that sends what it likes: files, and links as tuples."""

    def __init__(self, entries: dict[bytes, Any]) -> None:
        super().__init__()
        self._trees = HostileTrees(entries)

    @property
    def trees(self) -> Trees:
        return self._trees


class HostileTrees(Trees):
    def __init__(self, entries: dict[bytes, Any]) -> None:
        self.entries = entries

    async def list(self, root: str, *, after: bytes = b"", exclude: Sequence[str] = ()) -> Page:
        entries = [
            TreeEntry(path, "link", target=one[1])
            if isinstance(one, tuple)
            else TreeEntry(path, "file", 0o6755, size=len(one))
            for path, one in self.entries.items()
        ]
        return Page(TreeEntry(b"", "directory", 0o755), entries, [], False)

    async def names(
        self, root: str, *, after: tuple[bytes, bytes] | None = None, exclude: Sequence[str] = ()
    ) -> NamesPage:
        page = await self.list(root)
        directories = [Directory(TreeEntry(b"", "directory"), [])]
        for one in page.entries:
            above, _, name = one.path.rpartition(b"/")
            if one.kind == "file" and above:
                directories.append(Directory(TreeEntry(above, "directory"), [name]))
            elif one.kind == "file":
                directories[0].names.append(one.path)
        others = [one for one in page.entries if one.kind != "file"]
        return NamesPage(page.root, directories, others, [], None)

    async def read(self, root: str, wanted: Sequence[Names]) -> Contents:
        found = [self.entries[joined(one, name)] for one, names in wanted for name in names]
        lengths = [len(one) for one in found]
        return Contents([0o6755] * len(found), [0] * len(found), lengths, b"".join(found), {}, {})

    async def read_part(self, root: str, path: bytes, offset: int, length: int) -> bytes:
        raise AssertionError

    async def write(self, root: str, batch: Batch) -> dict[int, FilesError]:
        raise AssertionError

    async def change(self, root: str, changes: Sequence[Change], data: bytes = b"") -> Outcomes:
        raise AssertionError


async def test_files_are_read_while_others_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "WINDOW", 1)
    source = Hostile({b"f%d" % number: b"x" for number in range(copying.BATCH_FILES + 1)})
    target = Hostile({})
    reads: list[int] = []
    both = asyncio.Event()
    read_them = source.trees.read

    async def read(root: str, wanted: Sequence[Names]) -> Contents:
        reads.append(len(wanted))
        if len(reads) == 2:
            both.set()
        return await read_them(root, wanted)

    async def write(root: str, batch: Batch) -> dict[int, FilesError]:
        await both.wait()
        return {}

    monkeypatch.setattr(source.trees, "read", read)
    monkeypatch.setattr(target.trees, "write", write)
    async with asyncio.timeout(60):
        copied, problems = await copying.copy_tree(Side(source, "/home"), Side(target, "/home"))
    assert (copied.files, problems) == (copying.BATCH_FILES + 1, [])


@pytest.mark.parametrize("progress", [None, lambda *now: None], ids=["names", "sizes"])
def test_a_hostile_machine_writes_nowhere_else(progress: Any, tmp_path: Path) -> None:
    """Names and links that a server sends never lead out of the destination."""
    (tmp_path / "outside").mkdir()
    evil = Hostile(
        {
            b"../up": b"x",
            b"/abs": b"x",
            b"a/../../up": b"x",
            b"": b"x",
            b"a//b": b"x",
            b"nul\0": b"x",
            b"fine": b"x",
            b"through": ("link", os.fsencode(tmp_path / "outside")),
            b"through/it": b"x",
        }
    )
    with pytest.raises(NotCopied) as info:
        side = Side(evil, "/")
        run(file_transfer.transfer(str(tmp_path / "dst"), side, upload=False, progress=progress))
    # By names ``through`` is said to be a directory and a link: what comes second fails, and if
    # that is the directory, the file in it fails too.
    assert len(info.value.failures) in ((7,) if progress else (7, 8))
    assert sorted(os.listdir(tmp_path / "dst")) == ["fine", "through"]
    assert (tmp_path / "dst/fine").stat().st_mode & 0o7777 == 0o755  # no set-id bits
    assert sorted(os.listdir(tmp_path)) == ["dst", "outside"]
    assert os.listdir(tmp_path / "outside") == []


def test_a_downloaded_file_has_the_name_that_was_asked_for(
    held_ws: Workspace, tmp_path: Path
) -> None:
    """A command makes the file a link: where it leads does not say what is written at home."""
    held_ws.run("echo ours > .bashrc; ln -s .bashrc report.txt")
    home = tmp_path / "home"
    home.mkdir()
    held_ws.files.download("report.txt", home)
    assert os.listdir(home) == ["report.txt"]
    assert (home / "report.txt").read_text() == "ours\n"


def test_a_cut_connection_is_resumed(tmp_path: Path) -> None:
    """Connections are cut in the middle, again and again; each tree arrives whole."""
    source = tmp_path / "source"
    source.mkdir()
    make_tree(source)
    rng = random.Random(7)
    for number in range(1500):
        place = source / f"d{number % 20}"
        place.mkdir(exist_ok=True)
        (place / f"f{number}").write_bytes(rng.randbytes(rng.randrange(4000)))

    async def main() -> None:
        async with serving(tmp_path) as url, chaos(url, seed=5) as proxy:
            async with AsyncWorkspace(tmp_path, at=proxy.url, sandbox="off") as ws:
                await ws.files.exists(".")
                proxy.mood = Mood(cut=0.01)
                await ws.files.upload(source, "there")
                await ws.files.download("there", tmp_path / "back")
                proxy.mood = Mood()
                assert proxy.cuts > 2

    run(main())
    want = described(source)
    assert described(tmp_path / "there") == want
    assert described(tmp_path / "back") == want


@pytest.mark.parametrize("sandbox", ["off", "workspace-write"])
def test_ten_thousand_files(sandbox: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for directory in range(100):
        (source / f"d{directory}").mkdir(parents=True)
        for number in range(100):
            (source / f"d{directory}/f{number}").write_text(f"{directory} {number}")
    (tmp_path / "ws").mkdir()
    with Workspace(tmp_path / "ws", sandbox=sandbox) as ws:
        assert ws.files.upload(source, "there").files == 10_000
        assert sum(1 for one in ws.files.walk("there") if one.kind == "file") == 10_000
    assert described(tmp_path / "ws/there") == described(source)


@pytest.mark.parametrize("kind", ["local", "websocket", "codex"])
def test_errors_are_oserrors_that_name_the_path(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "dir").mkdir()

    async def main(room: Room) -> None:
        async with AsyncWorkspace(room.base, sandbox="off", executor=room.executor) as ws:
            for call, family, number in (
                (lambda: ws.files.read("missing"), FileNotFoundError, errno.ENOENT),
                (lambda: ws.files.stat("missing"), FileNotFoundError, errno.ENOENT),
                (lambda: ws.files.remove("missing"), FileNotFoundError, errno.ENOENT),
                (lambda: ws.files.list("missing"), FileNotFoundError, errno.ENOENT),
                (lambda: ws.files.list("file"), NotADirectoryError, errno.ENOTDIR),
                (lambda: ws.files.write("dir", "x"), IsADirectoryError, errno.EISDIR),
                (lambda: ws.files.mkdir("dir", parents=False), FileExistsError, errno.EEXIST),
            ):
                with pytest.raises(family) as info:
                    await call()
                error: Any = info.value
                assert isinstance(error, FilesError)
                assert error.errno == number
                assert error.filename == error.path
                assert error.path.startswith(str(tmp_path))
                assert error.path in str(error)
                again = pickle.loads(pickle.dumps(error))
                assert (type(again), str(again), again.path) == (
                    type(error),
                    str(error),
                    error.path,
                )

    run_in(kind, tmp_path, main)


def test_moves(ws: Workspace, tmp_path: Path) -> None:
    ws.files.write("a", "1")
    ws.files.write("b", "2")
    ws.files.move("a", "b")
    assert ws.files.read("b") == "1"
    ws.files.mkdir("d/e")
    ws.files.move("d", "f")
    assert ws.files.exists("f/e")
    with pytest.raises(FileNotFoundError, match="gone"):
        ws.files.move("gone", "x")
    with pytest.raises(FilesError):
        ws.files.move(".", "x")
