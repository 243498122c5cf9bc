"""The files of workspaces: their records on disk, and the directories made ahead."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from handrail.server.workspaces import remove_directories
from handrail.server.workspaces import spare_directories as spare_directories_module
from handrail.server.workspaces.directories import Directories
from handrail.server.workspaces.file_work import FileWork
from handrail.server.workspaces.record import Record
from handrail.server.workspaces.spare_directories import SpareDirectories
from handrail.server.workspaces.spares import Spares
from handrail.server.workspaces.stored_records import StoredRecords
from tests.support.eventually import eventually_so


def _record(directories: Directories, key: str, **members: object) -> Record:
    made = {"owner": "o", "tenant": "t", "lease": 1.0, "since": 0.0, "name": directories.make()}
    return Record(id=key, **{**made, **members})  # type: ignore[arg-type]


def test_the_file_system_is_told_to_spread_workspaces(tmp_path: Path) -> None:
    lsattr = shutil.which("lsattr") or "false"
    shown = subprocess.run([lsattr, "-d", tmp_path], capture_output=True, text=True, check=False)
    if shown.returncode or "e" not in shown.stdout.split()[0]:
        pytest.skip("the temporary directory is on no ext4, or there is no lsattr")
    for _ in range(2):  # the next server finds it set
        directories = Directories(str(tmp_path / "d"))
        directories.close()
        words = ["lsattr", "-d", tmp_path / "d" / "w"]
        shown = subprocess.run(words, capture_output=True, text=True, check=True)
        assert "T" in shown.stdout.split()[0]


def test_records_are_read_up_to_the_line_that_was_cut(tmp_path: Path) -> None:
    directories = Directories(str(tmp_path / "d"))
    try:
        stored = StoredRecords(directories)
        one, two, three = (_record(directories, key) for key in "123")
        for record in (one, two, three):
            stored.write(record)
        one.owner = "another"
        stored.write(one)
        stored.remove(two)
        stored.close()
        file = tmp_path / "d" / "records"
        with file.open("ab") as end:
            end.write(b"nonsense\n-3")  # a line that is none, and one that was cut
        found = StoredRecords(directories)
        assert {key: record.owner for key, record in found.found.items()} == {
            "1": "another",
            "3": "o",
        }
        found.close()
        os.rename(directories.of("w", three.name), tmp_path / "gone")
        again = StoredRecords(directories)
        assert again.found.keys() == {"1"}
        again.close()
    finally:
        directories.close()


def test_a_file_of_the_past_is_written_anew(tmp_path: Path) -> None:
    directories = Directories(str(tmp_path / "d"))
    try:
        stored = StoredRecords(directories)
        stays = stored.found["stays"] = _record(directories, "stays")
        stored.write(stays)
        passing = _record(directories, "p", labels={"long": "x" * 1000})
        for _ in range(1000):
            stored.write(passing)
            stored.remove(passing)
        assert (tmp_path / "d" / "records").stat().st_size < 500_000
        stored.close()
        again = StoredRecords(directories)
        assert again.found.keys() == {"stays"}
        again.close()
    finally:
        directories.close()


def exists(path: str) -> bool:
    return os.path.exists(path)


@asynccontextmanager
async def spare_directories(path: Path) -> AsyncIterator[tuple[Directories, SpareDirectories]]:
    directories, work = Directories(str(path)), FileWork()
    tasks: set[asyncio.Task[None]] = set()

    def spawn(job: object) -> None:
        tasks.add(asyncio.ensure_future(job))  # type: ignore[arg-type]

    spares = SpareDirectories(directories, work, spawn)
    try:
        yield directories, spares
        await asyncio.gather(*tasks)
        await spares.end()
        assert not os.listdir(directories.of("w"))
        assert not os.listdir(directories.of("trash"))
    finally:
        work.close()
        directories.close()


async def test_what_commands_could_write_is_new_each_time(tmp_path: Path) -> None:
    """The directory around it too, unless it is as it was made."""
    async with spare_directories(tmp_path / "d") as (directories, spares):

        async def taken() -> str:
            async with asyncio.timeout(20):
                while (name := spares.take()) is None:  # noqa: ASYNC110 (it is asked, not told)
                    await asyncio.sleep(0.01)
            return name

        names = [await taken() for _ in range(8)]
        before = {os.stat(directories.root(name)).st_ino: name for name in names}
        held = [os.open(directories.root(name), os.O_RDONLY) for name in names]  # not reused
        os.mkdir(os.path.join(directories.root(names[0]), "inside"))
        os.mkdir(directories.of("w", names[1], "beside"))
        os.chmod(directories.of("w", names[2]), 0o755)
        for name in names:
            spares.remove(name)
            assert not exists(directories.root(name))

        def left() -> list[str]:
            """What of the eight is not removed, without their shells."""
            found = []
            for one in Path(directories.of("trash")).iterdir():
                with suppress(FileNotFoundError):  # removed meanwhile
                    found += [one.name for _ in one.iterdir()]
            return found

        await eventually_so(lambda: not left())
        for _ in range(20):
            name = await taken()
            assert os.stat(directories.root(name)).st_ino not in before
            assert (
                os.listdir(directories.root(name)) == os.listdir(directories.temporary(name)) == []
            )
            outer = directories.of("w", name)
            assert sorted(os.listdir(outer)) == ["root", "tmp"]
            assert os.stat(outer).st_mode & 0o777 == 0o700
            directories.discard(name)
        for fd in held:
            os.close(fd)


@pytest.mark.parametrize("programs", [("/bin/rmdir", "/usr/bin/rmdir"), ("/no/such/rmdir",)])
async def test_many_that_were_used_are_removed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: tuple[str, ...]
) -> None:
    """By a program or by threads; what holds files, or is gone already, is no obstacle."""
    monkeypatch.setattr(remove_directories, "_PROGRAMS", programs)
    directories, work = Directories(str(tmp_path / "d")), FileWork()
    try:
        paths = []
        for number in range(40):
            name = directories.make()
            if number == 7:
                os.mkdir(f"{directories.root(name)}/more")
            if number == 8:
                os.rmdir(directories.temporary(name))
            aside = directories.put_aside(name)
            assert aside is not None
            paths.append(aside)
        clean = paths[:7] + paths[9:]
        shells, others = await remove_directories.removed(clean, 10, work.quick)
        assert shells == clean[:10]
        assert others == []
        assert all(remove_directories.is_shell(path) for path in shells)
        assert not any(map(exists, clean[10:]))
        shells, others = await remove_directories.removed(paths, 0, work.quick)
        assert shells == []
        assert others == [paths[7]]
        assert [path for path in paths if exists(path)] == [paths[7]]
        assert os.listdir(f"{paths[7]}/root") == ["more"]
    finally:
        work.close()
        directories.close()


async def test_a_slow_disk_is_left_to_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with spare_directories(tmp_path / "d") as (directories, spares):
        name = spares.take()  # by the loop itself
        assert name is not None
        monkeypatch.setattr(spare_directories_module, "_SLOW_SECONDS", 0.0)
        other = spares.take()
        assert other is not None
        assert spares.take() is None  # being made ahead
        third = await eventually_so(spares.take)
        assert third is not None
        for one in (name, other, third):
            assert exists(directories.root(one))
            spares.remove(one)
            assert not exists(directories.root(one))


async def test_what_was_given_up_while_more_were_made_is_not_handed_out() -> None:
    """Once a closed network, or a directory that was removed, came back by that."""
    going, go_on = asyncio.Event(), asyncio.Event()
    tasks: list[asyncio.Future[None]] = []
    number = 0

    async def make(count: int) -> list[str]:
        nonlocal number
        number += 1
        if number == 2:
            going.set()
            await go_on.wait()
        return [f"{number}.{one}" for one in range(count)]

    spares: Spares[str] = Spares(4, make, lambda job: tasks.append(asyncio.ensure_future(job)))
    for _ in range(4):
        assert spares.take() is None
    await tasks[0]
    while len(tasks) == 1:  # until more are made
        assert spares.take() is not None
    await asyncio.wait_for(going.wait(), 30)
    left = set(spares.give_up())
    assert left
    go_on.set()
    await asyncio.gather(*tasks)
    found = []
    while (one := spares.take()) is not None:
        found.append(one)
    assert found
    assert not left & set(found)
