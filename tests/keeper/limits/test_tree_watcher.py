"""Limits of a tree without a control group: looked for in /proc, also after an upgrade."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from handrail.keeper import messages
from handrail.keeper.limits import cgroups, tree_watcher
from handrail.keeper.limits.tree_watcher import Watcher
from handrail.process.keeper_client.start_keeper import PROGRAM
from tests.keeper.peer import embedded, lodge, read_line

GREEDY = "import time; x = bytearray(200_000_000); time.sleep(600)"
MANY = "for i in 1 2 3 4 5 6 7 8; do sleep 600 & done; wait"


@pytest.fixture(autouse=True)
def _without_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cgroups.CHOICE, "walk")


def test_memory_and_processes_of_a_tree() -> None:
    with embedded() as keeper:
        server = keeper.hello()
        able = messages.Abilities.unpack(server.ask(messages.ABILITIES).fields)
        assert set(able.limits) >= tree_watcher.NAMES
        greedy = server.python(GREEDY, limits={b"memory": 64 << 20})
        status = server.exit(greedy).status
        assert status == signal.SIGKILL | cgroups.OUT_OF_MEMORY
        crowd = server.sh(MANY, limits={b"pids": 4, b"memory": 1 << 30})
        assert server.exit(crowd).status == signal.SIGKILL | tree_watcher.TOO_MANY
        small = server.sh("sleep 0.2; exit 3", limits={b"pids": 4, b"memory": 1 << 30})
        assert os.waitstatus_to_exitcode(server.exit(small).status) == 3


def test_the_next_version_looks_on(tmp_path: Path) -> None:
    with lodge(tmp_path) as keeper:
        server = keeper.first.hello()
        crowd = server.sh(
            f"echo ready; read x; {MANY}", mode=messages.MODE_STDIN, limits={b"pids": 4}
        )
        read_line(crowd.out)
        answer = server.ask(messages.REEXEC, *(word.encode() for word in PROGRAM))
        assert answer.op == messages.DONE
        os.write(crowd.inp, b"\n")
        assert server.exit(crowd).status == signal.SIGKILL | tree_watcher.TOO_MANY


def test_it_looks_only_while_there_is_something_to_see() -> None:
    found: dict[bytes, set[int] | None] = {b"a": {os.getpid()}, b"b": set()}
    ended: list[tuple[bytes, bytes]] = []
    watch = Watcher(found.__getitem__, lambda *what: ended.append(what))
    watch.add(b"none", {})
    assert watch.next is None
    watch.add(b"a", {b"memory": 1})
    watch.add(b"b", {b"pids": 1})
    watch.run(1000)
    assert ended == [(b"a", b"memory")]
    assert watch.next == 1000 + tree_watcher.PAUSE
    found[b"b"] = None
    watch.run(1001)  # not due yet
    assert watch.limits
    watch.run(2000)
    assert watch.next is None
    watch.drop(b"b")
