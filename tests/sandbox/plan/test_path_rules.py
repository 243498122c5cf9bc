"""Plans on real trees: what is refused, what is covered, what is left behind."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.sandbox.bwrap import premount
from handrail.sandbox.bwrap.arguments import Bind
from handrail.sandbox.plan import git_index, mounts
from handrail.sandbox.plan.safe_open import Refused
from handrail.sandbox.profile import (
    Access,
    BadIntent,
    Entry,
    Intent,
    Machine,
    Profile,
    resolve,
    within,
)
from tests.support.eventually import eventually
from tests.support.processes import descriptors
from tests.support.sandboxes import Held, spawn


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
    wrapped.running.abandon()
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


@pytest.mark.parametrize("name", ["store ", " store", "st\nore", "store\t"])
def test_a_pointer_leads_where_git_reads_it(held: Held, ws: Path, name: str) -> None:
    store = ws / name
    subprocess.run(["git", "init", "-q", "--separate-git-dir", store, ws], check=True)
    code, said = held.run(writable(ws), ["/bin/touch", os.fsencode(store / "config")])
    assert code == 1
    assert b"Read-only" in said


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


@pytest.mark.parametrize("access", [Access.READ, Access.WRITE])
def test_devices_and_processes_are_always_its_own(held: Held, ws: Path, access: Access) -> None:
    profile = writable(ws, entry(access, Path("/dev")), entry(access, Path("/proc")))
    script = "echo x > /dev/null && ls /dev/shm; ls -d /proc/[0-9]* | wc -l; cat /proc/self/comm"
    with tempfile.NamedTemporaryFile(dir="/dev/shm"):
        code, said = sh(held, profile, ws, script)
    count, name = said.split()
    assert (code, name, int(count) < 9) == (0, "cat", True), said
    assert not {".git", ".agents", ".codex"} & set(os.listdir("/dev"))


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


def test_globs_hide_names_of_every_alphabet(held: Held, ws: Path) -> None:
    (ws / "é.env").write_text("secret")
    (ws / "top.pem").write_text("secret")
    profile = writable(ws, *(Entry(Access.DENY, glob=g) for g in ("?.env", "{**/x,**/*.pem}")))
    code, said = sh(held, profile, ws, "cat é.env; cat top.pem")
    assert code == 1
    assert "secret" not in said


def test_a_glob_that_goes_back_is_refused(held: Held, ws: Path) -> None:
    with pytest.raises(BadIntent, match=r"has `\.\.` behind a wildcard"):
        held.planner.plan(writable(ws, Entry(Access.DENY, glob="*/../x")))


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
    # What this process was started with is not ours, and not every shell closes it.
    given = sum(os.get_inheritable(fd) for fd in descriptors() if fd > 2)
    code, said = sh(held, writable(ws), ws, "ls /proc/self/fd | wc -l")
    assert (code, int(said)) == (0, 4 + given)  # and the one that lists


def test_plans_let_go_of_their_descriptors(held: Held, ws: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        sh(held, writable(ws), ws, "true")
    held.upkeep.close(0)  # the filters stay for the next one
    held.planner.close()
    # And one for /tmp, which is watched for the whole process from the second start on.
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= before + 1, "they are closed")


def test_more_directories_than_can_be_looked_at_are_refused(
    held: Held, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = writable(ws)
    for name in "abcde":
        (ws / name).mkdir()
    monkeypatch.setattr(git_index, "MOST_DIRECTORIES", 6)
    held.planner.plan(profile)
    (ws / "a" / "f").mkdir()
    with pytest.raises(Refused, match="too many to look"):
        held.planner.plan(profile)


def repositories_in(ws: Path, count: int) -> None:
    for number in range(count):
        (ws / f"r{number}" / ".git").mkdir(parents=True)


ATTEMPTS = "echo x > r7/.git/x; mv r8 r9x; echo y > r7/f && mv r7/f r7/g && ls -d r*/.git | wc -l"


@pytest.mark.parametrize("many", [False, True])
def test_every_place_is_mounted_by_descriptor(
    held: Held, ws: Path, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    monkeypatch.setattr(mounts, "MANY", 20 if many else 100)
    repositories_in(ws, 30)
    code, said = sh(held, writable(ws), ws, ATTEMPTS)
    assert (code, said.count("Read-only"), said.count("busy")) == (0, 1, 1), said
    plan = held.planner.plan(writable(ws))
    assert bool(plan.beforehand) is many
    binds = [step for step in plan.steps if isinstance(step, Bind)]
    assert [b.path for b in binds if not b.number and within(b.path, os.fsencode(ws))] == []


def test_hundreds_of_repositories_are_protected(held: Held, ws: Path) -> None:
    repositories_in(ws, 600)
    code, said = sh(held, writable(ws), ws, ATTEMPTS)
    assert (code, said.splitlines()[-1]) == (0, "600"), said
    assert (said.count("Read-only"), said.count("busy")) == (1, 1), said
    assert len(held.planner.plan(writable(ws)).passed) < 20


def test_hundreds_of_files_are_hidden(held: Held, ws: Path) -> None:
    for number in range(600):
        (ws / f"d{number % 7}").mkdir(exist_ok=True)
        (ws / f"d{number % 7}" / f"{number}.env").write_text("TOPSECRET")
    (ws / "closed.env").mkdir()
    (ws / "closed.env" / "x").write_text("TOPSECRET")
    profile = writable(ws, Entry(Access.DENY, glob="**/*.env"))
    script = "cat d*/*.env closed.env/x; rm -f d1/1.env; mv d1 d1x; echo ok > d1/f"
    code, said = sh(held, profile, ws, script)
    assert code == 0, said
    assert "TOPSECRET" not in said
    assert said.count("Permission denied") == 601, said
    assert said.count("busy") == 2, said


def test_many_places_leave_what_is_open_inside_them_open(
    held: Held, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "MANY", 2)
    for place in ("r/w", "d/w", "r/d", "w/.git", "w/x/.git"):
        (ws / place).mkdir(parents=True)
    (ws / "r" / "d" / "k").write_text("TOPSECRET")
    (ws / "d" / "k").write_text("TOPSECRET")
    profile = writable(
        ws,
        entry(Access.READ, ws / "r"),
        entry(Access.WRITE, ws / "r" / "w"),
        entry(Access.DENY, ws / "r" / "d"),
        entry(Access.DENY, ws / "d"),
        entry(Access.WRITE, ws / "d" / "w"),
    )
    script = "echo x > r/w/f && echo x > d/w/f && echo x > w/x/f; echo x > r/f; echo x > w/x/.git/f"
    _, said = sh(held, profile, ws, f"{script}; cat r/d/k d/k; mv w v")
    assert (said.count("Read-only"), said.count("cat: "), said.count("busy")) == (2, 2, 1), said
    assert held.planner.plan(profile).beforehand
    for place in ("r/w/f", "d/w/f", "w/x/f"):
        assert (ws / place).exists()


def test_an_exchanged_place_is_noticed_before_anything_runs(
    held: Held, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "MANY", 2)
    repositories_in(ws, 4)
    wrapped = held.wrap(writable(ws), ["/bin/touch", os.fspath(ws / "ran")])
    (ws / "r2").rename(ws / "elsewhere")
    (ws / "r2").symlink_to("elsewhere")
    with tempfile.TemporaryFile() as output:
        pid = spawn(wrapped, output.fileno())
        wrapped.running.sent()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
        assert not wrapped.running.stood()
        wrapped.running.wait()
        assert b"r2 cannot be protected" in os.pread(output.fileno(), 4096, 0)
    assert not (ws / "ran").exists()


def test_what_is_mounted_beforehand_ends_with_its_parent(ws: Path) -> None:
    script = """
import os, sys
words = [os.fsencode(word) for word in sys.argv[1:]]
print(os.posix_spawn(words[0], words, {}), flush=True)
sys.stdin.read()
"""
    request = os.memfd_create("request", 0)
    argv = [sys.executable, "-c", script, *map(os.fsdecode, premount.words(request))]
    parent = subprocess.Popen(
        [*argv, "/bin/sh", "-c", 'echo "$$" > mark; exec sleep 60'],
        cwd=ws,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[request],
    )
    os.close(request)
    assert parent.stdin is not None
    assert parent.stdout is not None
    with parent.stdin, parent.stdout:
        pidfd = os.pidfd_open(int(parent.stdout.readline()))
        eventually((ws / "mark").exists)
        parent.kill()
        parent.wait()
    assert select.select([pidfd], [], [], 20)[0]
    os.close(pidfd)


def test_without_mounts_beforehand_too_many_places_are_refused(
    held: Held, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(premount, "_possible", False)
    repositories_in(ws, mounts.MOST_DESCRIPTORS // 2 + 1)
    with pytest.raises(Refused, match="too many places"):
        held.planner.plan(writable(ws))


# --- repositories in a directory that others use too -------------------------------------------


def with_shared(ws: Path, shared: Path) -> Profile:
    intent = Intent(
        entries=(
            Entry(Access.READ, special="root"),
            Entry(Access.WRITE, special="project_roots"),
            Entry(Access.WRITE, special="tmpdir"),
        ),
        workspace_roots=(os.fsencode(ws),),
    )
    return resolve(intent, os.fsencode(ws), Machine(tmpdir=os.fsencode(shared)))


@pytest.fixture
def shared() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="handrail-shared-", dir="/var/tmp"))
    yield place
    shutil.rmtree(place)


def test_a_repository_in_a_shared_directory_is_protected(
    held: Held, ws: Path, shared: Path
) -> None:
    profile = with_shared(ws, shared)
    repository = shared / "a" / "b"
    subprocess.run(["git", "init", "-q", repository], check=True)
    script = f"cd {shared}; echo x > a/b/.git/config; mv a z; mv a/b a/c; echo x > a/b/f; mkdir n"
    code, said = sh(held, profile, ws, script)
    assert (code, said.count("Read-only"), said.count("busy")) == (0, 1, 2), said
    assert sorted(path.name for path in shared.iterdir()) == ["a", "n"]
    shutil.rmtree(shared / "a")
    assert sh(held, profile, ws, f"mkdir -p {shared}/a/b/.git")[0] == 0


def test_nothing_is_made_up_or_refused_in_a_shared_directory(
    held: Held, ws: Path, shared: Path
) -> None:
    for name in ("link", "pointer", "closed", "empty"):
        (shared / name).mkdir()
    (shared / "link" / ".git").symlink_to("/nonexistent")
    (shared / "pointer" / ".git").write_text("gitdir: ../missing\n")
    (shared / "empty" / ".git").mkdir()
    (shared / "closed").chmod(0o000)
    before = sorted(shared.rglob("*"))
    profile = with_shared(ws, shared)
    code, said = sh(held, profile, ws, f"ls -A {shared}; echo x > {shared}/pointer/.git")
    assert said.split() == ["closed", "empty", "link", "pointer"]
    assert code == 0  # the pointer leads nowhere, and a command could make what it names
    assert sorted(shared.rglob("*")) == before
    masks = held.planner.plan(profile).masks
    assert [mask for mask in masks if within(mask.path, os.fsencode(shared))] == []


def test_a_sandbox_with_a_root_in_a_shared_directory_does_not_change_the_plan(
    held: Held, shared: Path
) -> None:
    ws = shared / "ws"
    ws.mkdir()
    profile = with_shared(ws, shared)
    first = held.planner.plan(profile)
    assert sh(held, profile, ws, "mkdir .git/x || true")[0] == 0
    wrapped = held.wrap(profile, ["/bin/true"])
    assert (ws / ".git").is_dir()
    assert held.planner.plan(profile) is first
    wrapped.running.abandon()
    assert held.planner.plan(profile) is first


def test_a_full_shared_directory_is_looked_at_in_part(
    held: Held, ws: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_index, "MOST_SHARED", 4)
    for number in range(9):
        (shared / f"r{number}" / "deep" / ".git" / "x").mkdir(parents=True)
    assert sh(held, with_shared(ws, shared), ws, f"echo x > {shared}/f") == (0, "")


def test_every_directory_of_a_full_shared_directory_is_looked_at_in_the_end(
    held: Held, ws: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_index, "MOST_SHARED", 40)
    for number in range(100):
        (shared / f"p{number}").mkdir()
    hooks = [shared / f"r{number}" / ".git" / "hooks" for number in range(5)]
    for path in hooks:
        path.mkdir(parents=True)
    profile = with_shared(ws, shared)
    for _ in range(6):  # read, then watched in parts
        assert sh(held, profile, ws, "true") == (0, "")
    for path in hooks:
        assert sh(held, profile, ws, f"echo x > {path}/pre-commit")[0] != 0
