"""What servers were given is covered while it is used or holds a secret, and no longer."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from handrail import directory_secret, private_places
from handrail.filesystem import stage_names
from handrail.server.recovery import unused_state_dirs
from handrail.server.recovery.state_dir import StateDir, claim


@pytest.fixture(autouse=True)
def _state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(private_places, "shared_home", lambda: str(tmp_path / "user"))
    monkeypatch.setattr(private_places, "_added", {})


def taken(path: Path) -> StateDir:
    """A directory as a server has it: with its secret."""
    state = claim(str(path))
    directory_secret.make_secret(state.fd)
    return state


def covered(path: Path) -> bool:
    return os.fsencode(path) in private_places.remembered()


def test_a_server_that_ends_in_order_leaves_nothing_to_cover(tmp_path: Path) -> None:
    state = taken(tmp_path / "a")
    stage_names.StageJournal(state.fd).sweep()
    assert (tmp_path / "a" / "stages").exists()
    assert covered(tmp_path / "a")
    before = private_places.revision()
    state.done()
    state.close()
    assert not (tmp_path / "a" / "stages").exists()  # the next server would not believe it
    assert not (tmp_path / "a" / "secret").exists()
    assert not covered(tmp_path / "a")
    assert private_places.revision() != before  # or plans would still name it


def test_directories_of_killed_servers_are_retired(tmp_path: Path) -> None:
    for name in "abc":
        taken(tmp_path / name).close()  # as a kill would
    (tmp_path / "link").symlink_to(tmp_path / "d")
    (tmp_path / "d").mkdir()
    private_places.remember(str(tmp_path / "link"))
    assert all(covered(tmp_path / name) for name in "abcd")
    unused_state_dirs.retire()
    assert not any(covered(tmp_path / name) for name in "abcd")
    assert not list(tmp_path.glob("*/secret"))


def test_what_a_killed_server_left_is_removed_with_its_directory(tmp_path: Path) -> None:
    """The next server does not believe the records, for commands could have written them since."""
    state = taken(tmp_path / "a")
    temporary = tmp_path / "handrail-session-0123456789abcdef"
    temporary.mkdir()
    (tmp_path / "a" / "temporary").write_bytes(os.fsencode(temporary) + b"\0")
    (tmp_path / "a" / "temporary").chmod(0o600)
    stage = tmp_path / ".handrail-01234567"
    stage.touch(0o600)
    journal = stage_names.StageJournal(state.fd)
    directory = os.open(tmp_path, os.O_RDONLY)
    journal.note(directory, os.fsencode(stage.name))
    os.close(directory)
    journal.close()
    state.close()
    unused_state_dirs.retire()
    assert not temporary.exists()
    assert not stage.exists()


def test_a_directory_with_a_server_stays_covered(tmp_path: Path) -> None:
    state = taken(tmp_path / "a")
    unused_state_dirs.retire()
    assert covered(tmp_path / "a")
    assert (tmp_path / "a" / "secret").exists()
    state.close()


def test_a_directory_with_a_keeper_stays_covered(tmp_path: Path) -> None:
    """Its server was killed, and the next one will want the secret."""
    taken(tmp_path / "a").close()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as keeper:
        keeper.bind(str(tmp_path / "a" / "keeper.sock"))
        keeper.listen(0)
        unused_state_dirs.retire()
        assert covered(tmp_path / "a")
        unused_state_dirs.retire()  # nor when its backlog is full
        assert covered(tmp_path / "a")
    unused_state_dirs.retire()
    assert not covered(tmp_path / "a")


def test_a_directory_with_processes_stays_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = taken(tmp_path / "a")
    state.at_work(1 << 40)
    state.close()
    monkeypatch.setattr("handrail.process.recovery.tag_kill.any_of", lambda marks: True)
    unused_state_dirs.retire()
    assert covered(tmp_path / "a")


def test_a_secret_that_cannot_be_removed_stays_covered(tmp_path: Path) -> None:
    state = claim(str(tmp_path / "a"))
    (tmp_path / "a" / "secret").mkdir()  # odd, but nothing says that it holds none
    state.done()
    state.close()
    assert covered(tmp_path / "a")


def test_records_in_a_directory_that_was_not_covered_are_not_used(tmp_path: Path) -> None:
    """A command could have written them, and what they name would be ended and removed."""
    victim = tmp_path / "handrail-session-x"
    victim.mkdir()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "temporary").write_bytes(os.fsencode(victim) + b"\0")
    (tmp_path / "a" / "temporary").chmod(0o600)
    state = claim(str(tmp_path / "a"))
    state.clear()
    state.close()
    assert victim.exists()
    state = claim(str(tmp_path / "a"))  # covered by now, so these are its own
    (tmp_path / "a" / "temporary").write_bytes(os.fsencode(victim) + b"\0")
    (tmp_path / "a" / "temporary").chmod(0o600)
    state.close()
    state = claim(str(tmp_path / "a"))
    state.clear()
    state.close()
    assert not victim.exists()
