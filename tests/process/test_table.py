"""Processes by id: reserved, started, retained, forgotten."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from handrail.errors import KeeperLost, ProcessExists, SandboxUnavailable, SpawnFailed
from handrail.keeper import messages
from handrail.process.child import Child
from handrail.process.spec import ProcessSpec
from handrail.process.starting import StartCancelled, Starting
from handrail.process.table import ProcessTable
from tests.process.workshop import Recorder, Workshop, sh, spec
from tests.support.eventually import LIMIT
from tests.support.processes import alive, children, descriptors, exists, zombies

SLEEP = spec("/bin/sleep", "1000")
#: ``start``, or the version of it without a task.
Way = Callable[..., "asyncio.Future[Child]"]


def _nobody() -> None:
    return None


class Counting:
    """Who counts processes."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def started(self, child: Child) -> None:
        self.seen["started"] += 1

    def exited(self, child: Child) -> None:
        self.seen["exited"] += 1


async def test_id_is_taken_while_it_starts_runs_and_is_retained(shop: Workshop) -> None:
    table = shop.table
    start = table.start("p", sh("exit 0"), _nobody)
    assert isinstance(table.get("p"), Starting)
    assert list(table) == []
    assert len(table) == 1
    with pytest.raises(ProcessExists, match="process p already exists"):
        await table.start("p", SLEEP, _nobody)
    child = await start
    assert table.get("p") is child
    assert list(table) == [child]
    with pytest.raises(ProcessExists):
        await table.start("p", SLEEP, _nobody)
    await shop.finished(child)
    with pytest.raises(ProcessExists):
        await table.start("p", SLEEP, _nobody)
    assert children(shop.keeper) == set()


async def test_id_is_taken_while_its_spec_is_made(shop: Workshop) -> None:
    ready = asyncio.Event()
    sent: list[bool] = []

    async def make(program: str) -> ProcessSpec:
        await ready.wait()
        return replace(spec(program), sent=lambda: sent.append(True))

    async def fail() -> ProcessSpec:
        raise SandboxUnavailable("there is none")

    start = shop.table.start_later("p", make("/bin/true"), _nobody)
    assert isinstance(shop.table.get("p"), Starting)
    with pytest.raises(ProcessExists):
        shop.table.start_later("p", make("/bin/true"), _nobody)
    ready.set()
    await shop.finished(await start)
    assert sent == [True]
    with pytest.raises(SandboxUnavailable):
        await shop.table.start_later("q", fail(), _nobody)
    assert shop.table.get("q") is None
    ready.clear()
    start = shop.table.start_later("r", make("/bin/sleep"), _nobody)
    place = shop.table.get("r")
    assert isinstance(place, Starting)
    place.cancelled = True
    ready.set()
    with pytest.raises(StartCancelled):
        await start
    assert shop.table.get("r") is None
    assert sent == [True, True]  # descriptors go with a start that is given up, too


@pytest.mark.parametrize("what", [spec("/no/such/path"), spec("/bin/true", cwd="/no/such/path")])
async def test_failing_start_frees_the_id(shop: Workshop, what: object) -> None:
    for _ in range(3):
        with pytest.raises(SpawnFailed) as caught:
            await shop.table.start("p", what, _nobody)  # type: ignore[arg-type]
        assert caught.value.errno == errno.ENOENT
        assert shop.table.get("p") is None
    await shop.finished(await shop.table.start("p", sh("true"), _nobody))


async def test_a_start_without_a_task_is_as_one_with_it(shop: Workshop) -> None:
    """Its end is told after the callbacks of its start, and a refusal frees the id."""
    told: list[str] = []
    sink = Recorder()
    start = shop.table.start_plain("p", sh("exit 7"), lambda: sink)
    start.add_done_callback(lambda _: told.append(f"started, {len(sink.events)} events"))
    assert isinstance(shop.table.get("p"), Starting)
    with pytest.raises(ProcessExists):
        shop.table.start_plain("p", SLEEP, _nobody)
    child = await start
    await shop.finished(child)
    assert child.exit is not None
    assert child.exit.code == 7
    assert told == ["started, 0 events"]
    with pytest.raises(SpawnFailed):
        shop.table.start_plain("q", spec("no-such-program"), _nobody)
    with pytest.raises(SpawnFailed):
        await shop.table.start_plain("q", spec("/no/such/program"), _nobody)
    assert shop.table.get("q") is None
    assert shop.table.running == 0


@pytest.mark.parametrize("way", [ProcessTable.start, ProcessTable.start_plain])
async def test_start_that_is_terminated_meanwhile(shop: Workshop, way: Way) -> None:
    before, keeper = descriptors(), await shop.keeper_fds()
    for number in range(20):
        start = way(shop.table, "p", SLEEP, Recorder)
        place = shop.table.get("p")
        assert isinstance(place, Starting), number
        shop.table.cancel_start(place)
        with pytest.raises(StartCancelled, match="process p start was cancelled"):
            await start
        assert shop.table.get("p") is None
    await shop.until(lambda: not children(shop.keeper), "none has survived")
    assert await shop.keeper_fds() == keeper
    await shop.until(lambda: descriptors() == before, "ours are closed")
    assert shop.launcher._early == {}


async def test_a_start_that_cannot_be_sent_is_not_under_way(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is sent together with others, later in the same turn of the loop."""
    first = shop.table.start("first", SLEEP, Recorder)

    def full(*_: object) -> int:
        raise OSError(errno.EMFILE, "no descriptor free")

    with monkeypatch.context() as patched:
        patched.setattr(messages, "send_many", full)
        patched.setattr(messages, "send", full)
        second = shop.table.start("second", SLEEP, Recorder)
        with pytest.raises(SpawnFailed):
            await second
    await first
    assert not shop.launcher.starting


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("terminated", [False, True])
@pytest.mark.parametrize("way", [ProcessTable.start, ProcessTable.start_plain])
async def test_start_whose_caller_leaves(
    shop: Workshop, turns: int, terminated: bool, way: Way
) -> None:
    """At any moment: the id is free or the child is in the table, never neither."""

    before = descriptors()
    start = way(shop.table, "p", SLEEP, _nobody)
    place = shop.table.get("p")
    await asyncio.sleep(0)  # it has begun; one that never ran has no way to clean up
    if terminated and isinstance(place, Starting):
        shop.table.cancel_start(place)
    for _ in range(turns):
        await asyncio.sleep(0.0005 * (turns % 3))
    start.cancel()
    await asyncio.wait([start])
    await shop.table.started()
    known = {child.pid for child in shop.table}
    await shop.until(lambda: children(shop.keeper) == known, "nobody lives unknown")
    await shop.table.end_all()
    await shop.until(lambda: not children(shop.keeper), "and then nobody")
    await shop.until(lambda: descriptors() == before, "ours are closed")
    assert len(shop.table) == 0


async def test_keeper_that_dies_during_a_cancelled_start(shop: Workshop) -> None:
    before = descriptors()
    start = shop.table.start("p", SLEEP, _nobody)
    place = shop.table.get("p")
    assert isinstance(place, Starting)
    shop.table.cancel_start(place)
    kill, shop.launcher.signal = shop.launcher.signal, _gone  # type: ignore[method-assign]
    with pytest.raises((KeeperLost, StartCancelled)):
        await start
    shop.launcher.signal = kill  # type: ignore[method-assign]
    assert shop.table.get("p") is None
    await shop.until(lambda: descriptors() == before, "ours are closed")


def _gone(child: int, number: int, scope: bytes) -> asyncio.Future[object]:
    future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    future.set_exception(KeeperLost("gone"))
    return future


async def test_retention_ends(shop: Workshop) -> None:
    before, keeper = descriptors(), await shop.keeper_fds()
    table = ProcessTable(shop.launcher, shop.loop, retention=0.03)
    ended = [await table.start(f"p{n}", sh("echo x"), _nobody) for n in range(10)]
    running = await table.start("running", SLEEP, _nobody)
    held = await table.start("held", sh("sleep 1000 & echo x"), _nobody)
    await shop.until(lambda: len(table) == 2, "those that have closed are forgotten")
    assert all(child.closed for child in ended)
    assert table.get("running") is running
    await shop.until(lambda: not held.running, "its shell has ended")
    assert table.get("held") is held  # kept for as long as it is not closed
    again = await table.start("p1", sh("true"), _nobody)
    await shop.until(lambda: table.get("p1") is not again, "its own time, later")
    await table.end_all()
    assert len(table) == 0
    await shop.until(lambda: not children(shop.keeper), "all are gone")
    assert await shop.keeper_fds() == keeper
    await shop.until(lambda: descriptors() == before, "ours are closed")


async def test_late_output_is_readable_until_closed_however_short_the_retention(
    shop: Workshop,
) -> None:
    table = ProcessTable(shop.launcher, shop.loop, retention=0.02)
    sink = Recorder()
    child = await table.start("p", sh("sleep 1000 & echo early"), lambda: sink)
    await shop.exited(child)
    other = await table.start("q", sh("true"), _nobody)
    await shop.until(lambda: table.get("q") is not other, "the retention is over for others")
    assert table.get("p") is child
    assert [c.seq for c in child.output.log.read(0, None).chunks] == [1]
    await child.ending.kill()
    await shop.finished(child)
    await shop.until(lambda: table.get("p") is None, "and in the end for this one")


async def test_end_all_ends_trees_and_frees_everything(shop: Workshop) -> None:
    before, keeper = descriptors(), await shop.keeper_fds()
    seen = Counting()
    table = ProcessTable(shop.launcher, shop.loop, observer=seen)
    scripts = ["exec sleep 1000", "setsid sleep 1000 & wait", "sleep 1000 & exit", "true"]
    sinks = [Recorder() for _ in range(12)]
    for number, sink in enumerate(sinks):
        how = [{}, {"tty": True}, {"pipe_stdin": True}][number % 3]
        what = sh("echo x;" + scripts[number // 3], **how)
        await table.start(str(number), what, lambda sink=sink: sink)
    sinks[0].ready = False
    starting = table.start("late", SLEEP, _nobody)
    await table.end_all()
    with pytest.raises(StartCancelled):
        await starting
    assert len(table) == 0
    assert seen.seen == {"started": 12, "exited": 12}
    await shop.until(lambda: not children(shop.keeper), "every tree is gone")
    assert await shop.keeper_fds() == keeper
    await shop.until(lambda: descriptors() == before, "ours are closed")
    assert table._timer is None


async def test_what_has_closed_and_left_nothing_is_forgotten_without_a_question(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, keeper = descriptors(), await shop.keeper_fds()
    table = ProcessTable(shop.launcher, shop.loop, retention=0.01)
    running = await table.start("p", sh("read x", pipe_stdin=True), _nobody)
    assert not table.end_at_once()
    assert table.get("p") is running
    running.stdin.close()
    await shop.finished(running)
    starting = table.start("q", sh("exit 0"), _nobody)
    assert not table.end_at_once()
    child = await starting

    async def asked() -> dict[int, int]:
        raise AssertionError("the keeper was asked")

    monkeypatch.setattr(shop.launcher, "orphans", asked)
    await shop.finished(child)
    assert table.end_at_once()
    assert len(table) == 0
    await table.start("p", sh("exit 0"), _nobody)
    await shop.until(lambda: not len(table) and not table._forgetting, "its time is over")
    assert shop.launcher.over == set()
    monkeypatch.undo()
    daemon = await table.start("d", sh("setsid sleep 600 </dev/null >&0 2>&0 &"), _nobody)
    await shop.finished(daemon)
    assert not table.end_at_once()
    await table.end_all()
    await shop.until(lambda: not children(shop.keeper), "its daemon is gone")
    assert await shop.keeper_fds() == keeper
    await shop.until(lambda: descriptors() == before, "descriptors are closed")


async def test_end_all_with_grace(shop: Workshop) -> None:
    script = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done"
    nice, sink = await shop.record(sh(script))
    rude, other = await shop.record(sh("trap '' TERM; echo ready; while :; do sleep 1; done"))
    await shop.said(nice, sink, b"ready")
    await shop.said(rude, other, b"ready")
    await shop.table.end_all(0.2)
    assert nice.exit is not None
    assert nice.exit.code == 0
    await shop.until(lambda: not exists(rude.pid), "killed")


async def test_end_all_without_a_keeper(shop: Workshop) -> None:
    before = descriptors()
    child = await shop.start(SLEEP)
    shop.launcher.close()
    await shop.table.end_all(LIMIT)
    assert len(shop.table) == 0
    await shop.until(lambda: not alive(child.pid), "the keeper took it along")
    await shop.until(lambda: not exists(shop.keeper), "and is gone")
    # Without the link.
    await shop.until(lambda: len(descriptors()) == len(before) - 1, "nothing else is left")


async def test_observer_hears_of_each_once(shop: Workshop) -> None:
    seen = Counting()
    table = ProcessTable(shop.launcher, shop.loop, observer=seen, retention=0.01)
    for number in range(5):
        await table.start(str(number), sh("exit 1"), _nobody)
    with pytest.raises(SpawnFailed):
        await table.start("x", spec("/no/such/path"), _nobody)
    await shop.until(lambda: len(table) == 0, "all are forgotten")
    assert seen.seen == {"started": 5, "exited": 5}
    await table.end_all()
    assert seen.seen == {"started": 5, "exited": 5}


async def test_three_hundred_in_flight_leave_nothing(shop: Workshop) -> None:
    before, keeper = descriptors(), await shop.keeper_fds()
    table = ProcessTable(shop.launcher, shop.loop, retention=0.01)
    sinks = {str(n): Recorder() for n in range(300)}

    async def one(key: str, sink: Recorder) -> None:
        number = int(key)
        how = [{}, {"tty": True}, {"pipe_stdin": True}][number % 3]
        child = await table.start(key, sh(f"echo {key}; exit {number % 7}", **how), lambda: sink)
        await shop.finished(child)
        assert child.exit is not None
        assert child.exit.code == number % 7
        assert (sink.out + sink.tty).split() == [key.encode()]
        assert sink.kinds[-2:] == ["exited", "closed"]

    await asyncio.gather(*(one(key, sink) for key, sink in sinks.items()))
    await shop.until(lambda: not len(table) and not table._forgetting, "the retention is over")
    assert await shop.keeper_fds() == keeper
    await shop.until(lambda: descriptors() == before, "ours are closed")
    assert children(shop.keeper) == set() == zombies(shop.keeper)
    assert shop.launcher._early == {} == shop.launcher._watchers


async def test_daemon_of_a_forgotten_process_ends_with_the_table(shop: Workshop) -> None:
    table = ProcessTable(shop.launcher, shop.loop, retention=0.01)
    quiet = "setsid sleep 600 </dev/null >/dev/null 2>&1 & exit 0"
    await table.start("p", sh(quiet), _nobody)
    await shop.until(lambda: not len(table) and not table._forgetting, "p is forgotten")
    assert len(children(shop.keeper)) == 1
    await table.end_all()
    await shop.until(lambda: not children(shop.keeper), "its daemon is gone too")
    assert await shop.launcher.orphans() == {}


async def test_retained_output_is_counted_until_it_is_given_away(shop: Workshop) -> None:
    table = ProcessTable(shop.launcher, shop.loop)
    for key, size in (("a", 1000), ("b", 3_000_000), ("c", 0)):
        await shop.finished(await table.start(key, sh(f"head -c {size} /dev/zero"), _nobody))
    kept = {child.key: child.output.log.retained for child in table}
    assert kept["a"] == 1000
    assert 0 < kept["b"] <= 1024 * 1024
    assert table.retained == sum(kept.values())
    other = ProcessTable(shop.launcher, shop.loop)
    child = table.get("a")
    assert isinstance(child, Child)
    table.give_up(child)
    other.adopt(child)
    assert (table.retained, other.retained) == (kept["b"], 1000)
    await table.end_all()
    await other.end_all()
    assert (table.retained, other.retained) == (0, 0)
