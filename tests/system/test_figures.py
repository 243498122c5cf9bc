"""The figures that survival costs, printed (``pytest tests/system/test_figures.py -rP``).

What is asserted is what does not depend on the machine's mood: that all are there, and memory.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.processes import kilobytes
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
