"""The figures that survival costs, printed (``pytest tests/system/test_figures.py -rP``).

What is asserted is what does not depend on the machine's mood: that all are there, and memory.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import time
from pathlib import Path

import pytest

from tests.keeper.watching import kilobytes
from tests.process.workshop import Workshop, run_in, spec
from tests.system.test_server_rows import keeper_of, listed, rigged

MANY = 500


def test_five_hundred_live_processes_are_found_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with rigged(tmp_path / "state", "--log-level", "warning") as rig:
        keeper = keeper_of(rig)
        params = {"argv": ["/bin/sleep", "600"], "cwd": "file:///", "env": {}, "tty": False}
        for n in range(MANY):
            rig.call("process/start", processId=f"p{n}", **params)
        before = listed(rig)
        rig.restart()
        assert listed(rig) == before
        assert len(before) == MANY
        assert all(one["state"] == "running" for one in before.values())
        rss = kilobytes(keeper, "VmRSS")
        assert rss <= 16 * 1024
        said = capfd.readouterr().err
        found = re.search(r"took over (\d+) processes of 1 sessions in (\d+) ms", said)
        assert found is not None
        assert int(found[1]) == MANY
    print(f"\n{MANY} processes taken over in {found[2]} ms; the keeper had {rss / 1024:.1f} MiB")


def bare_start() -> float:
    began = time.perf_counter()
    pid = os.posix_spawn("/bin/true", ["true"], {})
    taken = time.perf_counter() - began
    os.waitpid(pid, 0)
    return taken


async def kept_start(shop: Workshop) -> float:
    began = time.perf_counter()
    spawned = await shop.launcher.spawn(spec("/bin/true"))
    taken = time.perf_counter() - began
    ended: asyncio.Future[None] = shop.loop.create_future()
    shop.launcher.watch(spawned.child, lambda *_: ended.set_result(None))
    await ended
    for fd in (*spawned.fds, spawned.pidfd):
        os.close(fd)
    shop.launcher.forget(spawned.child)
    return taken


def test_a_start_through_the_keeper_beside_a_bare_one() -> None:
    bare, kept = [], []

    async def main(shop: Workshop) -> None:
        for _ in range(300):
            bare.append(bare_start())
            kept.append(await kept_start(shop))

    run_in("uvloop")(main)
    ours, floor = (1000 * statistics.median(times) for times in (kept, bare))
    more = ours - floor
    print(f"\nstart through the keeper {ours:.2f} ms, bare {floor:.2f} ms, +{more:.2f} ms (p50)")
