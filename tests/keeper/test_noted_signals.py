"""The descriptor of the signals that the keeper waits for."""

from __future__ import annotations

import subprocess
import sys

import pytest

SIGNALS = """
import os, select, signal, sys
from handrail.keeper import noted_signals
if sys.argv[1] == "refused":
    noted_signals._signalfd = lambda: -1
signals = noted_signals.NotedSignals()
assert signals.take() == b""
for number in (signal.SIGCHLD, signal.SIGTERM):
    os.kill(os.getpid(), number)
    assert select.select([signals.fd], [], [], 10)[0]
    assert signals.take() == bytes([number]), number
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGCHLD)
found = b""
while len(found) < 2:
    found += signals.take()
assert sorted(found) == [signal.SIGTERM, signal.SIGCHLD]
assert not os.get_inheritable(signals.fd)
pid = os.posix_spawn(sys.executable, [sys.executable, "-c", "import signal; print(sorted("
    "signal.pthread_sigmask(signal.SIG_BLOCK, ())))"], os.environ, setsigmask=())
assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.parametrize("signalfd", ["there", "refused"])
def test_signals_are_noted_by_a_descriptor(signalfd: str) -> None:
    """Not one is lost, and none ends the keeper."""
    said = subprocess.run(
        [sys.executable, "-c", SIGNALS, signalfd], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout == "[]\n"
