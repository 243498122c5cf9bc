"""The registry of listeners: what another process opens is seen at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from handrail import listeners

#: Opens a listener, says its port, and holds it until its stdin ends.
HOLDER = """
import sys
from handrail import listeners
sock = listeners.open_tcp("127.0.0.1", 0, 1)
print(sock.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _own_homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))


def holder() -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def end(process: subprocess.Popen[str]) -> None:
    process.communicate()


@pytest.mark.parametrize("settled", [True, False], ids=["remembered", "just changed"])
def test_a_listener_of_another_process_is_seen_at_once(tmp_path: Path, settled: bool) -> None:
    first, port = holder()
    place = tmp_path / "handrail" / "listeners"
    if settled:  # the directory has not changed for long, so that what is in it is remembered
        os.utime(place, (1000, 1000))
    assert listeners.has(port)
    assert not listeners.has(1)
    assert (str(place) in listeners._seen) is settled
    second, other = holder()
    try:
        assert listeners.has(other)
        assert listeners.has(port)
        end(first)
        assert not listeners.has(port)  # its lock has gone, whatever is remembered
    finally:
        end(second)
    assert not listeners.has(other)
