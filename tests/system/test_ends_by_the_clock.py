"""Time limits and graces do not depend on a server that lives to see them."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path

import pytest

from tests.system.survival import LIMIT, Rig
from tests.system.test_sandboxed_crash import Said, follow, orphaned, sandboxed
from tests.system.test_server_rows import keeper_of, upgrade
from tests.system.test_survival import rigged

pytestmark = pytest.mark.system

POLITE = "trap 'echo bye; exit 5' TERM HUP; echo ready; while :; do sleep 0.02; done"
DEAF = "trap 'echo again' TERM; trap '' HUP; echo ready; while :; do sleep 0.02; done"


def start(rig: Rig, ws: Path, script: str, *, inside: bool, tty: bool, timeout: int = 0) -> Said:
    more: dict[str, object] = {"tty": tty, **({"timeoutMs": timeout} if timeout else {})}
    if inside:
        return sandboxed(rig, ws, "/bin/sh", "-c", script, **more)
    one = Said("p", 0, 0)
    rig.start(one, "/bin/sh", "-c", script, **more)
    return one


def gone(rig: Rig) -> int:
    """A descriptor that tells of the end of the process, whoever serves."""
    (row,) = rig.call("process/list")["processes"]
    return os.pidfd_open(row["pid"])


def ended(pidfd: int) -> bool:
    """Without a server."""
    try:
        return bool(select.select([pidfd], [], [], LIMIT)[0])
    finally:
        os.close(pidfd)


def exit_of(rig: Rig, one: Said) -> tuple[str, int]:
    follow(rig, one)
    info = rig.call("process/read", processId="p")["exit"]
    return info["kind"], info["code"]


@pytest.mark.parametrize("inside", [False, True], ids=["open", "sandboxed"])
@pytest.mark.parametrize("tty", [False, True], ids=["pipe", "terminal"])
def test_a_time_limit_is_kept_while_no_server_runs(tmp_path: Path, inside: bool, tty: bool) -> None:
    with rigged(tmp_path / "state") as rig:
        rig.attach()
        one = start(rig, tmp_path / "w", POLITE, inside=inside, tty=tty, timeout=3000)
        follow(rig, one, b"ready")
        pidfd = gone(rig)
        rig.kill()
        rig._rest()
        assert ended(pidfd)
        rig.start_server()
        rig.attach()
        assert exit_of(rig, one) == ("timedOut", 5)
    assert one.text.count(b"bye") == 1


@pytest.mark.parametrize("inside", [False, True], ids=["open", "sandboxed"])
def test_a_grace_runs_on_while_no_server_does_and_term_comes_once(
    tmp_path: Path, inside: bool
) -> None:
    with rigged(tmp_path / "state") as rig:
        rig.attach()
        one = start(rig, tmp_path / "w", DEAF, inside=inside, tty=False)
        follow(rig, one, b"ready")
        pidfd = gone(rig)
        rig.call("process/terminate", processId="p", graceMs=1000)
        rig.kill()
        rig._rest()
        assert ended(pidfd)
        rig.start_server()
        rig.attach()
        assert exit_of(rig, one) == ("terminated", 128 + signal.SIGKILL)
    assert one.text.count(b"again") == 1


@pytest.mark.parametrize("inside", [False, True], ids=["open", "sandboxed"])
def test_the_next_server_leaves_a_grace_as_it_is(tmp_path: Path, inside: bool) -> None:
    with rigged(tmp_path / "state") as rig:
        rig.attach()
        one = start(rig, tmp_path / "w", DEAF, inside=inside, tty=False)
        follow(rig, one, b"ready")
        rig.call("process/terminate", processId="p", graceMs=int(LIMIT * 1000))
        follow(rig, one, b"again")
        rig.restart()
        rig.restart()
        rig.call("process/signal", processId="p", signal="usr1")  # of which it dies
        assert exit_of(rig, one) == ("terminated", 128 + signal.SIGUSR1)
    assert one.text.count(b"again") == 1


@pytest.mark.parametrize("inside", [False, True], ids=["open", "sandboxed"])
def test_a_time_limit_outlives_the_keeper(tmp_path: Path, inside: bool) -> None:
    with orphaned(tmp_path / "state") as rig:
        rig.attach()
        one = start(rig, tmp_path / "w", POLITE, inside=inside, tty=False, timeout=3000)
        follow(rig, one, b"ready")
        os.kill(keeper_of(rig), signal.SIGKILL)
        kind, code = exit_of(rig, one)
    # A kernel before 6.15 does not tell the status of somebody else's child.
    assert (kind, code) in (("timedOut", 5), ("lost", None))
    assert one.text.count(b"bye") == 1


def test_a_time_limit_outlives_an_upgrade_of_both(tmp_path: Path) -> None:
    with rigged(tmp_path / "state") as rig:
        rig.attach()
        one = start(rig, tmp_path / "w", POLITE, inside=True, tty=False, timeout=3000)
        follow(rig, one, b"ready")
        before = keeper_of(rig)
        new = upgrade(rig)
        assert exit_of(rig, one) == ("timedOut", 5)
        assert Path(f"/proc/{before}").exists()  # the same process, another program
        os.kill(new, signal.SIGTERM)
    assert one.text.count(b"bye") == 1


@pytest.mark.parametrize("inside", [False, True], ids=["open", "sandboxed"])
def test_a_grace_that_outlived_a_server_outlives_the_keeper_too(
    tmp_path: Path, inside: bool
) -> None:
    with orphaned(tmp_path / "state") as rig:
        rig.attach()
        one = start(rig, tmp_path / "w", DEAF, inside=inside, tty=False)
        follow(rig, one, b"ready")
        rig.call("process/terminate", processId="p", graceMs=3000)
        follow(rig, one, b"again")
        keeper = keeper_of(rig)
        rig.restart()
        os.kill(keeper, signal.SIGKILL)
        kind, code = exit_of(rig, one)
    assert (kind, code) in (("terminated", 128 + signal.SIGKILL), ("lost", None))
    assert one.text.count(b"again") == 1


def test_one_that_ended_in_time_is_not_said_to_be_late(tmp_path: Path) -> None:
    """It has neither its keeper nor a server, and the next one comes after its time."""
    script = "echo ready; sleep 0.5; exit 7"
    with orphaned(tmp_path / "state") as rig:
        rig.attach()
        one = start(rig, tmp_path / "w", script, inside=False, tty=False, timeout=2000)
        follow(rig, one, b"ready")
        began = time.monotonic()
        pidfd = gone(rig)
        os.kill(keeper_of(rig), signal.SIGKILL)
        rig.call("process/list")  # answered by the next keeper
        rig.kill()
        rig._rest()
        assert ended(pidfd)
        select.select([], [], [], max(0.0, began + 2.2 - time.monotonic()))
        rig.start_server()
        rig.attach()
        kind, code = exit_of(rig, one)
        usage = rig.call("process/read", processId="p")["usage"]
    assert (kind, code) in (("exited", 7), ("lost", None))
    if kind == "exited":
        assert usage["wallMs"] < 2000
        assert usage["userMs"] is None  # nobody has counted it
