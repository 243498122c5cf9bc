"""A run of a file of tasks: killed at each moment and resumed, every task runs once."""

from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path
from typing import Any

import pytest

from handrail.errors import UsageError
from handrail.fleet.tasks import resume
from handrail.fleet.tasks.results_file import ResultsFile
from handrail.fleet.tasks.runner import Counts, NotRun, Runner, RunOptions
from handrail.fleet.tasks.task_file import TaskFile
from handrail.process.exit_status import ExitKind
from tests.fleet.tasks.simulated_fleet import Killed, Nodes, SimulatedFleet

TASKS = [json.dumps({"id": f"t{n}"}) for n in range(6)]


class Run:
    """A file of results, and runs on it that may be killed."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.nodes = Nodes()

    async def once(self, *, idempotent: bool = False, lines: list[str] = TASKS) -> Counts:
        tasks = TaskFile(lines, command=["do", "{id}"], idempotent=idempotent)
        results = ResultsFile(self.path)
        try:
            resume.check(tasks.tasks, results.known, results.journal.begun)
            fleet: Any = SimulatedFleet(self.nodes, results.journal.owner)
            return await Runner(fleet, tasks, results, RunOptions(lost_after=0.2)).run()
        finally:
            results.close()

    async def killed(self, moment: str, task: str, **how: Any) -> None:
        """A run that is killed at that moment of that task."""

        def at(name: str, of: str) -> None:
            if (name, of) == (moment, task):
                raise Killed

        self.nodes.at = at
        try:
            await self.once(**how)
        except Killed:
            self.nodes.at = lambda name, of: None
            return
        raise AssertionError(f"{moment} of {task} did not come")

    def results(self) -> list[dict[str, Any]]:
        with open(self.path) as file:
            return [json.loads(line) for line in file]

    def states(self) -> dict[str, str]:
        found = self.results()
        assert len({one["id"] for one in found}) == len(found)
        return {one["id"]: one["state"] for one in found}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "out.jsonl")


ALL_OK = {f"t{n}": "ok" for n in range(6)}
MOMENTS = ("created", "before start", "started", "running", "ended", "release")


@pytest.mark.parametrize("moment", MOMENTS)
async def test_killed_at_a_moment_and_resumed(run: Run, moment: str) -> None:
    await run.killed(moment, "t3")
    counts = await run.once()
    assert run.states() == ALL_OK
    assert set(run.nodes.starts.values()) == {1}
    assert counts.adopted == (moment in ("started", "running", "ended"))
    assert counts.skipped == (4 if moment == "release" else 3)
    assert run.nodes.spaces == {}, "nothing is left behind"


@pytest.mark.parametrize("moment", MOMENTS)
async def test_the_resumed_run_is_killed_too(run: Run, moment: str) -> None:
    await run.killed("running", "t1")
    await run.killed("running", "t1")
    await run.killed(moment, "t4")
    await run.once()
    assert run.states() == ALL_OK
    assert set(run.nodes.starts.values()) == {1}
    assert run.nodes.spaces == {}


async def test_begun_and_gone_is_lost_and_not_run_again(run: Run) -> None:
    await run.killed("running", "t3")
    run.nodes.spaces.clear()
    counts = await run.once()
    assert run.states() == {**ALL_OK, "t3": "lost"}
    assert (run.nodes.starts["t3"], counts.lost) == (1, 1)
    (record,) = (one for one in run.results() if one["id"] == "t3")
    assert record["exit"] == {"kind": "lost", "code": None, "signal": None}


async def test_begun_and_gone_runs_again_if_idempotent(run: Run) -> None:
    await run.killed("running", "t3", idempotent=True)
    run.nodes.spaces.clear()
    await run.once(idempotent=True)
    assert run.states() == ALL_OK
    assert run.nodes.starts["t3"] == 2
    (record,) = (one for one in run.results() if one["id"] == "t3")
    assert record["attempts"] == 2


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_node_is_lost_under_a_task(run: Run, idempotent: bool) -> None:
    def at(moment: str, task: str) -> None:
        if (moment, task) == ("running", "t2") and not run.nodes.lost:
            run.nodes.lose("n0")

    run.nodes.at = at
    await run.once(idempotent=idempotent)
    assert run.states() == (ALL_OK if idempotent else {**ALL_OK, "t2": "lost"})
    assert run.nodes.starts["t2"] == 1 + idempotent


@pytest.mark.parametrize("idempotent", [True, False])
async def test_an_exit_that_is_not_known(run: Run, idempotent: bool) -> None:
    """Of a task whose keeper was killed; it may run again, or is lost."""
    run.nodes.exits["t5"] = (ExitKind.LOST, None)
    counts = await run.once(idempotent=idempotent)
    assert run.states() == {**ALL_OK, "t5": "lost"}
    assert run.nodes.starts["t5"] == (3 if idempotent else 1)
    assert counts.lost == 1


async def test_failed_tasks_are_run_again_when_dropped(run: Run) -> None:
    run.nodes.exits["t1"] = (ExitKind.EXITED, 4)
    counts = await run.once()
    assert (counts.ok, counts.failed) == (5, 1)
    results = ResultsFile(run.path)
    results.drop(["t1"])
    results.close()
    run.nodes.exits.clear()
    counts = await run.once()
    assert (counts.skipped, counts.ok) == (5, 6)
    assert run.states() == ALL_OK


async def test_results_that_were_removed_begin_anew(run: Run, tmp_path: Path) -> None:
    """And what the removed run left running is ended."""
    await run.killed("running", "t3")
    (tmp_path / "out.jsonl").unlink()
    await run.once()
    assert run.states() == ALL_OK
    assert run.nodes.starts == {"t0": 2, "t1": 2, "t2": 2, "t3": 2, "t4": 1, "t5": 1}
    assert run.nodes.spaces == {}


async def test_a_changed_task_is_refused_and_nothing_runs(run: Run) -> None:
    await run.once(lines=TASKS[:3])
    await run.once(lines=TASKS)
    starts = run.nodes.starts.copy()
    changed = [*TASKS[:5], json.dumps({"id": "t5", "more": 1})]
    with pytest.raises(UsageError, match="t5 has a result"):
        await run.once(lines=changed)
    assert run.nodes.starts == starts


async def test_a_second_run_is_refused(run: Run) -> None:
    results = ResultsFile(run.path)
    with pytest.raises(UsageError, match="in use"):
        await run.once()
    results.close()
    await run.once()


async def test_no_room_is_no_result(run: Run) -> None:
    """What could not begin is not scored; the next run runs it."""

    def at(moment: str, task: str) -> None:
        if moment == "created" and task == "t2":
            raise RuntimeError("no room")

    run.nodes.at = at
    fleet_map = SimulatedFleet._outcome

    async def refusing(self: Any, work: Any, task: Any, *rest: Any) -> Any:
        from handrail.fleet import NoCapacity, Outcome

        if task.id == "t2":
            return Outcome(index=2, key="t2", task=task, state="failed", error=NoCapacity("none"))
        return await fleet_map(self, work, task, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedFleet, "_outcome", refusing)
        with pytest.raises(NotRun, match=r"t2: none"):
            await run.once()
    run.nodes.at = lambda moment, task: None
    assert "t2" not in run.states()
    await run.once()
    assert run.states() == ALL_OK


async def test_a_full_disk_stops_the_run_and_ends_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = ResultsFile.add

    async def full(self: ResultsFile, record: dict[str, Any]) -> None:
        if record["id"] == "t3":
            raise OSError(errno.ENOSPC, "no space")
        await add(self, record)

    with monkeypatch.context() as patch:
        patch.setattr(ResultsFile, "add", full)
        tasks = TaskFile(TASKS, command=["do"])
        results = ResultsFile(run.path)
        fleet: Any = SimulatedFleet(run.nodes, results.journal.owner)
        with pytest.raises(OSError, match="no space"):
            await Runner(fleet, tasks, results, RunOptions()).run()
        assert [space.task for space in run.nodes.spaces.values()] == ["t3"]
        for left in asyncio.all_tasks() - {asyncio.current_task()}:  # as the exit of the process
            left.cancel()
        results.close()
