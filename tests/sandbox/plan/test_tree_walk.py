"""Searches of watched trees that go on from what was found before."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from handrail.sandbox.plan import directory, git_index, globs, tree_walk
from handrail.sandbox.plan.directory_cache import DirectoryCache
from handrail.sandbox.plan.git_index import RepositoryIndex
from handrail.sandbox.plan.globs import GlobIndex, Match, NameFilter
from handrail.sandbox.plan.mount_aliases import MountTable

PATTERNS = ("**/*.secret", "keys/*", "a/**/x")


@pytest.fixture
def root() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="handrail-walk-", dir="/var/tmp")).resolve()
    for number in range(directory.FEW + 1):
        place.joinpath(f"many{number}").mkdir()
    yield place
    for path, names, _ in os.walk(place):
        for name in names:
            os.chmod(os.path.join(path, name), 0o700)  # else what is closed cannot be removed
    shutil.rmtree(place)


class Search:
    """The searches of one tree."""

    def __init__(self, root: Path, *, shared: bool = False) -> None:
        only_of = os.geteuid() if shared else None
        self.masks: set[bytes] = set()
        self.directories = DirectoryCache(
            os.fsencode(root), NameFilter(PATTERNS), lambda path, _: path in self.masks, only_of
        )
        self.repositories = RepositoryIndex(self.directories, shared=shared)
        self.globs = GlobIndex(self.directories, PATTERNS, None)
        self._table = MountTable()
        self._look = 0

    def look(self) -> tuple[tuple[bytes, ...], tuple[Match, ...]]:
        self._look += 1
        self.directories.refresh(self._look, self._table.text())
        return self.repositories.refresh(), self.globs.refresh()

    def close(self) -> None:
        self.directories.close()
        self._table.close()


@pytest.fixture
def search(root: Path) -> Iterator[Callable[..., Search]]:
    made: list[Search] = []

    def make(*, shared: bool = False) -> Search:
        made.append(Search(root, shared=shared))
        return made[-1]

    yield make
    for one in made:
        one.close()


def change(root: Path, chance: random.Random) -> None:
    """Do something to the tree."""
    directories = [Path(path) for path, _, _ in os.walk(root)]
    place = chance.choice(directories)
    name = chance.choice(("a", "b", "x", "keys", "k.secret", ".git", "node_modules", "c", "d"))
    other = chance.choice(directories)
    kind = chance.randrange(9)
    try:
        if kind <= 2:
            place.joinpath(name).mkdir()
        elif kind == 3:
            place.joinpath(name).touch()
        elif kind == 4:
            place.joinpath(name, "deep", chance.choice((".git", "y", "z.secret")), "w").mkdir(
                parents=True
            )
        elif kind == 5 and place != root:
            place.rename(other / name)
        elif kind == 6 and place != root and not place.name.startswith("many"):
            shutil.rmtree(place)
        elif kind == 7:
            place.joinpath(name).unlink()
        elif kind == 8 and place != root:
            place.chmod(chance.choice((0o700, 0o300, 0o755)))
    except OSError:
        pass


def is_empty(path: bytes) -> bool:
    return os.path.isdir(path) and os.access(path, os.R_OK) and not os.listdir(path)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shared", [False, True])
def test_what_is_found_is_what_a_new_search_finds(
    root: Path, search: Callable[..., Search], seed: int, shared: bool
) -> None:
    chance = random.Random(seed)
    again = search(shared=shared)
    for _ in range(2):
        again.look()
    assert again.directories.watched
    for _ in range(30):
        for _ in range(chance.choice((1, 1, 2, 5))):
            change(root, chance)
        new = search(shared=shared)
        (repositories, matches), expected = again.look(), new.look()
        assert matches == expected[1]
        if shared:  # where one that was emptied counts until another change
            repositories = tuple(path for path in repositories if not is_empty(path))
        assert repositories == expected[0]
        new.close()
    assert again.directories.watched


def test_nothing_else_is_visited(
    root: Path, search: Callable[..., Search], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = search()
    for _ in range(3):
        one.look()
    visited: list[bytes] = []
    visit = RepositoryIndex.visit
    monkeypatch.setattr(
        RepositoryIndex,
        "visit",
        lambda self, path, *rest: visited.append(path) or visit(self, path, *rest),
    )
    root.joinpath("many1/new/.git/x").mkdir(parents=True)
    repositories, _ = one.look()
    assert repositories == (os.fsencode(root / "many1/new/.git"),)
    assert set(visited) <= {os.fsencode(root / "many1"), os.fsencode(root / "many1/new")}


def test_very_much_at_once(root: Path, search: Callable[..., Search]) -> None:
    one = search()
    for _ in range(3):
        one.look()
    for number in range(tree_walk._MOST_CHANGES * 5):
        root.joinpath(f"many1/n{number}").mkdir()
    root.joinpath("many1/n7/.git").touch()
    assert one.look()[0] == (os.fsencode(root / "many1/n7/.git"),)


def test_a_full_shared_directory_goes_on_where_it_stopped(
    root: Path, search: Callable[..., Search], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_index, "MOST_SHARED", 5)
    for number in range(20):
        root.joinpath(f"r{number}/.git/x").mkdir(parents=True)
    one = search(shared=True)
    for _ in range(20):
        found, _ = one.look()
    assert found == tuple(sorted(os.fsencode(root / f"r{number}/.git") for number in range(20)))
    assert one.repositories.known() is not None


def test_the_limits_hold_for_what_comes_later(
    root: Path, search: Callable[..., Search], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = search()
    for _ in range(3):
        one.look()
    monkeypatch.setattr(globs, "MOST_MATCHES", 3)
    for number in range(3):
        root.joinpath(f"many{number}/a.secret").touch()
    one.look()
    root.joinpath("many9/a.secret").touch()
    with pytest.raises(globs.Refused, match="secret"):
        one.look()
    assert one.globs.is_large(1000)


def test_a_cover_is_no_change_until_it_is_left_behind(
    root: Path, search: Callable[..., Search]
) -> None:
    one = search(shared=True)
    cover = root / "tmux-1000"
    for _ in range(3):
        one.look()
    one.directories.note([(os.fsencode(cover), True)])
    one.masks.add(os.fsencode(cover))
    mark = one.directories.mark
    for _ in range(2):
        cover.mkdir()
        one.look()
        cover.rmdir()
        one.look()
    assert one.directories.mark == mark
    cover.mkdir()
    one.look()
    assert one.directories.mark == mark
    cover.joinpath(".git/x").mkdir(parents=True)  # by another program, so it stays
    one.masks.clear()
    assert one.look()[0] == (os.fsencode(cover / ".git"),)


def test_an_empty_repository_that_is_filled_later(
    root: Path, search: Callable[..., Search]
) -> None:
    root.joinpath("many1/.git").mkdir()
    one = search(shared=True)
    for _ in range(3):
        assert one.look()[0] == ()
    root.joinpath("many1/.git/HEAD").touch()
    assert one.look()[0] == (os.fsencode(root / "many1/.git"),)


def test_a_directory_that_came_and_went_is_no_change(
    root: Path, search: Callable[..., Search]
) -> None:
    one = search()
    for _ in range(3):
        one.look()
    mark = one.directories.mark
    root.joinpath("many1/short").mkdir()
    root.joinpath("many1/short").rmdir()
    one.look()
    assert one.directories.mark == mark
