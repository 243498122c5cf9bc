"""Plans on real trees: what is refused, what is covered, what is left behind."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.sandbox import layout, repositories
from handrail.sandbox.bubblewrap import Bind
from handrail.sandbox.paths import Refused
from handrail.sandbox.profile import Access, Entry, Intent, Machine, Profile, resolve, within

from .runs import Held, holding

pytestmark = pytest.mark.system


@pytest.fixture
def held() -> Iterator[Held]:
    with holding() as held:
        yield held


@pytest.fixture
def ws() -> Iterator[Path]:
    """A workspace outside of the system's temporary directory."""
    place = Path(tempfile.mkdtemp(prefix="handrail-ws-", dir="/var/tmp"))
    yield place
    shutil.rmtree(place)


def writable(ws: Path, *entries: Entry, network: bool = False) -> Profile:
    intent = Intent(
        entries=(
            Entry(Access.READ, special="root"),
            Entry(Access.WRITE, special="project_roots"),
            *entries,
        ),
        workspace_roots=(os.fsencode(ws),),
        network=network,
    )
    return resolve(intent, os.fsencode(ws), Machine())


def entry(access: Access, path: Path) -> Entry:
    return Entry(access, path=os.fsencode(path))


def sh(held: Held, profile: Profile, ws: Path, script: str) -> tuple[int, str]:
    code, said = held.run(profile, ["/bin/sh", "-c", script], os.fsencode(ws))
    return code, said.decode()


def test_missing_names_are_covered_and_nothing_is_left(held: Held, ws: Path) -> None:
    code, said = sh(held, writable(ws), ws, "mkdir .git/x || mkdir .codex/x || ls -A; echo y > f")
    assert code == 0, said
    assert said.split()[-3:] == [".agents", ".codex", ".git"]
    assert [path.name for path in ws.iterdir()] == ["f"]


def test_a_second_command_has_the_same_plan(held: Held, ws: Path) -> None:
    profile = writable(ws)
    first = held.planner.plan(profile)
    assert sh(held, profile, ws, "mkdir made; echo x > made/f")[0] == 0
    assert held.planner.plan(profile) is first
    wrapped = held.wrap(profile, ["/bin/true"])
    assert (ws / ".git").is_dir()
    assert held.planner.plan(profile) is first  # our own masks are no news
    wrapped.inside.abandon()
    (ws / ".agents").mkdir()
    assert held.planner.plan(profile) is not first


def test_a_repository_that_appears_is_protected_by_the_next_command(held: Held, ws: Path) -> None:
    profile = writable(ws)
    assert sh(held, profile, ws, "true")[0] == 0
    deep = ws / "a" / "b" / "c" / "d"
    deep.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", deep], check=True)
    script = "echo x > a/b/c/d/.git/config; mv a z; mv a/b a/y; echo ok > a/b/c/d/f"
    _, said = sh(held, profile, ws, script)
    assert said.count("Read-only file system") == 1
    assert said.count("busy") == 2, said
    assert (deep / "f").exists()


def test_a_worktree_protects_where_it_points(held: Held, ws: Path) -> None:
    main = ws / "main"
    subprocess.run(["git", "init", "-q", main], check=True)
    (main / ".git").rename(ws / "store")
    (main / ".git").write_text("gitdir: ../store\n")
    (ws / "store" / "commondir").write_text("../common\n")
    (ws / "common").mkdir()
    script = "echo x > store/config; echo x > common/config; echo x > main/.git; echo ok > main/f"
    code, said = sh(held, writable(ws), ws, script)
    assert code == 0
    assert said.count("Read-only file system") == 3, said


@pytest.mark.parametrize("name", [".git", ".codex", ".agents"])
def test_a_protected_name_that_is_a_link_is_refused(held: Held, ws: Path, name: str) -> None:
    (ws / name).symlink_to("elsewhere")
    with pytest.raises(Refused, match="symbolic link"):
        held.planner.plan(writable(ws))


@pytest.mark.parametrize("access", list(Access))
def test_a_rule_behind_a_link_of_the_workspace_is_refused(
    held: Held, ws: Path, access: Access
) -> None:
    (ws / "real" / "x").mkdir(parents=True)
    (ws / "link").symlink_to("real")
    with pytest.raises(Refused, match="symbolic link"):
        held.planner.plan(writable(ws, entry(access, ws / "link" / "x")))


def test_a_denied_link_elsewhere_hides_what_it_leads_to(held: Held, ws: Path) -> None:
    outside = Path(tempfile.mkdtemp(prefix="handrail-out-", dir="/var/tmp"))
    try:
        (outside / "real").mkdir()
        (outside / "real" / "secret").write_text("TOPSECRET")
        (outside / "link").symlink_to("real")
        profile = writable(ws, entry(Access.DENY, outside / "link"))
        _, said = sh(held, profile, ws, f"cat {outside}/link/secret {outside}/real/secret")
        assert "TOPSECRET" not in said
        assert said.count("Permission denied") == 2
    finally:
        shutil.rmtree(outside)


def test_a_missing_path_that_is_denied_cannot_be_made(held: Held, ws: Path) -> None:
    profile = writable(ws, entry(Access.DENY, ws / "a" / "b" / "c"))
    (ws / "a").mkdir()
    code, said = sh(held, profile, ws, "mkdir -p a/b/c && echo x > a/b/c/f; mv a z; ls a")
    assert (code, said.splitlines()[-1]) == (0, "b")
    assert list((ws / "a").iterdir()) == []


def test_a_missing_root_is_ignored(held: Held, ws: Path) -> None:
    profile = writable(ws, entry(Access.WRITE, ws.parent / "handrail-nothing" / "x"))
    assert sh(held, profile, ws, "true") == (0, "")


def test_what_is_open_inside_what_is_closed(held: Held, ws: Path) -> None:
    (ws / "a" / "b").mkdir(parents=True)
    (ws / "a" / "k").write_text("TOPSECRET")
    profile = writable(
        ws,
        entry(Access.DENY, ws / "a"),
        entry(Access.WRITE, ws / "a" / "b"),
        entry(Access.READ, ws / "a" / "k"),
    )
    code, said = sh(held, profile, ws, "echo x > a/b/f && cat a/k && ! ls a && ! echo x > a/k")
    assert code == 0, said
    assert "TOPSECRET" in said
    assert (ws / "a" / "b" / "f").exists()


def test_globs_hide_what_matches_now(held: Held, ws: Path) -> None:
    (ws / "sub").mkdir()
    for name in ("prod.env", ".env", "sub/x.env"):
        (ws / name).write_text("TOPSECRET")
    (ws / "link.env").symlink_to("real")
    (ws / "real").write_text("TOPSECRET")
    profile = writable(ws, Entry(Access.DENY, glob="**/*.env"))
    _, said = sh(held, profile, ws, "cat prod.env .env sub/x.env link.env real; mv sub z")
    assert "TOPSECRET" not in said
    assert "busy" in said


def test_sockets_of_the_host_are_out_of_reach(held: Held, ws: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        place = Path(tempfile.mkdtemp(prefix="handrail-sock-", dir="/var/tmp"))
        try:
            listener.bind(str(place / "s"))
            listener.listen()
            (place / "file").write_text("readable")
            script = (
                "import socket, sys\n"
                "s = socket.socket(socket.AF_UNIX)\n"
                "try: s.connect(sys.argv[1]); print('REACHED')\n"
                "except OSError as error: print(error)\n"
                "a, b = socket.socketpair(); a.send(b'PAIR'); print(b.recv(9))\n"
                "l = socket.socket(socket.AF_UNIX); l.bind('in'); l.listen()\n"
                "c = socket.socket(socket.AF_UNIX); c.connect('in'); print('INSIDE')\n"
            )
            argv = ["/usr/bin/python3", "-c", script, str(place / "s")]
            code, said = held.run(writable(ws), argv, os.fsencode(ws))
            assert code == 0, said
            assert b"REACHED" not in said
            assert b"PAIR" in said
            assert b"INSIDE" in said
            assert sh(held, writable(ws), ws, f"cat {place}/file") == (0, "readable")
            code, said = held.run(writable(ws, network=True), argv, os.fsencode(ws))
            assert b"REACHED" not in said
        finally:
            shutil.rmtree(place)


def test_our_own_state_is_hidden(held: Held, ws: Path) -> None:
    state = ws / "state"
    state.mkdir()
    (state / "x").write_text("TOPSECRET")
    intent = Intent(
        entries=(Entry(Access.READ, special="root"), Entry(Access.WRITE, special="project_roots")),
        workspace_roots=(os.fsencode(ws),),
    )
    profile = resolve(intent, b"/", Machine(private=(os.fsencode(state),)))
    code, said = sh(held, profile, ws, "cat state/x; rm -rf state; mv state z")
    assert code != 0
    assert "TOPSECRET" not in said
    assert (state / "x").exists()


def test_nothing_of_ours_is_open_inside(held: Held, ws: Path) -> None:
    code, said = sh(held, writable(ws), ws, "ls /proc/self/fd | wc -l")
    assert (code, said.strip()) == (0, "4")  # and the one that lists


def test_plans_let_go_of_their_descriptors(held: Held, ws: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        sh(held, writable(ws), ws, "true")
    held.planner.close()
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # the filter stays for the next one


def test_more_directories_than_can_be_looked_at_are_refused(
    held: Held, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = writable(ws)
    for name in "abcde":
        (ws / name).mkdir()
    monkeypatch.setattr(repositories, "MOST_DIRECTORIES", 6)
    held.planner.plan(profile)
    (ws / "a" / "f").mkdir()
    with pytest.raises(Refused, match="too many to look"):
        held.planner.plan(profile)


def test_more_places_than_descriptors_are_refused(held: Held, ws: Path) -> None:
    for number in range(layout.MOST_DESCRIPTORS // 2 + 1):
        (ws / f"r{number}" / ".git").mkdir(parents=True)
    with pytest.raises(Refused, match="too many places"):
        held.planner.plan(writable(ws))


def test_every_place_is_mounted_by_descriptor(held: Held, ws: Path) -> None:
    for number in range(layout.MOST_DESCRIPTORS // 2 - 15):
        (ws / f"r{number}" / ".git").mkdir(parents=True)
    assert sh(held, writable(ws), ws, "echo x > r7/.git/x || echo y > r7/f")[0] == 0
    binds = [step for step in held.planner.plan(writable(ws)).steps if isinstance(step, Bind)]
    assert [b.path for b in binds if not b.number and within(b.path, os.fsencode(ws))] == []


def test_many_sockets_are_covered_where_they_are(held: Held, ws: Path) -> None:
    (ws / "sub").mkdir()
    listeners = []
    try:
        for number in range(layout.MOST_SOCKETS + 1):
            listeners.append(socket.socket(socket.AF_UNIX))
            listeners[-1].bind(str(ws / f"s{number}" if number < 60 else ws / "sub" / f"{number}"))
            listeners[-1].listen()
        plan = held.planner.plan(writable(ws))
        for listener in listeners:
            assert plan.access(os.fsencode(listener.getsockname())) is Access.DENY
    finally:
        for listener in listeners:
            listener.close()
