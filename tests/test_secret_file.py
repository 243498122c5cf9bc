"""The reader of secret files, and who asks it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from handrail.cli import options
from handrail.cli.commands import mcp
from handrail.errors import UsageError
from handrail.secret_file import read_secret


def secret(path: Path, mode: int = 0o600) -> str:
    path.write_text("  secret-text\n")
    path.chmod(mode)
    return str(path)


def test_all_readers_are_the_same_one(tmp_path: Path) -> None:
    good, bad = secret(tmp_path / "good"), secret(tmp_path / "bad", 0o666)
    given = argparse.Namespace(token_file=good)
    assert read_secret(good, "the token in") == b"secret-text"
    assert mcp._token(given) == options.token(given) == "secret-text"
    given.token_file = bad
    for reader in (mcp._token, options.token):
        with pytest.raises(UsageError, match="other users can change it"):
            reader(given)


def test_what_is_no_file_of_ours_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    (tmp_path / "empty").touch(0o600)
    (tmp_path / "large").write_bytes(b"x" * 70_000)
    (tmp_path / "link").symlink_to(secret(tmp_path / "good"))
    assert read_secret(str(tmp_path / "link"), "it") == b"secret-text"
    for name, why in (
        ("fifo", "not a regular file"),
        ("empty", "must not be empty"),
        ("large", "more than 65536 bytes"),
        ("missing", "No such file"),
        (".", "not a regular file"),
    ):
        with pytest.raises(UsageError, match=why):
            read_secret(str(tmp_path / name), "it")


def test_a_name_beside_the_given_one_is_refused(tmp_path: Path) -> None:
    """A sandbox hides the file by the name that was given."""
    path = secret(tmp_path / "token")
    os.link(path, tmp_path / "same")
    with pytest.raises(UsageError, match="hard link"):
        read_secret(path, "it")
    (tmp_path / "same").unlink()
    assert read_secret(path, "it") == b"secret-text"


def test_a_directory_that_every_user_can_write_is_refused(tmp_path: Path) -> None:
    path = secret(tmp_path / "token")
    tmp_path.chmod(0o777)
    with pytest.raises(UsageError, match="put another file there"):
        read_secret(path, "it")
    # As directories of secrets in containers are.
    tmp_path.chmod(0o1777)
    assert read_secret(path, "it") == b"secret-text"
    tmp_path.chmod(0o700)


def test_the_variable_is_for_servers_that_ask_for_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDRAIL_TOKEN", "t")
    given = argparse.Namespace(token_file=None)
    assert options.token(given) == options.token(given, "wss://host") == "t"
    for place in ("unix:/x", "ssh://host", "stdio:x"):
        assert options.token(given, place) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_what_another_user_made_is_refused(tmp_path: Path) -> None:
    foreign = secret(tmp_path / "foreign")
    os.chown(foreign, 65534, 65534)
    with pytest.raises(UsageError, match="belongs to uid 65534"):
        read_secret(foreign, "it")
    (tmp_path / "link").symlink_to(secret(tmp_path / "good"))
    os.chown(tmp_path / "link", 65534, 65534, follow_symlinks=False)
    with pytest.raises(UsageError, match="a link of uid 65534"):
        read_secret(str(tmp_path / "link"), "it")
