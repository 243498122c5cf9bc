"""Places of ours: made for us alone, opened without being led astray, listed for every sandbox."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from handrail import directory_secret, private_places, secret_proof
from handrail.private_files import NotOurs, open_directory, open_file
from handrail.sandbox.temp_dirs import TempDir


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(private_places, "_added", {})
    monkeypatch.setattr(private_places, "shared_home", lambda: str(tmp_path / "user"))
    (tmp_path / "home").mkdir(mode=0o755)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077, 0o777])
def test_every_directory_that_is_missing_is_made_for_us_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        os.close(open_directory(str(tmp_path / "a" / "b" / "c")))
    finally:
        os.umask(before)
    for made in ("a", "a/b", "a/b/c"):
        assert mode(tmp_path / made) == 0o700


@pytest.mark.parametrize("umask", [0o000, 0o177, 0o400, 0o777])
def test_the_umask_takes_nothing_of_what_is_ours(tmp_path: Path, umask: int) -> None:
    directory = open_directory(str(tmp_path / "place"))
    before = os.umask(umask)
    try:
        os.close(open_file(directory, "file", os.O_WRONLY | os.O_CREAT))
        temporary = TempDir(place=os.fsencode(tmp_path))
    finally:
        os.umask(before)
        os.close(directory)
    assert mode(tmp_path / "place" / "file") == 0o600
    assert mode(Path(os.fsdecode(temporary.path))) == 0o700
    temporary.remove()


def test_a_wider_mode_is_narrowed_and_a_foreign_owner_refused(tmp_path: Path) -> None:
    wide = tmp_path / "wide"
    wide.mkdir()
    wide.chmod(0o777)
    os.close(open_directory(str(wide)))
    assert mode(wide) == 0o700
    if os.geteuid() == 0:
        os.chown(wide, 65534, 65534)
        with pytest.raises(NotOurs, match="belongs to user 65534"):
            open_directory(str(wide))
        with pytest.raises(NotOurs, match="directory of user 65534"):
            open_directory(str(wide / "below"))


def test_a_link_is_no_directory_of_ours(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "place").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotOurs, match="a link or no directory"):
        open_directory(str(tmp_path / "place"))
    # But homes may be links.
    os.close(open_directory(str(tmp_path / "place" / "below")))
    assert mode(tmp_path / "elsewhere" / "below") == 0o700


def test_a_file_is_never_a_link_a_pipe_or_a_second_name(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    place = tmp_path / "place"
    directory = open_directory(str(place))
    try:
        (place / "link").symlink_to(victim)
        os.link(victim, place / "second")
        os.mkfifo(place / "pipe")
        (place / "dangling").symlink_to(tmp_path / "made")
        for flags in (os.O_WRONLY | os.O_APPEND, os.O_RDONLY, os.O_RDWR | os.O_TRUNC):
            for name in ("link", "second", "pipe", "dangling"):
                with pytest.raises(OSError):
                    os.close(open_file(directory, name, flags | os.O_CREAT))
        assert victim.read_text() == "precious"
        assert not (tmp_path / "made").exists()
    finally:
        os.close(directory)


def test_a_file_is_for_us_alone(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path / "place"))
    before = os.umask(0)
    try:
        os.close(open_file(directory, "new", os.O_WRONLY | os.O_CREAT))
        (tmp_path / "place" / "wide").write_text("")
        (tmp_path / "place" / "wide").chmod(0o666)
        os.close(open_file(directory, "wide", os.O_WRONLY))
    finally:
        os.umask(before)
        os.close(directory)
    assert mode(tmp_path / "place" / "new") == mode(tmp_path / "place" / "wide") == 0o600


def test_the_runtime_directory_is_never_in_a_shared_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_state = str(tmp_path / "home/.local/state/handrail/runtime")
    assert private_places.runtime_directory() == in_state
    given = tmp_path / "rt"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(given))
    assert private_places.runtime_directory() == in_state  # it is missing
    given.mkdir(mode=0o700)
    assert private_places.runtime_directory() == str(given / "handrail")
    given.chmod(0o777)
    assert private_places.runtime_directory() == in_state


def test_the_list_has_every_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/x/state")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/x/rt")
    wanted = {
        b"/x/state/handrail",
        b"/x/rt/handrail",
        os.fsencode(tmp_path / "home/.local/state/handrail"),
        os.fsencode(tmp_path / "user"),
        b"/tmp/handrail-%d" % os.geteuid(),
    }
    assert wanted <= private_places.listed().keys()
    before = private_places.revision()
    private_places.add("/x/rt/handrail/server.sock")  # is covered with its directory
    assert private_places.revision() == before
    private_places.add("/srv/token")
    assert private_places.revision() != before
    assert private_places.listed()[b"/srv/token"] is False


def test_a_directory_of_one_program_is_known_to_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "given"
    given.mkdir()
    before = private_places.revision()
    private_places.remember(str(given))
    monkeypatch.setattr(private_places, "_added", {})  # as in another program
    assert private_places.revision() != before
    assert private_places.listed()[os.fsencode(given)] is True
    given.rmdir()
    assert os.fsencode(given) not in private_places.listed()
    given.mkdir()  # by a command, perhaps
    assert os.fsencode(given) not in private_places.listed()
    before = private_places.remembered()
    private_places.remember(f"{private_places.state_home()}/servers/0")
    assert private_places.remembered() == before


def test_a_directory_that_is_recorded_again_is_there_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that read half a record took its directory for gone, and removed the record."""
    given = tmp_path / "given"
    given.mkdir()
    private_places.remember(str(given))
    replaced, seen = private_places.replace_file, []

    def look(*words: Any, **options: Any) -> None:
        seen.append(private_places.remembered())
        replaced(*words, **options)
        seen.append(private_places.remembered())

    monkeypatch.setattr(private_places, "replace_file", look)
    before = private_places.revision()
    assert private_places.remember(str(given))
    assert seen == []  # nothing was written, and no plan is made anew
    assert private_places.revision() == before
    monkeypatch.setattr(private_places, "mount_namespace", lambda: 1)
    assert private_places.remember(str(given))
    assert seen == [[os.fsencode(given)]] * 2


def test_a_directory_in_another_mount_namespace_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that has a /tmp of its own does not see it, and a server may be using it."""
    given = tmp_path / "given"
    given.mkdir()
    private_places.remember(str(given))
    given.rename(tmp_path / "out of sight")
    with monkeypatch.context() as patch:
        patch.setattr(private_places, "mount_namespace", lambda: 1)
        assert private_places.remembered() == []
    (tmp_path / "out of sight").rename(given)
    assert private_places.remembered() == [os.fsencode(given)]


def test_a_directory_of_a_mount_namespace_before_the_boot_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "given"
    given.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(private_places, "mount_namespace", lambda: 1)
        private_places.remember(str(given))
    given.rmdir()
    (record,) = (Path(private_places.user_directory()) / "places").iterdir()
    assert private_places.remembered() == []
    assert record.exists()
    os.utime(record, (0, 0))
    assert private_places.remembered() == []
    assert not record.exists()


def test_the_list_of_directories_is_not_read_through_a_link(tmp_path: Path) -> None:
    """Another user may have made it: what is no list of ours would be removed as out of use."""
    other = tmp_path / "project" / "places"
    other.mkdir(parents=True)
    (other / "notes").write_text("of the user")
    (tmp_path / "user").symlink_to(tmp_path / "project")
    assert private_places.remembered() == []
    assert (other / "notes").exists()


def test_a_directory_of_a_program_with_another_state_home_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "given"
    given.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a"))
    private_places.remember(str(given))
    monkeypatch.setattr(private_places, "_added", {})
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "b"))
    assert private_places.listed()[os.fsencode(given)] is True
    private_places.forget(str(given))
    assert os.fsencode(given) not in private_places.listed()


def test_a_secret_is_made_once_and_read_by_us_alone(tmp_path: Path) -> None:
    place = tmp_path / "place"
    assert directory_secret.secret_in(str(place)) is None
    directory = open_directory(str(place))
    try:
        secret = directory_secret.make_secret(directory)
        assert directory_secret.make_secret(directory) == secret
    finally:
        os.close(directory)
    assert directory_secret.secret_in(str(place)) == secret
    assert mode(place / "secret") == 0o600
    place.chmod(0o755)
    assert directory_secret.secret_in(str(place)) is None


def test_a_proof_is_of_one_role_and_one_talk() -> None:
    secret, asked, own = b"s" * 64, secret_proof.nonce(), secret_proof.nonce()
    said = secret_proof.answer(secret, secret_proof.KEEPER, asked, own)
    assert secret_proof.fits(secret, secret_proof.KEEPER, asked, own, said)
    assert not secret_proof.fits(secret, secret_proof.SERVER, asked, own, said)
    assert not secret_proof.fits(secret, secret_proof.KEEPER, own, asked, said)
    assert not secret_proof.fits(b"t" * 64, secret_proof.KEEPER, asked, own, said)
    line = secret_proof.server_line(secret, asked, own)
    assert secret_proof.client_line(secret, asked, line) is not None
    assert secret_proof.client_line(secret, secret_proof.nonce(), line) is None
    assert secret_proof.client_line(secret, asked, b"{}\n") is None


def test_who_is_at_the_other_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert secret_proof.peer(ours) == (os.getpid(), os.geteuid())
    assert not secret_proof.sandboxed(os.getpid())
    assert secret_proof.sandboxed(2**22 + 1)  # none that we can see


def test_of_a_directory_of_workspaces_only_roots_and_temporaries_are_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_places, "_workspaces", set())
    base = bytes(tmp_path / "w")
    assert not private_places.is_workspace(base + b"/name/root")
    private_places.open_workspaces(str(tmp_path / "w"))
    for ours in (b"", b"/name", b"/name/other", b"/name/root/../../x", b"x/name/root"):
        assert not private_places.is_workspace(base + ours), ours
    for theirs in (b"/name/root", b"/name/tmp", b"/name/root/a/b"):
        assert private_places.is_workspace(base + theirs), theirs


@pytest.mark.skipif(os.geteuid() != 0, reason="a directory is given to another user")
def test_what_another_user_made_before_us_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place that all programs share is then the same for all, whatever their environment."""
    taken, known = tmp_path / "user", tmp_path / "known"
    taken.mkdir()
    known.mkdir()
    os.chown(taken, 65534, 65534)
    monkeypatch.setattr(private_places, "_home_of_user", lambda: str(known))
    found = set()
    for name in ("one", "two"):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / name))
        found.add(private_places.user_directory())
    assert found == {str(known / ".local/state/handrail")}
    assert not list(taken.iterdir())
    # What one program was given is covered by the sandboxes of the other.
    given = tmp_path / "given"
    given.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "one"))
    assert not private_places.remember(str(given))
    monkeypatch.setattr(private_places, "_added", {})
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "two"))
    assert os.fsencode(given) in private_places.listed()
    # Nothing is left: it is refused, and said what is in the way.
    monkeypatch.setattr(private_places, "_home_of_user", lambda: None)
    for name in ("one", "two", "home"):
        (tmp_path / name).mkdir(exist_ok=True)
        os.chown(tmp_path / name, 65534, 65534)
    with pytest.raises(NotOurs, match=r"set XDG_STATE_HOME.*user: it belongs to user 65534"):
        private_places.user_directory()
