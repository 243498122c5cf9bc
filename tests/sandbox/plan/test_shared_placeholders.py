"""Placeholders that several leases hold, of one program and of several; and their parents."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from handrail.sandbox.plan import placeholders
from handrail.sandbox.plan.placeholder_lease import Placeholder, PlaceholderLease, Stale
from handrail.sandbox.plan.placeholders import PlaceholderRegistry
from tests.support.eventually import eventually

#: Holds the names it is given, line by line, until told otherwise.
ANOTHER = """
import os, sys
from handrail.sandbox.plan.placeholder_lease import Placeholder
from handrail.sandbox.plan.placeholders import PlaceholderRegistry
registry = PlaceholderRegistry(sys.argv[1])
leases = {}
for line in sys.stdin:
    what, place, *names = line.split()
    if what == "hold":
        masks = [Placeholder(os.fsencode(f"{place}/{name}"), True) for name in names]
        leases[place] = registry.prepare()
        leases[place].fill(masks)
    elif what == "release":
        leases.pop(place).release()
    print("done", flush=True)
"""


@contextmanager
def another(registry: PlaceholderRegistry) -> Iterator[Callable[..., None]]:
    """Another program of the user; it is killed in the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", ANOTHER, registry.directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def then(what: str, place: Path, names: str = "") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{what} {place} {names}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"

    try:
        yield then
    finally:
        process.kill()
        process.communicate()


def directories(place: Path, *names: str) -> list[Placeholder]:
    return [Placeholder(os.fsencode(place / name), True) for name in names]


def names_in(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("maker_first", [False, True])
def test_the_last_of_several_programs_removes_what_they_share(
    registry: PlaceholderRegistry, place: Path, prepared: bool, maker_first: bool
) -> None:
    """Also when it has swept just before, and looks at no other lease without a reason."""
    registry.sweep()
    mine = directories(place, ".git", ".agents")

    def hold() -> PlaceholderLease:
        if not prepared:
            return registry.acquire(mine)
        lease = registry.prepare()
        lease.fill(mine)
        return lease

    with another(registry) as then, another(registry) as third:
        if maker_first:
            lease = hold()
        then("hold", place, ".git .codex")
        if not maker_first:
            lease = hold()
        third("hold", place, ".agents .codex")
        lease.release()
        assert names_in(place) == [".agents", ".codex", ".git"]
        then("release", place)
        assert names_in(place) == [".agents", ".codex"]
        third("release", place)
        assert names_in(place) == []
        assert os.listdir(registry.directory) == ["lock"]


def test_one_that_shares_goes_before_the_one_that_made(
    registry: PlaceholderRegistry, place: Path
) -> None:
    with another(registry) as then:
        then("hold", place, ".git")
        registry.sweep()
        lease = registry.prepare()
        lease.fill(directories(place, ".git", ".codex"))
        lease.release()
        assert names_in(place) == [".git"]
        then("release", place)
        assert names_in(place) == []
        assert os.listdir(registry.directory) == ["lock"]


def test_leases_of_one_program_know_what_another_shares(
    registry: PlaceholderRegistry, place: Path
) -> None:
    """The second shares with the first without a look at the records."""
    registry.sweep()
    first, second, third = (registry.prepare() for _ in range(3))
    first.fill(directories(place, ".git"))
    with another(registry) as then:
        then("hold", place, ".git")
        second.fill(directories(place, ".git", ".codex"))
        third.fill(directories(place, ".codex"))
        first.release()
        second.release()
        assert names_in(place) == [".codex", ".git"]
        third.release()
        assert names_in(place) == [".git"]
        then("release", place)
    assert names_in(place) == []
    assert os.listdir(registry.directory) == ["lock"]


def test_what_a_sandbox_holds_that_was_left_stays(
    registry: PlaceholderRegistry, place: Path
) -> None:
    registry.sweep()
    left, other = registry.prepare(), registry.prepare()
    left.fill(directories(place, ".git"))
    other.fill(directories(place, ".git", ".codex"))
    first_process = os.dup(left.fd)  # which lives on
    left.leave()
    other.release()
    assert names_in(place) == [".git"]
    os.close(first_process)
    registry.sweep()
    assert names_in(place) == []
    assert os.listdir(registry.directory) == ["lock"]


@pytest.mark.parametrize("maker_first", [False, True])
def test_a_program_that_shares_is_killed(
    registry: PlaceholderRegistry, place: Path, maker_first: bool
) -> None:
    registry.sweep()
    lease = registry.prepare()
    if maker_first:
        lease.fill(directories(place, ".git", ".agents"))
    with another(registry) as then:
        then("hold", place, ".git .codex")
        if not maker_first:
            lease.fill(directories(place, ".git", ".agents"))
    assert names_in(place) == [".agents", ".codex", ".git"]
    other = PlaceholderRegistry(registry.directory)
    other.sweep()  # only what no live lease holds
    other.close()
    assert names_in(place) == [".agents", ".git"]
    lease.release()
    assert names_in(place) == []
    assert os.listdir(registry.directory) == ["lock"]


def test_what_was_left_by_a_kill_is_removed_when_the_next_lease_is_prepared(
    registry: PlaceholderRegistry, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.sweep()
    with another(registry) as then:
        then("hold", place, ".git")
    used = registry.prepare()
    used.release()
    assert names_in(place) == [".git"]  # it was looked for a moment ago
    monkeypatch.setattr(placeholders, "_SWEEP_SECONDS", 0)
    lease = registry.prepare()
    assert names_in(place) == []
    lease.release()
    assert os.listdir(registry.directory) == ["lock"]


def test_a_mark_without_its_lease_is_swept(registry: PlaceholderRegistry) -> None:
    Path(registry.directory, "1-1-x-1.shared").touch()
    registry.sweep()
    assert os.listdir(registry.directory) == ["lock"]


def test_a_record_stays_until_its_placeholders_are_gone(
    registry: PlaceholderRegistry, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that is killed meanwhile leaves the rest to the next sweep."""
    lease = registry.prepare()
    lease.fill(directories(place, ".git", ".codex"))
    remove = os.rmdir
    seen: list[bool] = []

    def looked(name: bytes, *, dir_fd: int) -> None:
        seen.append(os.path.exists(f"{registry.directory}/{lease.name}.made"))
        remove(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", looked)
    lease.release()
    assert seen == [True, True]
    assert os.listdir(registry.directory) == ["lock"]


def test_a_parent_that_was_exchanged_is_found_out(
    registry: PlaceholderRegistry, place: Path
) -> None:
    """It is kept open from one command to the next, and is not taken for what is there now."""
    waiting = registry.prepare()
    inner = place / "inner"
    inner.mkdir()
    registry.acquire(directories(inner, ".git")).release()
    inner.rename(place / "moved")
    victim = place / "victim"
    victim.mkdir()
    inner.symlink_to("victim")
    with pytest.raises(Stale):
        registry.acquire(directories(inner, ".git"))
    inner.unlink()
    with pytest.raises(Stale):
        registry.acquire(directories(inner, ".git"))
    inner.mkdir()
    lease = registry.acquire(directories(inner, ".git"))
    assert [names_in(place / name) for name in ("inner", "moved", "victim")] == [[".git"], [], []]
    lease.release()
    assert names_in(inner) == []
    waiting.release()


def test_no_directory_stays_open_when_no_lease_is_left(
    registry: PlaceholderRegistry, place: Path
) -> None:
    before = set(os.listdir("/proc/self/fd"))  # perhaps some that a thread still closes
    waiting = registry.prepare()
    for number in range(10):
        inner = place / str(number)
        inner.mkdir()
        registry.acquire(directories(inner, ".git")).release()
    waiting.release()
    eventually(lambda: before.issuperset(os.listdir("/proc/self/fd")), "removed ones are closed")


def test_more_parents_than_are_open_at_a_time(registry: PlaceholderRegistry, place: Path) -> None:
    masks = []
    for number in range(150):
        inner = place / f"group{number % 3}" / str(number)
        inner.mkdir(parents=True)
        masks += directories(inner, ".agents", ".codex")
    lease = registry.acquire([*masks[::2], *masks[1::2]])
    assert all(os.path.isdir(mask.path) for mask in masks)
    lease.release()
    assert not any(os.path.exists(mask.path) for mask in masks)


def test_the_files_of_a_lease_are_those_of_the_next(
    registry: PlaceholderRegistry, place: Path
) -> None:
    """Its record is empty by then, and nothing is left of it when no other lease is there."""
    waiting, first = registry.prepare(), registry.prepare()
    first.fill(directories(place, ".git", ".codex"))
    name, files = first.name, set(os.listdir(registry.directory))
    first.release()
    assert set(os.listdir(registry.directory)) == files
    assert Path(registry.directory, name + ".made").read_bytes() == b""
    again = registry.prepare()
    assert (again.name, again.made, again.lines) == (name, {}, {})
    again.fill(directories(place, ".agents"))
    assert b".codex" not in Path(registry.directory, name + ".made").read_bytes()
    again.release()
    assert os.listdir(place) == []
    waiting.release()
    assert os.listdir(registry.directory) == ["lock"]


def test_what_was_made_under_the_files_of_another_lease_is_swept(
    registry: PlaceholderRegistry, place: Path
) -> None:
    (place / "sub").mkdir()
    with another(registry) as then:
        then("hold", place / "sub", ".git")  # files are kept while there is another lease
        then("hold", place, ".git .codex")
        then("release", place)
        then("hold", place, ".agents")
        registry.sweep()
        assert names_in(place) == [".agents", "sub"]
    registry.sweep()
    assert [*names_in(place), *names_in(place / "sub")] == ["sub"]
    assert os.listdir(registry.directory) == ["lock"]


def test_a_lease_that_could_not_be_filled_is_no_other(
    registry: PlaceholderRegistry, place: Path
) -> None:
    waiting, failed = registry.prepare(), registry.prepare()
    (place / ".git").mkdir()
    with pytest.raises(Stale):
        failed.fill(directories(place, ".git"))
    failed.release()
    assert registry.prepare().name != failed.name
    assert (place / ".git").is_dir()
    waiting.release()


def test_a_fork_holds_no_lock_of_a_lease_that_waits(registry: PlaceholderRegistry) -> None:
    waiting, kept = registry.prepare(), registry.prepare()
    kept.release()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if (kept.fd, kept.record) == (-1, -1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert registry.prepare() is kept
    assert kept.fd >= 0
    waiting.release()
