"""A fleet on a Ray cluster of several nodes on this machine: ``ray_scenarios``, ``ray_limits``."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
SECONDS = 170.0
#: These use the fleet that all of them share, one after the other.
STANDING = [
    "spread_and_labels",
    "templates_by_the_object_store",
    "a_lost_machine",
    "a_swallowed_line",
    "a_killed_driver",
    "a_killed_server_and_supervisor",
    "a_killed_server_with_its_keeper",
    "a_killed_registrar",
]
#: These have fleets of their own.
OWN = [
    "a_fleet_from_the_shell",
    "elastic_shares",
    "a_fleet_without_a_name_and_driver",
    "ray_gone_and_the_machine_alive",
    "nothing_is_left_of_a_fleet",
    "quotas_over_drivers",
    "the_end_of_a_fleet_in_use",
    "a_call_that_was_left_says_nothing",
    "a_machine_with_another_version",
]

pytestmark = [pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def ended(request: pytest.FixtureRequest) -> Iterator[Callable[[str], str | None]]:
    """What went wrong in a scenario; one world runs all that were chosen."""
    chosen = [
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == test_on_ray.__name__
    ]
    with tempfile.TemporaryFile() as said:
        world = subprocess.Popen(
            [sys.executable, "-m", "tests.fleet.ray_world", "2"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            cwd=HOME,
            env={**os.environ, "RAY_DEDUP_LOGS": "0"},
        )
        assert world.stdin is not None
        assert world.stdout is not None
        stdin, stdout = world.stdin, world.stdout
        data = b""
        known: dict[str, str | None] = {}

        def answer(name: str) -> str | None:
            nonlocal data
            deadline = time.monotonic() + SECONDS
            while name not in known:
                ready = select.select([stdout], [], [], deadline - time.monotonic())[0]
                piece = os.read(stdout.fileno(), 65536) if ready else b""
                if not piece:
                    end = os.pread(said.fileno(), 1 << 20, 0).decode("utf-8", "replace")
                    raise AssertionError(f"the world is silent or gone: {end[-3000:]}")
                *lines, data = (data + piece).split(b"\n")
                known.update(map(json.loads, lines))
            return known[name]

        try:
            plan = [[name for name in names if name in chosen] for names in (STANDING, OWN)]
            stdin.write(json.dumps(plan).encode() + b"\n")
            stdin.flush()
            yield answer
        finally:
            stdin.close()
            try:
                world.wait(90)
            except subprocess.TimeoutExpired:
                world.send_signal(signal.SIGABRT)  # it tells where each thread is
                world.wait()
                end = os.pread(said.fileno(), 1 << 20, 0).decode("utf-8", "replace")
                raise AssertionError(f"the world does not end: {end[-6000:]}") from None
            finally:
                stdout.close()


@pytest.mark.parametrize("name", [*STANDING, *OWN])
def test_on_ray(name: str, ended: Callable[[str], str | None]) -> None:
    trouble = ended(name)
    assert trouble is None, trouble
