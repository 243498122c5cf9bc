"""Results and journal on disk: locks, cut lines, lines that are dropped, a disk that is full."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from handrail.errors import UsageError
from handrail.fleet.tasks.durable_lines import DurableLines, InUse
from handrail.fleet.tasks.results_file import ResultsFile
from handrail.fleet.tasks.task_file import Task


def result(id_: str, state: str = "ok", **more: Any) -> dict[str, Any]:
    return {"id": id_, "state": state, "digest": "d", **more}


def task(id_: str) -> Task:
    return Task(id_, "{}", "d", idempotent=False)


async def test_results_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "out"
    results = ResultsFile(str(path))
    await asyncio.gather(*(results.add(result(f"t{n}", stdout="ü\ud800")) for n in range(50)))
    results.close()
    again = ResultsFile(str(path))
    assert list(again.known) == [f"t{n}" for n in range(50)]
    again.close()


@pytest.mark.parametrize("cut", ['{"id": "t31", "stdo', "{", '{"id": "x"}garbage', "[", "\0\0"])
async def test_a_cut_last_line_is_dropped(tmp_path: Path, cut: str) -> None:
    path = tmp_path / "out"
    whole = json.dumps(result("a")) + "\n"
    path.write_text(whole + cut)
    results = ResultsFile(str(path))
    assert list(results.known) == ["a"]
    await results.add(result("b"))
    results.close()
    assert path.read_text() == whole + json.dumps(result("b")) + "\n"


def test_a_line_that_lacks_only_its_end_counts(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text(json.dumps(result("a")))
    ResultsFile(str(path)).close()
    assert path.read_text() == json.dumps(result("a")) + "\n"


@pytest.mark.parametrize("line", ["garbage", "[]", '{"id": 1}', '{"id": "a", "state": "done"}'])
def test_another_file_is_refused_and_left_as_it_is(tmp_path: Path, line: str) -> None:
    path = tmp_path / "out"
    path.write_text(f"{line}\n")
    with pytest.raises(UsageError, match="line 1 of"):
        ResultsFile(str(path))
    assert path.read_text() == f"{line}\n"


async def test_results_are_dropped_all_at_once(tmp_path: Path) -> None:
    path = tmp_path / "out"
    results = ResultsFile(str(path))
    for id_ in "abc":
        await results.journal.begin(task(id_), "n", f"w{id_}")
        await results.add(result(id_))
    results.drop(["a", "c"])
    assert list(results.known) == ["b"]
    with pytest.raises(InUse):
        DurableLines(str(path), lambda number, line: None)
    await results.add(result("d"))
    results.close()
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ["b", "d"]
    again = ResultsFile(str(path))
    assert set(again.journal.begun) == {"b"}
    again.close()
    assert sorted(os.listdir(tmp_path)) == ["out", "out.journal"]


async def test_the_journal_knows_what_has_begun(tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    first = ResultsFile(path)
    assert await first.journal.begin(task("a"), "n0", "w1") == 1
    assert await first.journal.begin(task("a"), "n1", "w2") == 2
    await first.journal.begin(task("b"), "n1", "w3")
    await first.journal.again(task("b"))
    first.close()
    second = ResultsFile(path)
    assert {i: one.workspaces for i, one in second.journal.begun.items()} == {
        "a": [("n0", "w1"), ("n1", "w2")]
    }
    assert second.journal.run == first.journal.run
    assert second.journal.owners == [first.journal.owner]
    assert second.journal.owner != first.journal.owner
    second.close()
    os.unlink(path)
    third = ResultsFile(path)
    assert third.journal.begun == {}
    assert third.journal.earlier == [first.journal.run]
    third.close()


async def test_a_write_that_fails_leaves_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    results = ResultsFile(str(path))
    await results.add(result("a"))
    before = path.read_text()
    write = os.write

    def half(descriptor: int, data: Any) -> int:
        if len(data) > 8:
            return write(descriptor, data[:8])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(OSError, match="No space") as failed:
            await results.add(result("b"))
    assert failed.value.filename == str(path)
    assert path.read_text() == before
    await results.add(result("c"))
    results.close()
    assert path.read_text() == before + json.dumps(result("c")) + "\n"
