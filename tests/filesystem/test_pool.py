"""File work beside the loop: deadlines, hung calls, bounds.

Time is moved by hand: a deadline passes when the test says so.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from handrail.errors import FilesError
from handrail.filesystem.pool import PATIENCE, FilePool
from tests.support.eventually import spin

DEADLINE = 30.0


@pytest.fixture(autouse=True)
def loop() -> str:
    """The loop whose timers can be replaced."""
    return "asyncio"


class Stuck:
    """A call that hangs until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.entered = 0

    def __call__(self) -> str:
        self.entered += 1
        self.let_go.wait(60)
        return "late"


class Timers:
    """Stands in for ``loop.call_later``; nothing happens before ``pass_time``."""

    def __init__(self) -> None:
        self._pending: list[tuple[float, asyncio.Handle]] = []
        loop = asyncio.get_running_loop()
        loop.call_later = self._call_later  # type: ignore[method-assign, assignment]

    def _call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Any:
        handle = asyncio.Handle(callback, args, asyncio.get_running_loop())
        self._pending.append((delay, handle))
        return handle

    def pass_time(self, seconds: float) -> None:
        due = [handle for delay, handle in self._pending if delay <= seconds]
        self._pending = [(delay, handle) for delay, handle in self._pending if delay > seconds]
        for handle in due:
            if not handle.cancelled():
                handle._run()


async def test_results_and_errors_come_back() -> None:
    pool = FilePool()
    assert pool.threads == 0
    assert await pool.run(lambda a, b: a + b, 1, 2, deadline=DEADLINE) == 3
    assert await pool.run(sorted, [1, 2], deadline=DEADLINE, reverse=True) == [2, 1]
    with pytest.raises(ZeroDivisionError):
        await pool.run(lambda: 1 // 0, deadline=DEADLINE)
    where = await pool.run(threading.current_thread, deadline=DEADLINE)
    assert where is not threading.current_thread()
    assert where.daemon
    pool.close()
    with pytest.raises(FilesError, match="closed"):
        await pool.run(int, deadline=DEADLINE)


async def test_work_is_done_side_by_side() -> None:
    Timers()
    pool = FilePool(4)
    together = threading.Barrier(4)
    await asyncio.gather(*(pool.run(together.wait, 10, deadline=DEADLINE) for _ in range(4)))
    assert pool.threads == 4
    many = await asyncio.gather(*(pool.run(abs, -n, deadline=DEADLINE) for n in range(500)))
    assert many == list(range(500))
    assert pool.threads == 4
    pool.close()


async def test_a_deadline_gives_up_and_the_thread_is_replaced() -> None:
    timers, pool, stuck = Timers(), FilePool(1), Stuck()
    call = asyncio.ensure_future(pool.run(stuck, deadline=DEADLINE))
    await spin(lambda: stuck.entered == 1)
    timers.pass_time(DEADLINE)
    with pytest.raises(FilesError, match="did not finish within 30 s") as caught:
        await call
    assert caught.value.kind == "other"
    assert pool.hung == 1
    assert await pool.run(abs, -1, deadline=DEADLINE) == 1
    assert pool.threads == 2
    stuck.let_go.set()
    await spin(lambda: (pool.hung, pool.threads) == (0, 1))
    assert await pool.run(abs, -1, deadline=DEADLINE) == 1
    pool.close()


async def test_hung_calls_do_not_hold_up_the_others() -> None:
    timers, pool, stuck = Timers(), FilePool(2), Stuck()
    hung = [asyncio.ensure_future(pool.run(stuck, deadline=DEADLINE)) for _ in range(5)]
    await spin(lambda: stuck.entered == 2)
    timers.pass_time(PATIENCE)
    await spin(lambda: stuck.entered == 5)
    # All threads are inside hung calls whose deadlines are far away.
    call = asyncio.ensure_future(pool.run(abs, -1, deadline=DEADLINE))
    await asyncio.sleep(0)
    timers.pass_time(PATIENCE)
    assert await call == 1
    stuck.let_go.set()
    assert await asyncio.gather(*hung) == ["late"] * 5
    await spin(lambda: pool.threads <= 2)
    pool.close()


async def test_beyond_the_cap_calls_fail_at_once() -> None:
    Timers()
    pool, stuck = FilePool(1, spare=2), Stuck()
    for number in range(3):
        call = asyncio.ensure_future(pool.run(stuck, deadline=DEADLINE))
        await spin(lambda number=number: stuck.entered == number + 1)  # type: ignore[misc]
        call.cancel()
        await asyncio.wait([call])
    assert pool.threads == pool.hung == 3
    with pytest.raises(FilesError, match="all 3 file workers are hung"):
        await pool.run(abs, -1, deadline=DEADLINE)
    stuck.let_go.set()
    await spin(lambda: pool.hung == 0)
    assert await pool.run(abs, -1, deadline=DEADLINE) == 1
    pool.close()


async def test_waiting_in_vain_says_so() -> None:
    timers, pool, stuck = Timers(), FilePool(1, spare=0), Stuck()
    busy = asyncio.ensure_future(pool.run(stuck, deadline=2 * DEADLINE))
    await spin(lambda: stuck.entered == 1)
    call = asyncio.ensure_future(pool.run(abs, -1, deadline=DEADLINE))
    await asyncio.sleep(0)
    timers.pass_time(DEADLINE)
    with pytest.raises(FilesError, match="no file worker was free within 30 s"):
        await call
    stuck.let_go.set()
    assert await busy == "late"
    assert await pool.run(abs, -2, deadline=DEADLINE) == 2
    pool.close()


@pytest.mark.parametrize("way", ["deadline", "cancel"])
async def test_late_results_are_discarded(way: str) -> None:
    timers, pool, stuck = Timers(), FilePool(1), Stuck()
    dropped: list[str] = []
    call = asyncio.ensure_future(pool.run(stuck, deadline=DEADLINE, discard=dropped.append))
    await spin(lambda: stuck.entered == 1)
    if way == "cancel":
        call.cancel()
    else:
        timers.pass_time(DEADLINE)
    with pytest.raises((FilesError, asyncio.CancelledError)):
        await call
    stuck.let_go.set()
    await spin(lambda: dropped == ["late"])
    pool.close()


async def test_a_result_that_crosses_a_cancellation_is_discarded() -> None:
    pool = FilePool(1)
    dropped: list[str] = []
    call = asyncio.ensure_future(pool.run(str, "late", deadline=DEADLINE, discard=dropped.append))
    await asyncio.sleep(0)
    while pool._idle == 0:
        pass  # holds the loop until the thread is done, so that its outcome waits unseen
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await spin(lambda: dropped == ["late"])
    pool.close()


async def test_a_deadline_that_crosses_a_result_lets_it_through() -> None:
    timers, pool = Timers(), FilePool(1)
    call = asyncio.ensure_future(pool.run(abs, -1, deadline=DEADLINE))
    await asyncio.sleep(0)
    while pool._idle == 0:
        pass
    timers.pass_time(DEADLINE)
    assert await call == 1
    assert pool.hung == 0
    pool.close()


def test_a_closed_loop_does_not_hurt_the_thread() -> None:
    pool, stuck = FilePool(1), Stuck()
    dropped: list[str] = []

    async def leave() -> None:
        call = asyncio.ensure_future(pool.run(stuck, deadline=DEADLINE, discard=dropped.append))
        await spin(lambda: stuck.entered == 1)
        call.cancel()

    asyncio.run(leave())
    stuck.let_go.set()

    async def come_back() -> None:
        await spin(lambda: dropped == ["late"])
        assert await pool.run(abs, -1, deadline=DEADLINE) == 1

    asyncio.run(come_back())
    pool.close()


async def test_no_thread_to_be_had_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = FilePool()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(FilesError, match="no thread could be started"):
        await pool.run(abs, -1, deadline=DEADLINE)
    monkeypatch.undo()
    assert await pool.run(abs, -1, deadline=DEADLINE) == 1
    pool.close()


_EXIT = """
import asyncio, threading
from handrail.errors import FilesError
from handrail.filesystem.pool import FilePool

async def main():
    try:
        await FilePool().run(threading.Event().wait, deadline=0.01)
    except FilesError:
        print("given up")

asyncio.run(main())
"""


def test_a_hung_call_does_not_keep_the_program_alive() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _EXIT], check=True, capture_output=True, timeout=30
    )
    assert done.stdout == b"given up\n"
