"""Files of this machine that follow no link, as patches outside a sandbox use them."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from handrail.errors import FilesError, PatchError
from handrail.executor.local_files import LocalFiles, anchored
from handrail.executor.patch_files import PatchFiles
from handrail.patch import file_steps
from handrail.patch.io_steps import run_async

FILES = PatchFiles(LocalFiles().without_links())


def test_what_it_does_with_ordinary_files(tmp_path: Path) -> None:
    async def main() -> bytes:
        await FILES.mkdir(f"{tmp_path}/d")
        await FILES.write(f"{tmp_path}/d/a", b"one")
        os.chmod(tmp_path / "d" / "a", 0o750)
        await FILES.copy(f"{tmp_path}/d/a", f"{tmp_path}/b")
        await FILES.write(f"{tmp_path}/b", b"two")
        read = await FILES.read(f"{tmp_path}/b")
        await FILES.remove(f"{tmp_path}/d/a")
        await FILES.rmdir(f"{tmp_path}/d")
        return read

    assert asyncio.run(main()) == b"two"
    assert os.listdir(tmp_path) == ["b"]
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o750


@pytest.mark.parametrize(
    "work",
    [
        lambda at: FILES.read(f"{at}/kept"),
        lambda at: FILES.write(f"{at}/kept", b"x"),
        lambda at: FILES.write(f"{at}/new", b"x"),
        lambda at: FILES.copy("/etc/passwd", f"{at}/new"),
        lambda at: FILES.copy(f"{at}/kept", "/nowhere"),
        lambda at: FILES.remove(f"{at}/kept"),
        lambda at: FILES.mkdir(f"{at}/new"),
        lambda at: FILES.rmdir(f"{at}/empty"),
        lambda at: FILES.write(at, b"x"),
        FILES.remove,
    ],
)
def test_a_link_on_the_way_or_at_the_end_stops_it(
    tmp_path: Path, work: Callable[[str], Awaitable[object]]
) -> None:
    real = tmp_path / "real"
    (real / "empty").mkdir(parents=True)
    (real / "kept").write_text("old")
    (tmp_path / "link").symlink_to(real)
    before = sorted(os.listdir(real))

    async def main() -> None:
        await work(f"{tmp_path}/link")

    with pytest.raises(FilesError, match="link"):
        asyncio.run(main())
    assert sorted(os.listdir(real)) == before
    assert (real / "kept").read_text() == "old"
    assert (tmp_path / "link").is_symlink()


def test_errors_have_the_kinds_the_patch_tool_knows(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()

    def kind(work: Awaitable[object]) -> str:
        async def main() -> None:
            await work

        with pytest.raises(FilesError) as caught:
            asyncio.run(main())
        return caught.value.kind

    assert kind(FILES.read(f"{tmp_path}/none")) == "not_found"
    assert kind(FILES.write(f"{tmp_path}/none/x", b"")) == "not_found"
    assert kind(FILES.read(f"{tmp_path}/d")) == "is_a_directory"
    assert kind(FILES.remove(f"{tmp_path}/d")) == "is_a_directory"
    assert kind(FILES.mkdir(f"{tmp_path}/d")) == "exists"


def test_links_of_the_root_directory_are_the_systems() -> None:
    for name in os.listdir("/"):
        path = anchored(f"/{name}/x/y")
        assert path == os.path.join(os.path.realpath(f"/{name}"), "x/y")


def test_a_patch_says_that_a_link_is_the_reason(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old\n")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for steps in (
        file_steps.write(f"{tmp_path}/link", b"new"),
        file_steps.remove(f"{tmp_path}/link", moved=False),
    ):
        with pytest.raises(
            PatchError, match=r"link is or leads through a link.*name the real path"
        ):
            asyncio.run(run_async(steps, FILES))
    assert (tmp_path / "real").read_text() == "old\n"
