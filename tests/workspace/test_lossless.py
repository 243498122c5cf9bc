"""Output is complete for every reader, or it is told what is missing; memory is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from handrail import AsyncWorkspace, Exited, Gap, Line, Output, UsageError, Workspace
from tests.support.eventually import eventually
from tests.support.servers import server_process

MIB = 1024 * 1024
#: 6.9 MB
NUMBERS = [str(number) for number in range(1, 1_000_001)]
COUNT = "seq 1000000"


@pytest.fixture(params=["near", "far"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workspace]:
    with contextlib.ExitStack() as stack:
        at = None
        if request.param == "far":
            state = tmp_path / "state"
            state.mkdir(mode=0o700)
            at = stack.enter_context(server_process(state)).url
        yield stack.enter_context(Workspace(tmp_path, at=at, sandbox="off"))


def text(events: Any) -> str:
    return b"".join(event.data for event in events if isinstance(event, Output)).decode()


def test_a_late_reader_gets_everything(place: Workspace) -> None:
    process = place.start(COUNT)
    process.wait()
    events = list(process)
    assert text(events).split() == NUMBERS
    assert isinstance(events[-1], Exited)
    assert not any(isinstance(event, Gap) for event in events)
    result = process.result()
    assert (result.complete, result.omitted) == (True, 0)
    assert result.stdout.split() == NUMBERS
    assert [line.text for line in process.lines()] == NUMBERS


def test_the_process_waits_for_a_reader_that_iterates(place: Workspace) -> None:
    process = place.start(f"echo ready; read x; {COUNT}", keep_output=100_000)
    events = iter(process)
    first = next(events)
    process.send("\n")
    held: Any = process._twin._session
    eventually(lambda: held._history._shut, "the reader lags")
    assert process.running
    assert text([first, *events]).split() == ["ready", *NUMBERS]


def test_without_a_reader_what_is_dropped_is_a_gap(place: Workspace) -> None:
    process = place.start(COUNT, keep_output=100_000)
    process.wait()
    held: Any = process._twin._session
    eventually(lambda: held._history.ended, "all output is here")
    gap, first, *rest = process
    assert isinstance(gap, Gap)
    assert isinstance(first, Output)
    kept = text([first, *rest])
    assert gap.omitted == first.omitted == 6_888_896 - len(kept) > 0
    assert kept.endswith("\n999999\n1000000\n")
    lines = process.lines()
    assert next(lines) == Line("gap", f"[{gap.omitted} bytes of output were not kept]")
    del lines
    result = process.result()
    assert result.ok
    assert not result.complete
    assert (result.omitted, result.stdout) == (gap.omitted, kept)


def test_a_terminate_waits_for_no_reader(place: Workspace) -> None:
    process = place.start("yes", keep_output=100_000)
    events = iter(process)
    next(events)
    held: Any = process._twin._session
    eventually(lambda: held._history._shut, "the reader lags")
    process.terminate()
    assert process.exit is not None
    assert isinstance([*events][-1], Exited)


def test_a_reader_that_stops_holds_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncWorkspace(tmp_path, sandbox="off", keep_output=100_000) as ws:
            process = await ws.start(COUNT)
            async for _ in process:
                break
            async for _ in process.lines():
                break
            async with asyncio.timeout(20):
                assert await process.wait() is not None

    asyncio.run(main())


def spill_files() -> set[str]:
    links = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.add(os.readlink(f"/proc/self/fd/{fd}"))
    return {link for link in links if "handrail-output" in link}


def test_the_file_is_closed_with_its_process(ws: Workspace) -> None:
    before = spill_files()
    process = ws.start(COUNT)
    assert [line.text for line in process.lines()] == NUMBERS
    process.wait()
    ours = spill_files() - before
    assert len(ours) == 1
    del process
    ws.run("true")  # its workspace forgets what has ended
    eventually(lambda: not spill_files() & ours, "the file is closed")


def test_both_ends_of_long_output(place: Workspace) -> None:
    result = place.run(f"{COUNT}; {COUNT} >&2", max_output=1000)
    assert result.ok
    assert not result.complete
    for said in (result.stdout, result.stderr):
        assert len(said) == 1000
        assert said.startswith("1\n2\n3\n")
        assert said.endswith("\n999999\n1000000\n")
    assert result.omitted == 2 * (6_888_896 - 1000)
    whole = place.run(COUNT, max_output=None)
    assert whole.complete
    assert whole.stdout.split() == NUMBERS
    assert place.run("echo hi", max_output=0).omitted == 3


def test_a_slow_listener_hears_everything(tmp_path: Path) -> None:
    heard: list[bytes] = []

    async def slowly(output: Output) -> None:
        heard.append(output.data)
        await asyncio.sleep(0.001)

    async def main() -> None:
        async with AsyncWorkspace(tmp_path, sandbox="off") as ws:
            assert (await ws.run(COUNT, on_output=slowly)).complete

    asyncio.run(main())
    assert b"".join(heard).decode().split() == NUMBERS


@pytest.mark.parametrize("wrong", [-1, 1.5, "64k", True])
def test_what_is_no_number_of_bytes(ws: Workspace, wrong: Any) -> None:
    with pytest.raises(UsageError, match="max_output must be bytes"):
        ws.run("true", max_output=wrong)
    with pytest.raises(UsageError, match="keep_output must be bytes"):
        ws.start("true", keep_output=wrong)
    with pytest.raises(UsageError, match="keep_output must be bytes"):
        Workspace(keep_output=wrong)


READERS = {
    "for event in p": "for event in ws.start(command): pass",
    "lines": "for line in ws.start(command).lines(): pass",
    "run": "assert ws.run(command, max_output=1_000_000).omitted == SIZE - 1_000_000",
}


@pytest.mark.parametrize("reader", READERS)
def test_memory_is_bounded(tmp_path: Path, reader: str) -> None:
    script = f"""
import resource
from handrail import Workspace
SIZE = 150_000_000
command = f"yes 012345678901234567890123456789012345678901234567890 | head -c {{SIZE}}"
most = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with Workspace({str(tmp_path)!r}, sandbox="off", keep_output=50_000_000) as ws:
    ws.run("true")
    idle = most()
    {READERS[reader]}
    print(most() - idle)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=55, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64 * 1024  # KiB
