"""Plans whose trees are watched: what is noticed, and where a walk has to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from handrail import own_code
from handrail.filesystem import syscalls
from handrail.sandbox.plan import directory_cache, directory_watch
from handrail.sandbox.plan import plan as plan_module
from handrail.sandbox.plan.directory import Reader
from handrail.sandbox.plan.globs import NameFilter, by_start
from handrail.sandbox.plan.placeholder_lease import Placeholder
from handrail.sandbox.plan.placeholders import PlaceholderRegistry
from handrail.sandbox.plan.plan import Plan, Planner
from handrail.sandbox.profile import Access, Glob, Profile, Rule


@pytest.fixture
def ws() -> Iterator[Path]:
    """More directories than are looked at without a watch, and one repository."""
    place = Path(tempfile.mkdtemp(prefix="handrail-ws-", dir="/var/tmp")).resolve()
    for name in (".git/x", ".agents/x", ".codex/x", "sub/repo/.git/x", "sub/other/deep"):
        place.joinpath(name).mkdir(parents=True)
    for number in range(directory_cache.FEW):
        place.joinpath(f"many{number}").mkdir()
    place.joinpath("sub/other/deep/a.secret").touch()
    place.joinpath("sub/target").mkdir()
    place.joinpath("sub/link.secret").symlink_to("target")
    yield place
    shutil.rmtree(place)


@pytest.fixture
def planner() -> Iterator[Planner]:
    registry = PlaceholderRegistry()
    made = Planner(registry)
    yield made
    made.close()
    registry.close()


def profile(ws: Path, code: tuple[own_code.Place, ...] = ()) -> Profile:
    root = os.fsencode(ws)
    rules = (Rule(b"/", Access.READ), Rule(root, Access.WRITE))
    globs = (Glob(root, "**/*.secret"), Glob(root, "keys/*"))
    return Profile(rules, globs=globs, own_code=code)


def watched(planner: Planner, wanted: Profile) -> Plan:
    """A plan that is checked by its watch from now on."""
    plan = planner.plan(wanted)
    for _ in range(3):  # the second look watches, the third knows what it need not ask
        assert planner.plan(wanted) is plan
    assert not planner.takes_long(wanted)
    assert plan._unwatched is not None
    assert plan._unwatched[1].keys() < plan.facts.keys()
    return plan


def forged(ws: Path) -> None:
    """Replace an inner directory by a link to one that looks the same."""
    (ws / "sub/repo").rename(ws / "many1/repo")
    (ws / "sub/repo").symlink_to(ws / "many1/repo")


def replaced(ws: Path) -> None:
    """Another root at the same path."""
    aside = ws.with_name(ws.name + "-aside")
    ws.rename(aside)
    shutil.copytree(aside, ws, symlinks=True)
    shutil.rmtree(aside)


def moved_in(ws: Path) -> None:
    """A tree that was made elsewhere, with a repository deep in it."""
    with tempfile.TemporaryDirectory(dir=ws.parent) as outside:
        Path(outside, "tree/in/.git/x").mkdir(parents=True)
        Path(outside, "tree").rename(ws / "many2/tree")


def grown(ws: Path) -> None:
    """A directory made after the watch, and a repository in it later."""
    (ws / "many3/new/inner").mkdir(parents=True)


def retargeted(ws: Path) -> None:
    (ws / "sub/link.secret").unlink()
    (ws / "sub/link.secret").symlink_to("other")


CHANGES: dict[str, Callable[[Path], object]] = {
    "repository": lambda ws: (ws / "many0/.git/x").mkdir(parents=True),
    "repository moved in": moved_in,
    "pointer": lambda ws: (ws / "many0/.git").write_text("gitdir: ../sub/other\n"),
    "repository gone": lambda ws: shutil.rmtree(ws / "sub/repo/.git"),
    "repository renamed": lambda ws: (ws / "sub/repo").rename(ws / "sub/moved"),
    "directory around it renamed": lambda ws: (ws / "sub").rename(ws / "many2/sub"),
    "protected name": lambda ws: (ws / "sub/repo/.agents").mkdir(),
    "protected name, a file": lambda ws: (ws / "sub/repo/.codex").touch(),
    "link planted": forged,
    "root replaced": replaced,
    "deny glob": lambda ws: (ws / "many5/b.secret").touch(),
    "deny glob by rename": lambda ws: (ws / "sub/other/deep").rename(ws / "keys"),
    "deny glob on a directory": lambda ws: (ws / "many6/c.secret/x").mkdir(parents=True),
    "match gone": lambda ws: (ws / "sub/other/deep/a.secret").unlink(),
    "match leads elsewhere": retargeted,
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_is_noticed(planner: Planner, ws: Path, change: Callable[[Path], object]) -> None:
    wanted = profile(ws)
    plan = watched(planner, wanted)
    change(ws)
    other = planner.plan(wanted)
    assert other is not plan
    with_walk = Planner(planner.registry)
    expected = with_walk.plan(wanted)
    assert other.rules == expected.rules
    assert other.matches == expected.matches
    assert other.repositories == expected.repositories
    with_walk.close()


@pytest.mark.parametrize("inside", [True, False])
def test_where_a_dangling_match_leads_is_noticed(planner: Planner, ws: Path, inside: bool) -> None:
    target = ws / "sub/later" if inside else ws.with_name(ws.name + "-later")
    (ws / "dangling.secret").symlink_to(target)
    wanted = profile(ws)
    watched(planner, wanted)
    target.touch()
    try:
        assert planner.plan(wanted).rules[os.fsencode(target)] is Access.DENY
    finally:
        target.unlink()


def test_another_common_directory_is_noticed(planner: Planner, ws: Path) -> None:
    for store in ("store", "one", "two"):
        subprocess.run(["git", "init", "-q", "--bare", ws / store], check=True)
    shutil.rmtree(ws / ".git")
    (ws / ".git").write_text("gitdir: store\n")
    for common in ("one", "two"):
        planner.plan(profile(ws))
        (ws / "store/commondir").write_text(f"../{common}\n")
        assert planner.plan(profile(ws)).rules[os.fsencode(ws / common)] is Access.READ


def test_a_repository_in_a_directory_that_came_later(planner: Planner, ws: Path) -> None:
    wanted = profile(ws)
    watched(planner, wanted)
    grown(ws)
    plan = watched(planner, wanted)
    (ws / "many3/new/inner/.git").mkdir()
    assert planner.plan(wanted) is not plan
    assert os.fsencode(ws / "many3/new/inner/.git") in planner.plan(wanted).rules


@pytest.fixture
def small(ws: Path) -> Path:
    """A workspace of a few directories."""
    for place in ws.glob("many*"):
        place.rmdir()
    return ws


def looked_at_often(planner: Planner, wanted: Profile) -> Plan:
    plan = planner.plan(wanted)
    for _ in range(directory_cache.OFTEN + 3):
        assert planner.plan(wanted) is plan
    return plan


def test_a_few_directories_are_watched_when_they_are_looked_at_often(
    planner: Planner, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = profile(small)
    plan = looked_at_often(planner, wanted)
    with monkeypatch.context() as patch:
        patch.setattr(Reader, "read", None)  # a call would fail
        (small / "sub/other/file.txt").touch()
        assert planner.plan(wanted) is plan
    (small / "sub/other/.git").mkdir()
    assert os.fsencode(small / "sub/other/.git") in planner.plan(wanted).rules


def test_a_few_directories_are_walked_when_queues_are_scarce(
    planner: Planner, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_watch, "MOST_SMALL", directory_watch.queues())
    before = directory_watch.queues()
    looked_at_often(planner, profile(small))
    assert directory_watch.queues() == before
    (small / "sub/other/.git").mkdir()
    assert os.fsencode(small / "sub/other/.git") in planner.plan(profile(small)).rules


def test_other_files_are_not_examined(
    planner: Planner, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = profile(ws)
    plan = watched(planner, wanted)
    monkeypatch.setattr(Reader, "read", None)  # a call would fail
    for number in range(100):
        (ws / f"many1/file{number}.txt").touch()
    (ws / "sub/repo/.git/x/object").touch()
    assert planner.plan(wanted) is plan
    assert not planner.takes_long(wanted)


def test_another_directory_lets_no_fact_be_asked_again(
    planner: Planner, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = profile(ws)
    plan = watched(planner, wanted)
    assert plan._unwatched is not None
    rest = [path for path, _ in plan._unwatched[1]]
    asked: list[bytes] = []
    look = plan_module.look
    monkeypatch.setattr(
        plan_module, "look", lambda path, follow: asked.append(path) or look(path, follow)
    )
    (ws / "many1/new/inner").mkdir(parents=True)
    (ws / "many2").rmdir()
    assert planner.plan(wanted) is plan
    assert asked == rest


def test_many_events_are_taken_by_a_thread(planner: Planner, ws: Path) -> None:
    wanted = profile(ws)
    watched(planner, wanted)
    for number in range(directory_cache.MUCH // 16):
        (ws / f"many1/{number}").touch()
    assert planner.takes_long(wanted)
    planner.discard(planner.prepare(wanted, careful=False))
    assert not planner.takes_long(wanted)


def test_covers_of_running_sandboxes_are_no_change(planner: Planner, ws: Path) -> None:
    wanted = profile(ws)
    plan = watched(planner, wanted)
    lease = planner.registry.acquire(plan.masks)
    assert (ws / "sub/repo/.agents").is_dir()
    assert planner.plan(wanted) is plan
    lease.release()
    assert not (ws / "sub/repo/.agents").exists()
    assert planner.plan(wanted) is plan


def test_a_file_that_covers_a_missing_name_lets_no_directory_be_read_again(
    planner: Planner, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = os.fsencode(ws / "missing")
    code = (missing + b"/code", missing + b"/code", own_code.CODE)
    wanted = profile(ws, (code,))
    plan = watched(planner, wanted)
    assert Placeholder(missing, directory=False) in plan.masks
    monkeypatch.setattr(Reader, "read", None)  # a call would fail
    lease = planner.registry.acquire(plan.masks)
    assert (ws / "missing").is_file()
    assert planner.plan(wanted) is plan
    lease.release()
    assert planner.plan(wanted) is plan
    (ws / "missing").touch()
    assert planner.plan(wanted) is not plan


@pytest.mark.parametrize("how", ["overflow", "no watches", "no inotify", "other file system"])
def test_where_it_cannot_watch_it_walks(
    planner: Planner, ws: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    wanted = profile(ws)
    if how == "overflow":
        watched(planner, wanted)
        monkeypatch.setattr(
            syscalls, "inotify_events", lambda data: [(-1, syscalls.IN_Q_OVERFLOW, b"")]
        )
        (ws / "many0/unseen").mkdir()
    elif how == "no watches":
        monkeypatch.setattr(directory_watch, "_most", lambda: 5)
    elif how == "no inotify":
        monkeypatch.setattr(syscalls, "inotify_init", refuse)
    else:
        monkeypatch.setattr(directory_watch, "LOCAL", frozenset((b"nfs",)))
    plan = planner.plan(wanted)
    for _ in range(3):
        plan = planner.plan(wanted)
    (ws / "many4/.git").mkdir()
    assert planner.plan(wanted) is not plan
    plan = planner.plan(wanted)
    (ws / "many7/d.secret").touch()
    assert planner.plan(wanted) is not plan


def refuse() -> int:
    raise OSError(24, "no descriptors")


def test_nothing_is_left_open(ws: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    used, queues = directory_watch._in_use, directory_watch.queues()
    registry = PlaceholderRegistry()
    planner = Planner(registry)
    watched(planner, profile(ws))
    assert directory_watch._in_use > used
    planner.close()
    registry.close()
    assert directory_watch._in_use == used
    assert directory_watch.queues() == queues
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("pattern", "name", "may"),
    [
        ("**/*.secret", b"a.secret", True),
        ("**/*.secret", b"a.py", False),
        ("**/.env*", b".envrc", True),
        ("**/a?c*def", b"abcdef", True),
        ("**/a?c*def", b"abc", False),
        ("**/*.{pem,key}", b"a.key", True),
        ("**/x[ab]", b"xb", True),
        ("secrets/**", b"anything", True),
        ("**/a\\*b", b"a*b", True),
    ],
)
def test_names_that_cannot_match(pattern: str, name: bytes, may: bool) -> None:
    assert NameFilter((pattern,))(name) is may
    assert NameFilter((pattern,))(b"other/" + name) is may


def test_patterns_of_one_start() -> None:
    globs = (Glob(b"/w", "**/a"), Glob(b"/w", "**/b"), Glob(b"/w", "sub/*"), Glob(b"/w/sub", "c*"))
    assert by_start(globs) == {b"/w": ("**/a", "**/b"), b"/w/sub": ("*", "c*")}
