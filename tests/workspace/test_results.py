"""Results of left processes: they outlive session, server, keeper and a restart of the machine."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail import AsyncWorkspace, Managed, UsageError, Workspace
from handrail.process.exit_status import ExitKind
from handrail.results import store
from handrail.server.recovery import running_servers
from handrail.server_settings import ResultBounds
from handrail.workspace import detached_store
from handrail.workspace.result import Gap
from tests.network.origin import fetch
from tests.support.eventually import LIMIT, eventually
from tests.support.processes import alive
from tests.support.servers import ServerProcess, server_process

DAY = 86_400.0


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state home of server and client: they are of one user on one machine."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path / "xdg"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def server(state: Path) -> Iterator[ServerProcess]:
    with server_process(state) as running:
        yield running


def ended() -> list[store.Stored]:
    return [one for one in store.every() if one.about.exit is not None]


def end_both(server: ServerProcess) -> None:
    """Kill server and keeper at once, as a machine that goes down does."""
    keeper = server.keeper()
    os.kill(server.pid, signal.SIGSTOP)
    for pid in (keeper, server.pid):
        os.kill(pid, signal.SIGKILL)
    server.wait()
    eventually(lambda: not alive(keeper))


def a_day_later(home: Path) -> None:
    """Move everything that is stored a day into the past."""
    for place, _, names in os.walk(home):
        for name in names:
            path = os.path.join(place, name)
            then = os.stat(path).st_mtime - DAY
            os.utime(path, (then, then))


def test_a_result_is_there_a_day_after_the_machine_went_down(
    server: ServerProcess, root: Path, home: Path
) -> None:
    with Workspace(root, at=server.url, sandbox="off", labels={"task": "42"}) as ws:
        started = ws.start("echo precious; echo careful >&2; exit 3", name="build")
        assert (started.name, started.labels) == ("build", {"task": "42"})
        left = ws.detach()
    (stored,) = eventually(ended)
    end_both(server)
    a_day_later(home)
    store.sweep(ResultBounds())
    for _ in range(2):  # to have looked is not to have taken it away
        back = Workspace.attach(left)
        (process,) = back.processes
        assert (process.stored, process.running) == (True, False)
        assert (process.name, process.labels) == ("build", {"task": "42"})
        result = process.result()
        assert (result.stdout, result.stderr, result.exit_code) == ("precious\n", "careful\n", 3)
        assert result.complete
        assert result.duration < DAY
        back.detach()
    modes = {os.stat(path).st_mode & 0o777 for path in Path(stored.path).iterdir()}
    assert (modes, os.stat(stored.path).st_mode & 0o777) == ({0o600}, 0o700)
    with Workspace.attach(left):
        pass  # it was fetched
    assert list(store.every()) == []
    with pytest.raises(UsageError, match="no workspace"):
        Workspace.attach(left)


def test_an_exit_that_was_not_stored_is_lost_and_the_output_is_there(
    server: ServerProcess, root: Path
) -> None:
    with Workspace(root, at=server.url, sandbox="off") as ws:
        ws.start("echo begun; exec sleep 600")
        left = ws.detach()
    eventually(lambda: any(one.read(0) for one in store.every()))
    (stored,) = store.every()
    assert stored.in_use
    end_both(server)
    assert not stored.in_use
    with server_process(Path(server.state or "")):
        pass  # ends what they have left
    back = Workspace.attach(left)
    result = back.processes[0].result()
    assert (result.stdout, result.complete) == ("begun\n", False)
    assert result.exit is not None
    assert result.exit.kind is ExitKind.LOST
    back.close()


def test_the_next_server_goes_on_where_the_killed_one_stopped(state: Path, root: Path) -> None:
    gate = root / "gate"
    os.mkfifo(gate)
    script = f"read x < {gate}; seq 1 300000; read x < {gate}; seq 300001 400000; exit 4"
    first = ServerProcess(state)
    with Workspace(root, at=first.url, sandbox="off") as ws:
        ws.start(script)
        left = ws.detach()
    gate.write_text("\n")  # now: what the client would have received before is not stored
    eventually(lambda: any(one.size > 1_980_000 for one in store.every()))
    first.process.kill()
    first.wait()
    first.close()
    with server_process(state, listen=first.url):
        gate.write_text("\n")
        eventually(ended)
        back = Workspace.attach(left)
        result = back.processes[0].result()
        assert result.complete
        assert result.exit_code == 4
        assert result.stdout == "".join(f"{n}\n" for n in range(1, 400_001))
        back.close()


def test_an_upgraded_server_goes_on_as_well(state: Path, root: Path) -> None:
    gate = root / "gate"
    os.mkfifo(gate)
    with server_process(state) as server:
        with Workspace(root, at=server.url, sandbox="off") as ws:
            ws.start(f"read x < {gate}; seq 1 300000; read x < {gate}; seq 300001 400000; exit 4")
            left = ws.detach()
        gate.write_text("\n")
        eventually(lambda: any(one.size > 1_980_000 for one in store.every()))
        os.kill(server.pid, signal.SIGUSR2)
        server.wait()
        gate.write_text("\n")
        eventually(ended)
        back = Workspace.attach(left)
        result = back.processes[0].result()
        assert (result.complete, result.exit_code) == (True, 4)
        assert result.stdout == "".join(f"{n}\n" for n in range(1, 400_001))
        back.close()
        (successor,) = running_servers.every()
        assert running_servers.stop(successor, LIMIT)


def test_a_detached_process_is_found_after_its_end(server: ServerProcess, root: Path) -> None:
    with Workspace(root, at=server.url, sandbox="off") as ws:
        gate = root / "gate"
        os.mkfifo(gate)
        process_id = ws.start(f"read x < {gate}; echo late; exit 6", detach=True).id
    gate.write_text("\n")
    eventually(ended)
    with Workspace(root, at=server.url, sandbox="off") as ws:
        result = ws.process(process_id).result()
        assert (result.stdout, result.exit_code) == ("late\n", 6)


def test_a_workspace_that_cannot_be_recorded_is_not_left(server: ServerProcess, root: Path) -> None:
    """Without a record nothing would lead to its processes."""
    with Workspace(root, at=server.url, sandbox="off") as ws:
        process = ws.start("cat")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        try:
            with pytest.raises(OSError, match=r"record cannot be written .*make room") as failed:
                ws.detach()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert "/workspaces/" in failed.value.filename
        process.send("still here\n")
        process.close_stdin()
        assert process.result().stdout == "still here\n"
        assert ws.run("echo on").stdout == "on\n"


def test_a_process_that_runs_shows_what_its_server_no_longer_has(
    server: ServerProcess, root: Path
) -> None:
    gate = root / "gate"
    os.mkfifo(gate)
    size = 3 * 1024 * 1024
    wait = f"read x < {gate}"
    script = f"{wait}; head -c {size} /dev/zero | tr '\\0' x; echo up; {wait}; echo done"
    with Workspace(root, at=server.url, sandbox="off") as ws:
        ws.start(script)
        left = ws.detach()
    gate.write_text("\n")
    eventually(lambda: any(one.size > size for one in store.every()))
    back = Workspace.attach(left)
    (process,) = back.processes
    assert process.running
    events = list(process.follow(wait=False))
    assert not [event for event in events if isinstance(event, Gap)]
    assert process.wait_for("up", timeout=20)
    gate.write_text("\n")
    result = process.result()
    assert result.complete
    assert result.stdout == "x" * size + "up\ndone\n"
    back.close()


def test_beyond_the_bound_both_ends_are_kept_and_the_gap_is_told(state: Path, root: Path) -> None:
    gate = root / "gate"
    os.mkfifo(gate)
    with server_process(state, "--results-each", "3MiB") as server:
        with Workspace(root, at=server.url, sandbox="off") as ws:
            ws.start(f"read x < {gate}; seq 1 1200000")
            left = ws.detach()
        gate.write_text("\n")
        (stored,) = eventually(ended)
    assert stored.size < 3.1 * 1024 * 1024
    back = Workspace.attach(left)
    result = back.processes[0].result()
    total = sum(len(f"{n}\n") for n in range(1, 1_200_001))
    assert (result.ok, result.complete) == (True, False)
    assert result.omitted + len(result.stdout) == total
    assert result.stdout.startswith("1\n2\n3\n")
    assert result.stdout.endswith("1199999\n1200000\n")
    gaps = [event.omitted for event in back.processes[0].follow() if isinstance(event, Gap)]
    assert gaps == [result.omitted]
    back.close()


def test_secrets_are_never_written(server: ServerProcess, root: Path, home: Path) -> None:
    value = "tok-9f8e7d6c5b4a"
    script = f"echo a $TOKEN b; printf tok-9f8e; sleep 0.1; echo 7d6c5b4a; : {value}; printf tok-9f"
    with Workspace(root, at=server.url, sandbox="off", secrets={"TOKEN": value}) as ws:
        ws.start(["sh", "-c", script])
        left = ws.detach()
    eventually(ended)
    for place, _, names in os.walk(home):
        for name in names:
            assert value.encode() not in Path(place, name).read_bytes()
    end_both(server)
    back = Workspace.attach(left, secrets={"TOKEN": value})
    assert back.processes[0].result().stdout == "a [secret TOKEN] b\n[secret TOKEN]\ntok-9f"
    back.close()


def test_refused_hosts_are_stored(server: ServerProcess, root: Path) -> None:
    network = Managed(unlisted="deny")
    with Workspace(root, at=server.url, network=network, approver=None) as ws:
        ws.start(fetch("http://other.example/"))
        left = ws.detach()
    eventually(ended)
    end_both(server)
    with Workspace.attach(left) as back:
        (denial,) = back.processes[0].result().denials
    assert (denial.host, denial.port, denial.reason) == ("other.example", 80, "not_allowed")


def test_the_lifetime_is_what_keep_says(server: ServerProcess, root: Path) -> None:
    with Workspace(root, at=server.url, sandbox="off", detach_ttl=0) as ws:
        ws.start("echo one; exec sleep 600")
        lasting = ws.detach()
    with Workspace(root, at=server.url, sandbox="off") as ws:
        ws.start("echo two; exec sleep 600")
        short = ws.detach(keep="200ms")
    eventually(ended)
    back = Workspace.attach(short)
    result = back.processes[0].result()
    assert (result.stdout, result.exit and result.exit.kind) == ("two\n", ExitKind.TERMINATED)
    back.close()
    back = Workspace.attach(lasting)
    assert back.processes[0].running
    back.detach("1h")
    (record,) = detached_store.known()
    assert record.until is not None
    assert 3500 < record.until - time.time() <= 3600
    back = Workspace.attach(lasting)
    back.detach()  # the time it was left for goes on
    assert next(detached_store.known()).until == record.until
    Workspace.attach(lasting).close()
    with pytest.raises(UsageError, match="no duration"), Workspace(root, at=server.url) as ws:
        ws.detach("soon")


async def test_a_command_can_be_run_when_the_session_is_over(
    server: ServerProcess, root: Path
) -> None:
    ws = AsyncWorkspace(root, at=server.url, sandbox="off", env={"A": "1"})
    pid = root / "pid"
    await ws.start("echo $$ > pid; exit 5")
    eventually(lambda: pid.exists() and pid.read_text() and not alive(int(pid.read_text())))
    left = await ws.detach(keep=0)  # which ends what still runs
    eventually(ended)
    back = await AsyncWorkspace.attach(left)
    assert [process.exit and process.exit.code for process in back.processes] == [5]
    assert (await back.run("pwd; echo $A")).stdout == f"{root}\n1\n"
    await back.detach()
    back = await AsyncWorkspace.attach(left)
    assert (await back.processes[0].result()).exit_code == 5
    await back.close()


def test_a_server_elsewhere_is_asked_for_its_results(
    state: Path, root: Path, tmp_path: Path
) -> None:
    far = {"XDG_STATE_HOME": str(tmp_path / "far")}
    with server_process(state, env=far) as server:
        with Workspace(root, at=server.url, sandbox="off") as ws:
            ws.start([sys.executable, "-c", "print('x' * 2_000_000)"])
            left = ws.detach()
        eventually(lambda: _has_ended(left))
        Workspace.attach(left).detach(keep=0)
        eventually(lambda: not _attached_live(left))
        back = Workspace.attach(left)
        (process,) = back.processes
        assert process.stored
        result = process.result()
        assert (result.ok, len(result.stdout), result.complete) == (True, 2_000_001, True)
        back.close()
        assert not any((tmp_path / "far" / "handrail" / "results").iterdir())


def _has_ended(left: str) -> bool:
    """Whether no process of a workspace that was left still runs; leaves it as it was."""
    back = Workspace.attach(left)
    try:
        return all(process.exit is not None for process in back.processes)
    finally:
        back.detach()


def _attached_live(left: str) -> bool:
    """Whether the session of a workspace goes on; leaves it as it was."""
    back = Workspace.attach(left)
    try:
        return not all(process.stored for process in back.processes)
    finally:
        back.detach()


def test_old_results_go_first(server: ServerProcess, root: Path) -> None:
    left = []
    for number in range(3):
        with Workspace(root, at=server.url, sandbox="off") as ws:
            ws.start(f"head -c 100000 /dev/zero; echo {number}")
            left.append(ws.detach())
        eventually(lambda count=number + 1: len(ended()) == count)
    assert store.sweep(ResultBounds(total=250_000)) < 250_000
    back = Workspace.attach(left[1])
    assert back.processes[0].result().stdout.endswith("1\n")
    back.close()
    eventually(lambda: len(ended()) == 1)
    store.sweep(ResultBounds(), now=time.time() + 8 * DAY)
    assert list(store.every()) == []
