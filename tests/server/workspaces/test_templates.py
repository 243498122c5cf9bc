"""Templates and warm pools of a real server; archives that are refused."""

from __future__ import annotations

import asyncio
import bz2
import gc
import gzip
import hashlib
import io
import lzma
import os
import signal
import stat
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handrail.errors import RpcError
from handrail.server.workspaces.directories import Directories
from handrail.server.workspaces.file_work import FileWork
from handrail.server.workspaces.pools import Pools
from handrail.server.workspaces.templates import Templates
from handrail.server.workspaces.tree_copy import Stopped
from handrail.template_archive import BadTemplate, pack, unpack
from tests.server.workspaces.support import (
    archive_of,
    create,
    listed,
    member,
    options,
    packed,
    path_of,
    ran,
)
from tests.support.clients import Client, Refused, dialled
from tests.support.eventually import LIMIT
from tests.support.servers import ServerProcess, server_process


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A template with a program, data, links, a closed file and a virtual environment's link."""
    root = tmp_path / "source"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "hello").write_text("#!/bin/sh\necho hello\n")
    (root / "bin" / "hello").chmod(0o755)
    (root / "data").write_bytes(bytes(range(256)) * 2000)
    (root / "link").symlink_to("data")
    (root / "python").symlink_to("/usr/bin/python3")
    (root / "closed").write_text("c")
    (root / "closed").chmod(0o400)
    return root


async def add(client: Client, source: Path, target: Path) -> str:
    digest = packed(source, target)
    await client.call("template/add", digest=digest, path=target.as_uri())
    return digest


def test_the_same_content_has_the_same_digest(source: Path, tmp_path: Path) -> None:
    first = packed(source, tmp_path / "a.tar")
    os.utime(source / "data", ns=(1, int(os.stat(source / "data").st_mtime) * 10**9 + 5))
    assert packed(source, tmp_path / "b.tar") == first
    (source / "data").write_bytes(b"other")
    assert packed(source, tmp_path / "c.tar") != first
    os.mkfifo(source / "pipe")
    with pytest.raises(BadTemplate, match="neither a file"), (tmp_path / "d.tar").open("wb") as to:
        pack(str(source), to)


async def test_a_template_is_added_once_and_copied(source: Path, tmp_path: Path) -> None:
    with server_process(tmp_path / "s", *options(tmp_path / "d")) as server:
        async with dialled(server.url) as client:
            digest = await add(client, source, tmp_path / "t.tar")
            await client.call("template/add", digest=digest, path="file:///nowhere")
            assert (await client.call("workspace/list"))["templates"] == [digest]
            one = await create(client, template=digest)
            two = await create(client, template=digest)
            script = "bin/hello; readlink link python; wc -c < data"
            told = b"hello\ndata\n/usr/bin/python3\n512000\n"
            assert await ran(client, "p", one, script) == told
            root = path_of(one["root"])
            assert stat.S_IMODE((root / "closed").stat().st_mode) == 0o400
            assert (root / "data").stat().st_mtime == int((source / "data").stat().st_mtime)
            (root / "data").write_text("changed")
            (root / "bin" / "hello").unlink()
            assert await ran(client, "q", two, script) == told
            assert await ran(client, "r", await create(client, template=digest), script) == told
            with pytest.raises(Refused) as missing:
                await create(client, template="0" * 64)
            assert missing.value.data == {"what": "template", "kind": "missing"}
            with pytest.raises(Refused, match="no regular file"):  # which never ends
                async with asyncio.timeout(LIMIT):
                    await client.call("template/add", digest="0" * 64, path="file:///dev/zero")


_LINK, _FILE, _HARD = tarfile.SYMTYPE, tarfile.REGTYPE, tarfile.LNKTYPE
HOSTILE: dict[str, list[Any]] = {
    "absolute": [member("/tmp/evil")],
    "dots": [member("a/../../evil")],
    "behind a link": [member("a", _LINK, "/tmp"), member("a/evil")],
    "behind a relative link": [
        member("d", tarfile.DIRTYPE),
        member("a", _LINK, "d"),
        member("a/e"),
    ],
    "a device": [member("null", tarfile.CHRTYPE)],
    "a pipe": [member("pipe", tarfile.FIFOTYPE)],
    "set user id": [member("su", mode=0o4755)],
    "set group id": [member("sg", mode=0o2755)],
    "a hard link out": [member("passwd", _HARD, "/etc/passwd")],
    "a hard link up": [member("passwd", _HARD, "../passwd")],
    "a hard link to a link": [member("a", _LINK, "/etc/passwd"), member("b", _HARD, "a")],
    "a hard link behind a link": [member("a", _LINK, "/etc"), member("b", _HARD, "a/passwd")],
    "a file instead of the root": [member(".")],
    "below a file": [member("a"), member("a/b")],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_unsafe_archive_is_refused(name: str, tmp_path: Path) -> None:
    digest = archive_of(tmp_path / "t.tar", *HOSTILE[name])
    (tmp_path / "out").mkdir()
    with (tmp_path / "t.tar").open("rb") as file, pytest.raises(BadTemplate) as refused:
        unpack(file, digest, str(tmp_path / "out"))
    assert refused.value.kind == "unsafe"


def test_a_member_that_comes_twice_is_never_written_through_its_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    later, _ = member("a")
    digest = archive_of(tmp_path / "t.tar", member("a", _LINK, str(victim)), (later, b"evil"))
    out = tmp_path / "out"
    out.mkdir()
    with (tmp_path / "t.tar").open("rb") as file:
        unpack(file, digest, str(out))
    assert victim.read_text() == "mine"
    assert (out / "a").read_text() == "evil"
    assert not (out / "a").is_symlink()


def _problem(content: bytes, out: Path) -> str | None:
    """The kind of what is wrong with an archive that was broken before its digest was taken."""
    out.mkdir()
    try:
        unpack(io.BytesIO(content), hashlib.sha256(content).hexdigest(), str(out))
    except BadTemplate as error:
        return error.kind
    return None


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_an_archive_that_was_cut_is_corrupt(
    compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    """At every length: also where only whole members are left, or half a header is."""
    archive_of(tmp_path / "t.tar", member("a"), (member("n" * 200)[0], b"content"), member("z"))
    plain = (tmp_path / "t.tar").read_bytes()
    whole = compress(plain)
    assert _problem(whole, tmp_path / "whole") is None
    names = sorted(os.listdir(tmp_path / "whole"))
    for length in range(0, len(whole), max(1, len(whole) // 200)):
        out = tmp_path / str(length)
        if _problem(whole[:length], out) is None:  # only what fills up the last record is missing
            assert sorted(os.listdir(out)) == names
            assert (out / ("n" * 200)).read_bytes() == b"content"


def test_a_changed_header_or_a_wrong_checksum_is_corrupt(tmp_path: Path) -> None:
    archive_of(tmp_path / "t.tar", member("a"), member("z"))
    whole = bytearray((tmp_path / "t.tar").read_bytes())
    zipped = bytearray(gzip.compress(bytes(whole)))
    whole[whole.rindex(b"z\0")] ^= 1
    assert _problem(bytes(whole), tmp_path / "header") == "corrupt"
    zipped[-8] ^= 1  # of the sum of all that is in it
    assert _problem(bytes(zipped), tmp_path / "checksum") == "corrupt"


def test_a_compressed_archive_that_goes_on_behind_its_end_is_corrupt(tmp_path: Path) -> None:
    archive_of(tmp_path / "t.tar", member("a"))
    whole = (tmp_path / "t.tar").read_bytes()
    assert _problem(gzip.compress(whole + bytes(1 << 19)), tmp_path / "padded") is None
    assert _problem(gzip.compress(whole + bytes(2 << 20)), tmp_path / "long") == "corrupt"


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    "kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_SPARSE]
)
def test_a_header_that_would_fill_the_memory_is_not_read(
    kind: bytes, compressed: bool, tmp_path: Path
) -> None:
    size = 1 << 40  # were it read, or waited for, this would not end

    class Endless:
        """The header, then a content that is never asked for: one read ahead is a block."""

        def __init__(self, head: bytes) -> None:
            self._left = head + bytes(4 << 20)
            self.asked = 0

        def read(self, count: int) -> bytes:
            self.asked += count
            data, self._left = self._left[:count], self._left[count:]
            return data

    info = tarfile.TarInfo("x")
    info.type = kind
    info.size = size
    head = info.tobuf(tarfile.GNU_FORMAT)
    if compressed:
        head = gzip.compress(head + bytes(32 << 20))
    digest = hashlib.sha256(Endless(head).read(1 << 40)).hexdigest()
    (tmp_path / "out").mkdir()
    with pytest.raises(BadTemplate) as refused:
        unpack(Endless(head), digest, str(tmp_path / "out"))  # type: ignore[arg-type]
    assert refused.value.kind == "unsafe"
    assert not list((tmp_path / "out").iterdir())


async def test_unused_templates_go_when_the_disk_gets_full(source: Path, tmp_path: Path) -> None:
    directories = Directories(str(tmp_path / "d"))
    work = FileWork()
    templates = Templates(directories, work, min_free=1000)
    try:
        digests = []
        for number in range(4):
            (source / "number").write_text(str(number))
            digests.append(packed(source, tmp_path / f"{number}.tar"))
            await templates.add(digests[-1], str(tmp_path / f"{number}.tar"))
        templates.fill(digests[0], str(directories.of("w")))  # the last that was used
        templates.needed = lambda: {digests[1]}
        #: Each that goes frees 300 bytes of 400 that are there.
        directories.free = lambda: 1600 - 300 * len(templates.listed())  # type: ignore[method-assign]
        assert templates.make_room() == 1000
        assert set(templates.listed()) == {digests[0], digests[1]}
        assert sorted(os.listdir(directories.of("templates"))) == templates.listed()
        assert not os.listdir(directories.of("trash"))
        with pytest.raises(RpcError, match="is not on this server"):
            templates.check(digests[2])
        await templates.add(digests[2], str(tmp_path / "2.tar"))
        directories.free = lambda: 0  # type: ignore[method-assign]
        assert templates.make_room() == 0
        assert templates.listed() == [digests[1]], "what a workspace was made of stays"
    finally:
        work.close()
        directories.close()


async def test_a_template_that_does_not_fit_is_refused(source: Path, tmp_path: Path) -> None:
    digest = packed(source, tmp_path / "t.tar")
    given = options(tmp_path / "d")[:-1]
    with server_process(tmp_path / "s", *given, str(2**62)) as server:
        async with dialled(server.url) as client:
            with pytest.raises(Refused) as refused:
                uri = (tmp_path / "t.tar").as_uri()
                await client.call("template/add", digest=digest, path=uri)
            assert refused.value.data == {"what": "template", "kind": "no_space"}
            assert not list((tmp_path / "d" / "templates").iterdir())


async def test_a_broken_archive_leaves_nothing(source: Path, tmp_path: Path) -> None:
    with server_process(tmp_path / "s", *options(tmp_path / "d")) as server:
        async with dialled(server.url) as client:
            digest = packed(source, tmp_path / "t.tar")
            whole = (tmp_path / "t.tar").read_bytes()
            changed = whole[:-1024] + bytes([whole[-1024] ^ 1]) + whole[-1023:]
            unsafe = archive_of(tmp_path / "unsafe.tar", *HOSTILE["dots"])
            (tmp_path / "cut.tar").write_bytes(whole[: len(whole) // 2])
            (tmp_path / "changed.tar").write_bytes(changed)
            for path, wanted, kind in (
                ("cut.tar", digest, "corrupt"),
                ("changed.tar", digest, "corrupt"),
                ("none.tar", digest, "missing"),
                ("unsafe.tar", unsafe, "unsafe"),
            ):
                with pytest.raises(Refused) as refused:
                    uri = (tmp_path / path).as_uri()
                    await client.call("template/add", digest=wanted, path=uri)
                assert refused.value.data["kind"] == kind, path
            assert not list((tmp_path / "d" / "templates").iterdir())


async def full(client: Client, digest: str, size: int) -> None:
    async with asyncio.timeout(30):
        while (await client.call("workspace/list"))["pools"].get(digest) != size:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_warm_pool_gives_each_workspace_once(source: Path, tmp_path: Path) -> None:
    given = options(tmp_path / "d")
    with server_process(tmp_path / "s", *given) as server:
        async with dialled(server.url) as client:
            digest = await add(client, source, tmp_path / "t.tar")
            prepare = ["sh", "-c", "echo once >> prepared; echo $TMPDIR > $TMPDIR/x; rm $TMPDIR/x"]
            filled = await client.call("workspace/pool", template=digest, size=4, prepare=prepare)
            assert filled == {"ready": 4}
            made = await asyncio.gather(*(create(client, template=digest) for _ in range(4)))
            assert all(one["warm"] for one in made)
            assert len({one["root"] for one in made}) == 4
            for one in made:
                assert (path_of(one["root"]) / "prepared").read_text() == "once\n"
                assert not list(path_of(one["temporary"]).iterdir())
                (path_of(one["root"]) / "dirt").write_text("dirt")
            await client.call("workspace/release", workspaceId=made[0]["id"], owner="o")
            await full(client, digest, 4)
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
        after = ServerProcess(tmp_path / "s", *given)
        try:
            async with dialled(after.url) as client:
                await full(client, digest, 4)
                used = {one["root"] for one in (await listed(client)).values()}
                assert len(used) == 3
                fresh = [await create(client, template=digest) for _ in range(4)]
                assert fresh[0]["warm"]
                assert not used & {one["root"] for one in fresh}
                for one in fresh:
                    assert not (path_of(one["root"]) / "dirt").exists()
                assert await client.call("workspace/pool", template=digest, size=0) == {"ready": 0}
                assert (await client.call("workspace/list"))["pools"] == {}
                with pytest.raises(Refused) as failed:
                    wanted = {"template": digest, "size": 1, "prepare": ["false"]}
                    await client.call("workspace/pool", wanted)
                assert failed.value.data == {"what": "prepare"}
                await client.call("workspace/pool", template=digest, size=0)
        finally:
            after.stop()
            after.close()


@pytest.mark.fault
async def test_a_server_that_stops_while_a_pool_is_filled_says_nothing(
    source: Path, tmp_path: Path
) -> None:
    """asyncio complained of an error that no task had asked for."""
    directories, work = Directories(str(tmp_path / "d")), FileWork()
    templates = Templates(directories, work, min_free=0)
    digest = packed(source, tmp_path / "t.tar")
    await templates.add(digest, str(tmp_path / "t.tar"))
    begun, goes_on = threading.Event(), threading.Event()

    def fill(digest: str, root: str) -> None:
        begun.set()
        assert goes_on.wait(LIMIT)
        raise Stopped

    templates.fill = fill  # type: ignore[method-assign]
    pools = Pools(directories, work, templates, 0, lambda *_: asyncio.sleep(0))
    resizing = asyncio.ensure_future(pools.resize(digest, 1, None, None))
    await asyncio.to_thread(begun.wait, LIMIT)
    filling = pools._pools[digest].filling
    assert filling is not None
    resizing.cancel()
    await pools.drop_all()
    pools.close()
    goes_on.set()
    await asyncio.wait([filling, resizing])
    work.close()
    directories.close()
    del filling
    gc.collect()  # what is not asked for is told now
