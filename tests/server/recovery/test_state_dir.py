"""One directory, one lock, one keeper."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from handrail.errors import UsageError
from handrail.keeper import messages
from handrail.process.keeper_client.start_keeper import KeeperHandle
from handrail.server.recovery import state_dir
from handrail.server.recovery.state_dir import StateDir, claim
from tests.support.eventually import LIMIT, eventually
from tests.support.processes import alive, descriptors, ended


@contextmanager
def claimed(path: Path | None) -> Iterator[StateDir]:
    taken = claim(None if path is None else str(path))
    try:
        yield taken
    finally:
        taken.close()


@contextmanager
def keeper_of(taken: StateDir) -> Iterator[KeeperHandle]:
    """Its keeper, ended afterwards."""
    handle = taken.keeper(600.0)
    try:
        yield handle
    finally:
        handle.sock.close()
        if not handle.found:
            os.kill(handle.pid, 15)
            assert ended(handle.pid)
            os.waitpid(handle.pid, 0)


def pid_behind(handle: KeeperHandle) -> int:
    """Who answers there."""
    handle.sock.settimeout(LIMIT)
    messages.send(
        handle.sock, messages.HELLO, 1, messages.Hello(messages.VERSION, os.getpid()).pack()
    )
    welcome = messages.receive(handle.sock)
    assert welcome is not None
    assert welcome.op == messages.WELCOME
    return messages.Welcome.unpack(welcome.fields).pid


def test_a_directory_is_made_for_us_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    with claimed(path) as taken:
        assert taken.path == str(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert stat.S_IMODE((path / "lock").stat().st_mode) == 0o600


def test_a_directory_is_taken_once(tmp_path: Path) -> None:
    before = descriptors()
    with claimed(tmp_path / "x"):
        inside = descriptors()
        for _ in range(3):
            with pytest.raises(UsageError, match="in use by another server"):
                claim(str(tmp_path / "x"))
        assert descriptors() == inside
        with claimed(tmp_path / "y"):
            pass
    with claimed(tmp_path / "x"):
        pass
    assert descriptors() == before


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_directory_others_can_enter_is_narrowed(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "x"
    path.mkdir()
    path.chmod(mode)
    with claimed(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match=f"cannot use the state directory {path}"):
            claim(str(path))


def test_without_a_name_the_first_free_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with claimed(None) as first, claimed(None) as second:
        assert os.path.basename(first.path) == "0"
        assert os.path.basename(second.path) == "1"
        assert first.path.startswith(str(tmp_path))
    with claimed(None) as again:
        assert os.path.basename(again.path) == "0"


def test_there_is_an_end_to_the_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(state_dir, "_MOST_SERVERS", 1)
    with claimed(None), pytest.raises(UsageError, match="1 servers are running"):
        claim(None)


def test_a_keeper_is_started_once_and_found_again(tmp_path: Path) -> None:
    with claimed(tmp_path / "state") as taken, keeper_of(taken) as first:
        assert not first.found
        assert alive(first.pid)
        made = tmp_path / "state" / "keeper.sock"
        assert stat.S_ISSOCK(made.stat().st_mode)
        assert stat.S_IMODE(made.stat().st_mode) == 0o600
        with keeper_of(taken) as second:
            assert second.found
            assert pid_behind(second) == first.pid


def test_a_stale_socket_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with claimed(path) as taken:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stale:
            stale.bind(str(path / "keeper.sock"))
        with keeper_of(taken) as handle:
            assert not handle.found


def test_a_long_path_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 100) / ("y" * 100)
    with claimed(path) as taken, keeper_of(taken) as handle:
        with keeper_of(taken) as again:
            assert pid_behind(again) == handle.pid


def test_what_a_crash_has_left_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before one that is free, if it listened where we shall; another server's is left to it."""
    monkeypatch.setattr(state_dir, "_base", lambda: str(tmp_path))
    with ExitStack() as stack:
        for number, address in enumerate(("", "a", "b")):
            place = tmp_path / str(number)
            place.mkdir(mode=0o700)
            if address:
                with claimed(place) as taken:
                    stack.enter_context(keeper_of(taken))
                # A child has our lock until its exec has closed it, a moment after we go on.
                eventually(lambda place=place: not state_dir.in_use(str(place)), "it is free")  # type: ignore[misc]
                (place / "address").write_text(address)
        (tmp_path / "2" / "serving").write_text('{"address": "ws://127.0.0.1:9000"}')
        real = "websocket 127.0.0.1 9000 "
        for address, expected in (("b", "2"), ("a", "1"), ("c", "0"), (real, "2"), ("c", "0")):
            taken = claim(None, address)
            assert Path(taken.path).name == expected
            assert (taken.claimed is None) == (expected == "0")
            if taken.claimed is not None:
                taken.claimed.sock.close()
            taken.close()
            if expected != "0":
                (tmp_path / expected / "address").write_text({"2": "b"}.get(expected, "a"))


def test_a_full_disk_and_a_spoilt_record_stop_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with claimed(tmp_path / "state") as taken:
        (tmp_path / "state" / "starts").write_text("rubbish 1.5 nan ?\n")
        monkeypatch.setattr(os, "write", full)
        taken.begin()


def make_odd(path: Path, kind: str) -> None:
    """Put something in the place of a file of ours."""
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")


@pytest.mark.parametrize("kind", ["directory", "pipe", "link"])
@pytest.mark.parametrize("name", ["marks", "marks.next", "temporary", "starts", "secret.new"])
def test_what_is_odd_there_stops_no_start_and_no_end(tmp_path: Path, name: str, kind: str) -> None:
    with claimed(tmp_path / "state") as taken:
        make_odd(tmp_path / "state" / name, kind)
        taken.begin()
        with keeper_of(taken) as handle:
            assert not handle.found
        taken.at_work(1 << 30)
        taken.end_others(2 << 30, ())
        taken.ready()
        taken.done()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("secret", "directory"), ("secret", "pipe"), ("secret", "link"), ("keeper.sock", "directory")],
)
def test_what_cannot_be_done_without_is_named(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / "state" / name
    with claimed(tmp_path / "state") as taken:
        make_odd(path, kind)
        for _ in range(2 * state_dir.BUDGET):  # and that is no crash
            taken.begin()
            with pytest.raises(UsageError, match=f"{path} cannot be used .*; move it away"):
                taken.keeper(600.0)


def test_an_odd_directory_of_another_server_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_dir, "_base", lambda: str(tmp_path))
    for number, name in enumerate(("lock", "secret")):
        (tmp_path / str(number)).mkdir(mode=0o700)
        (tmp_path / str(number) / "keeper.sock").touch()
        make_odd(tmp_path / str(number) / name, "directory")
    with claimed(None) as taken:
        assert Path(taken.path).name == "1"  # which says so itself when its keeper is looked for
    monkeypatch.setattr(state_dir, "_MOST_SERVERS", 1)
    with pytest.raises(UsageError, match="cannot be locked"):
        claim(None)


@pytest.mark.parametrize("planted", ["address", "pipe", "nested"])
def test_the_port_of_a_server_before_is_not_taken_from_a_planted_file(
    tmp_path: Path, planted: str
) -> None:
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    serving = path / state_dir.SERVING
    if planted == "pipe":
        os.mkfifo(serving)
    else:
        text = '{"address": "ws://127.0.0.1:3000"}' if planted == "address" else "[" * 100_000
        serving.write_text(text)
    with claimed(path) as taken:
        assert state_dir.last_listen(taken.path) is None
    if planted != "address":
        with claimed(path) as taken:
            serving.unlink(missing_ok=True)
            os.mkfifo(serving)
            assert state_dir.last_listen(taken.path) is None


def test_the_address_of_a_server_with_tls_is_known(tmp_path: Path) -> None:
    with claimed(tmp_path / "state") as taken:
        (tmp_path / "state" / state_dir.SERVING).write_text('{"address": "wss://127.0.0.1:3000"}')
        before = state_dir.last_listen(taken.path)
    assert before is not None
    assert before.port == 3000
