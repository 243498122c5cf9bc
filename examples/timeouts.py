"""Three time limits, and a tree of processes that is ended whole.

python examples/timeouts.py
"""

from __future__ import annotations

import os
import signal
import tempfile

from handrail import CommandFailed, Workspace

#: A child, one in a session of its own, and one that ignores everything it can.
TREE = """
sleep 1000 & echo $!
setsid sleep 1000 & echo $!
(trap '' TERM INT HUP; while :; do sleep 1000; done) & echo $!
echo started
wait
"""


def alive(pids: list[int]) -> int:
    """How many of them run."""
    found = 0
    for pid in pids:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        found += 1
    return found


def main() -> None:
    # Without a sandbox the numbers of the processes are those of this machine.
    with tempfile.TemporaryDirectory() as directory, Workspace(directory, sandbox="off") as ws:
        result = ws.run("echo begun; sleep 1000", timeout=1)  # ends the command
        assert result.exit is not None
        print(f"timeout: {result.exit.kind.value}")
        print(f"what it had printed: {result.stdout!r}")

        result = ws.run("echo begun; sleep 1000", wait=0.3)  # ends the waiting alone
        print(f"wait: it still runs: {result.exit is None}")
        assert result.process is not None
        result.process.signal(signal.SIGTERM)
        end = result.process.wait(timeout=10)
        print(f"signal: {end.signal if end else 'it still runs'}")

        try:
            ws.run("sleep 1000", timeout=0.3, check=True)
        except CommandFailed as failed:
            print(f"check: CommandFailed, timed out: {failed.result.timed_out}")

        tree = ws.start(TREE)
        tree.expect("started", timeout=20)
        pids = [int(line) for line in tree.result(timeout=0).stdout.split()[:-1]]
        before = alive(pids)
        tree.terminate(grace=0.2)
        print(f"tree: {before} of {len(pids)} ran, {alive(pids)} are left")


if __name__ == "__main__":
    main()
