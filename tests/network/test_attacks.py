"""Every recorded case of a managed network holds, as root and as an ordinary user.

Each user has one world, in which all cases run one after the other, in a program of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from tests.network.world_program import HOME, WorldProgram, missing_tools
from tests.sandbox.arena import ORDINARY_UID, python_for

CASES = HOME / "tests" / "cases" / "network-attacks.jsonl"
#: Those that take long and do not depend on the user: for one of the two.
_SLOW = {
    "net-no-answer-is-no",
    "net-big-download-exact",
    "net-post-and-chunked-upload",
    "net-upstream-proxy",
    "net-upstream-no-proxy",
}

pytestmark = pytest.mark.skipif(missing_tools() is not None, reason=str(missing_tools()))


def users() -> list[int]:
    own = os.getuid()
    return [own, ORDINARY_UID] if own == 0 and python_for(ORDINARY_UID) else [own]


def names(uid: int) -> list[str]:
    found = [json.loads(line)["name"] for line in CASES.read_text().splitlines()]
    return found if uid == users()[0] else [name for name in found if name not in _SLOW]


@pytest.fixture(scope="module")
def worlds() -> Iterator[dict[int, WorldProgram]]:
    module = "tests.network.world_cases"
    running = {uid: WorldProgram(uid, module, str(CASES), *names(uid)) for uid in users()}
    yield running
    for one in running.values():
        one.end()


@pytest.mark.parametrize(
    ("uid", "name"),
    [
        pytest.param(uid, name, id=f"{name}-{'root' if uid == 0 else 'user'}")
        for uid in users()
        for name in names(uid)
    ],
)
def test_case(uid: int, name: str, worlds: dict[int, WorldProgram]) -> None:
    result = worlds[uid].result(name)
    assert result["holds"], result["said"]
