"""Files that are fetched from the workspaces of tasks: they come below one directory."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from handrail import AsyncWorkspace
from handrail.fleet.tasks import one_task
from handrail.fleet.tasks.task_file import Task
from tests.support.coroutines import run


def task(id_: str) -> Task:
    return Task(id_, "{}", "", idempotent=False)


class Files:
    """Files of a workspace in which something goes on: a step before each pattern."""

    def __init__(self, workspace: AsyncWorkspace, steps: list[str]) -> None:
        self._workspace = workspace
        self._steps = iter(steps)
        self.download = workspace.files.download
        self.stat = workspace.files.stat

    async def glob(self, pattern: str) -> list[str]:
        await self._workspace.run(next(self._steps))
        return await self._workspace.files.glob(pattern)


@pytest.mark.parametrize(
    ("patterns", "steps"),
    [
        # The link comes with its directory; then it is a directory with a file.
        (["t", "t/l/*"], ["mkdir t; ln -s {home} t/l", "rm t/l; mkdir t/l; echo x > t/l/f"]),
        # The link comes by itself; then it is a file, or a directory.
        (["t", "t/l"], ["mkdir t; ln -s {home} t/l", "rm t/l; echo x > t/l"]),
        (["t", "t/l"], ["mkdir t; ln -s {home} t/l", "rm t/l; mkdir t/l; echo x > t/l/f"]),
    ],
)
def test_a_link_that_was_fetched_is_not_crossed(
    patterns: list[str], steps: list[str], tmp_path: Path
) -> None:
    home, folder = tmp_path / "home", tmp_path / "folder"
    home.mkdir()
    (tmp_path / "ws").mkdir()

    async def main() -> None:
        async with AsyncWorkspace(tmp_path / "ws") as workspace:
            files = Files(workspace, [step.format(home=home) for step in steps])
            space: Any = SimpleNamespace(files=files)
            await one_task.fetch(space, task("a"), patterns, str(folder))

    run(main())
    assert os.listdir(home) == []
    assert (folder / "a/t").is_dir()


def test_links_lead_to_files_and_to_no_directory(tmp_path: Path) -> None:
    """All else is fetched: neither such a link nor one that leads nowhere ends it."""
    home, folder = tmp_path / "home", tmp_path / "folder"
    (home / "deep").mkdir(parents=True)
    (home / "deep" / "secret").write_text("x")
    (home / "file").write_text("y")
    (tmp_path / "ws").mkdir()

    async def main() -> str | None:
        async with AsyncWorkspace(tmp_path / "ws", sandbox="off") as workspace:
            await workspace.run(
                f"mkdir -p o/d; ln -s {home} o/a; ln -s {home}/none o/b; ln -s {home}/file o/c;"
                f" ln -s {home} o/d/l; echo z > o/d/f; echo z > o/z",
                check=True,
            )
            space: Any = workspace
            return await one_task.fetch(space, task("a"), ["o/**"], str(folder))

    found = run(main())
    assert found is not None
    assert "o/a" in found
    fetched = folder / "a" / "o"
    assert sorted(os.listdir(fetched)) == ["c", "d", "z"]
    assert (fetched / "c").read_text() == "y"
    assert (fetched / "d" / "f").read_text() == "z\n"
    assert (fetched / "d" / "l").is_symlink()  # a tree has the links that are in it


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "..", ""])
def test_names_that_a_node_sends_lead_nowhere_else(name: str, tmp_path: Path) -> None:
    async def glob(pattern: str) -> list[str]:
        return [name]

    space: Any = SimpleNamespace(files=SimpleNamespace(glob=glob, download=None))
    found = run(one_task.fetch(space, task("a"), ["*"], str(tmp_path / "folder")))
    assert found is not None
    assert "not all files were fetched" in found


def test_every_task_has_a_directory_of_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncWorkspace(tmp_path, sandbox="off") as workspace:
            await workspace.files.write("f", "x")
            space: Any = workspace
            for id_ in ("..", ".", "a/b", "..."):
                assert await one_task.fetch(space, task(id_), ["f"], str(tmp_path / "to")) is None

    run(main())
    assert sorted(os.listdir(tmp_path / "to")) == ["%2E", "%2E%2E", "%2E%2E%2E", "a%2Fb"]
