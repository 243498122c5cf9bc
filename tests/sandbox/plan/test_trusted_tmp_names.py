"""What programs of the host trust in a shared /tmp."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from handrail.sandbox.plan import mount_aliases, trusted_tmp_names
from handrail.sandbox.plan.trusted_tmp_names import SocketIndex
from handrail.sandbox.profile import Access, Profile, Rule, known_names
from tests.support.sandboxes import holding


def bound(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(os.fspath(path))
    sock.listen(1)
    return sock


def test_what_is_found(tmp_path: Path) -> None:
    for name in ("ssh-abc", "plain", "holds", "deep/er", "stale"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "tmux-link").symlink_to("/etc")
    index = SocketIndex(os.fsencode(tmp_path))
    assert index.refresh() == (os.fsencode(tmp_path / "ssh-abc"),)
    bound(tmp_path / "stale" / "s").close()  # its inode stays
    with bound(tmp_path / "holds" / "s"), bound(tmp_path / "top"), bound(tmp_path / "deep/er/s"):
        found = {os.fsdecode(path) for path in index.refresh()}
    names = ("ssh-abc", "holds", "top", "deep/er", "stale")
    assert found == {str(tmp_path / name) for name in names}


@pytest.mark.parametrize("most", [512, 2])
def test_one_that_watches_finds_what_a_listing_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(trusted_tmp_names, "MOST_DIRECTORIES", most)
    table = mount_aliases.read()
    for name in ("ssh-abc", "plain", "holds", "third"):
        (tmp_path / name).mkdir()
    index = SocketIndex(os.fsencode(tmp_path))
    index.refresh(table)
    index.refresh(table)
    steps: list[Callable[[], object]] = [
        (tmp_path / "tmux-0").mkdir,
        lambda: (tmp_path / "ssh-abc").rename(tmp_path / "other"),
        lambda: bound(tmp_path / "holds" / "s").close(),  # its inode stays
        lambda: bound(tmp_path / "top").close(),
        lambda: (tmp_path / "holds").rename(tmp_path / "plain" / "inner"),
        lambda: (tmp_path / "plain" / "inner").rename(tmp_path / "back"),
        (tmp_path / "back" / "s").unlink,
        (tmp_path / "third").rmdir,
        (tmp_path / "tmux-0").rmdir,
    ]
    assert index._watch is not None
    for step in steps:
        step()
        expected = SocketIndex(os.fsencode(tmp_path))
        if most > len(steps):
            assert index.refresh(table) == expected.refresh()
        else:  # which ones are read is the order of the directory
            assert set(index.refresh(table)) >= {*expected._trusted, *expected._sockets}
    index.close()


def test_they_can_neither_be_changed_nor_moved(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path)
    (tmp_path / "holds").mkdir()
    rules = (Rule(b"/", Access.READ), Rule(root, Access.WRITE))
    profile = Profile(rules=rules, shared=(root,))
    script = f"cd {tmp_path}; mv holds h; rm -f holds/s top; mv top t; touch holds/x; echo x > free"
    with bound(tmp_path / "holds" / "s"), bound(tmp_path / "top"), holding() as held:
        held.run(profile, ["/bin/sh", "-c", script])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["free", "holds", "top"]
    assert [path.name for path in (tmp_path / "holds").iterdir()] == ["s"]


def test_one_that_comes_to_hold_a_socket_is_covered_by_the_next_plan(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path)
    (tmp_path / "later").mkdir()
    rules = (Rule(b"/", Access.READ), Rule(root, Access.WRITE))
    profile = Profile(rules=rules, shared=(root,))
    with holding() as held:
        assert held.run(profile, ["/bin/touch", f"{tmp_path}/later/a"])[0] == 0
        with bound(tmp_path / "later" / "s"):
            assert held.run(profile, ["/bin/touch", f"{tmp_path}/later/b"])[0] != 0


def test_names_that_are_known_are_covered_before_they_are_there() -> None:
    rules = (Rule(b"/", Access.READ), Rule(b"/tmp", Access.WRITE))
    profile = Profile(rules=rules, shared=(b"/tmp",))
    names = [b"/tmp/" + name for name in known_names(os.geteuid())]
    missing = [path for path in names if not os.path.lexists(path)]
    assert b"/tmp/.X11-unix" in names
    with holding() as held:
        plan = held.planner.plan(profile)
        masked = {mask.path for mask in plan.masks}
        assert [path for path in missing if path not in masked] == []
        for path in names:
            assert held.run(profile, ["/bin/touch", os.fsdecode(path) + "/s"])[0] != 0
        before = held.wrap(profile, ["/bin/true"])
        masked = {mask.path for mask in held.planner.plan(profile).masks}
        before.abandon()
        # A cover of the first is no directory of the host's to the second: it goes with the first.
        assert [path for path in missing if path not in masked] == []
    assert not [path for path in missing if os.path.lexists(path)]


def test_the_directories_of_other_sandboxes_in_a_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ws, place = tmp_path / "ws", tmp_path / "ws" / "tmp"
    (place / "handrail-tmp-01234567" / "tmp").mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(place))
    rules = (Rule(b"/", Access.READ), Rule(os.fsencode(ws), Access.WRITE))
    profile = Profile(rules=rules, shared=(b"/tmp",))
    script = (
        f"cd {place}; touch handrail-tmp-*/tmp/x; mv handrail-tmp-* moved; mv ../tmp ../moved;"
        " mkdir dbus-1; touch dbus-1/x fine"
    )
    with holding() as held:
        held.run(profile, ["/bin/sh", "-c", script])
    left = sorted(str(path.relative_to(ws)) for path in ws.rglob("*"))
    own = ["tmp/handrail-tmp-01234567", "tmp/handrail-tmp-01234567/tmp"]
    assert left == ["tmp", "tmp/dbus-1", "tmp/dbus-1/x", "tmp/fine", *own]
