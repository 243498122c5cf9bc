"""Repositories that nobody named: found, protected, and never in the way of the next command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from handrail.sandbox.plan.directory_cache import DirectoryCache
from handrail.sandbox.plan.git_index import RepositoryIndex
from handrail.sandbox.profile import Access, Profile, Rule
from tests.support.sandboxes import holding


def writable(ws: Path) -> Profile:
    return Profile(rules=(Rule(b"/", Access.READ), Rule(os.fsencode(ws), Access.WRITE)))


def test_all_names_beside_a_nested_one(ws: Path) -> None:
    for name in ("sub/.git", "sub/.codex", "other/.git"):
        (ws / name).mkdir(parents=True)
    script = (
        f"cd {ws}; for d in sub other; do for n in .git .codex .agents; do mkdir -p $d/$n;"
        " echo x > $d/$n/x; done; echo fine > $d/code; done"
    )
    with holding() as held:
        held.run(writable(ws), ["/bin/sh", "-c", script])
    left = sorted(str(path.relative_to(ws)) for path in ws.rglob("*"))
    nested = ["other", "other/.git", "other/code", "sub", "sub/.codex", "sub/.git", "sub/code"]
    assert left == nested


@pytest.mark.parametrize(
    "place", ["node_modules/pkg", "node_modules/@s/pkg", ".venv/src/dep", ".tox/x", "a/.venv/b"]
)
def test_in_directories_of_tools(ws: Path, place: str) -> None:
    (ws / place / ".git").mkdir(parents=True)
    index = RepositoryIndex(DirectoryCache(os.fsencode(ws)))
    assert index.refresh() == (os.fsencode(ws / place / ".git"),)
    with holding() as held:
        held.run(writable(ws), ["/bin/touch", f"{ws}/{place}/.git/config"])
        assert held.run(writable(ws), ["/bin/touch", f"{ws}/{place}/code"])[0] == 0
    assert not list((ws / place / ".git").iterdir())


def test_many_are_covered_beforehand(ws: Path) -> None:
    for number in range(40):
        (ws / f"r{number:02}" / ".git").mkdir(parents=True)
    with holding() as held:
        script = f"cd {ws}; for d in r*; do mkdir -p $d/.codex/x $d/.git/x; done; echo x > r00/f"
        held.run(writable(ws), ["/bin/sh", "-c", script])
    assert (ws / "r00" / "f").exists()
    assert not [path for path in ws.rglob("*") if path.name in ("x", ".codex", ".agents")]


@pytest.mark.parametrize(
    "make",
    [
        "mkdir d; ln -s /etc d/.git",
        "mkdir -p d e; ln -s /etc e/l; echo 'gitdir: ../e/l/x' > d/.git",
        "mkdir -p d/.git; ln -s /etc d/.codex",
    ],
)
def test_an_odd_one_keeps_no_command_from_running(ws: Path, make: str) -> None:
    with holding() as held:
        assert held.run(writable(ws), ["/bin/sh", "-c", f"cd {ws}; {make}"])[0] == 0
        assert held.run(writable(ws), ["/bin/sh", "-c", f"echo x > {ws}/new"]) == (0, b"")
        held.run(writable(ws), ["/bin/rm", "-rf", f"{ws}/d"])
    assert (ws / "d").exists() is ("d/.git;" in make)


@pytest.mark.parametrize("text", ["gitdir: a\0b\n", "gitdir: \0", "gitdir:" + "x" * 9000])
def test_a_pointer_that_is_no_path_keeps_no_command_from_running(ws: Path, text: str) -> None:
    (ws / "d").mkdir()
    (ws / "d" / ".git").write_text(text)
    with holding() as held:
        assert held.run(writable(ws), ["/bin/rm", "-r", f"{ws}/d/../gone-or-not"])[0] == 1
        assert held.run(writable(ws), ["/bin/touch", f"{ws}/fine"])[0] == 0


@pytest.mark.parametrize(
    "make",
    [
        "mkfifo d/.git",
        "touch d/.git",
        "echo text > d/.git",
        "echo 'gitdir: ../src' > d/.git",
        "echo 'gitdir: .' > d/.git",
        "echo 'gitdir: ../new' > d/.git",
        "cd d; for i in $(seq 300); do mkdir e; cd e; done; mkdir .git",
    ],
)
def test_what_is_no_repository_can_be_removed_and_closes_nothing(ws: Path, make: str) -> None:
    profile = writable(ws)
    after = f"cd {ws} && rm -r d && touch src/file && mkdir new"
    with holding() as held:
        assert held.run(profile, ["/bin/sh", "-c", f"cd {ws}; mkdir d src; {make}"])[0] == 0
        assert held.run(profile, ["/bin/sh", "-c", after]) == (0, b"")
    assert sorted(os.listdir(ws)) == ["new", "src"]


def test_a_pointer_is_protected_once_it_leads_to_a_repository(ws: Path) -> None:
    profile = writable(ws)
    make = f"cd {ws}; mkdir d src; echo 'gitdir: ../src' > d/.git"
    with holding() as held:
        held.run(profile, ["/bin/sh", "-c", make])
        become = f"cd {ws}/src && mkdir objects refs && echo 'ref: refs/heads/main' > HEAD"
        assert held.run(profile, ["/bin/sh", "-c", become])[0] == 0
        held.run(profile, ["/bin/sh", "-c", f"cd {ws}; echo x > src/config; rm d/.git"])
    assert sorted(os.listdir(ws / "src")) == ["HEAD", "objects", "refs"]
    assert (ws / "d" / ".git").exists()


def test_a_repository_below_many_directories(ws: Path) -> None:
    deep = ws.joinpath(*["d"] * 90)
    (deep / ".git").mkdir(parents=True)
    with holding() as held:
        held.run(writable(ws), ["/bin/touch", f"{deep}/.git/config"])
        assert held.run(writable(ws), ["/bin/touch", f"{deep}/code"])[0] == 0
    assert not list((deep / ".git").iterdir())


def test_a_repository_in_a_directory_that_is_read_only(ws: Path) -> None:
    """As root the name is covered all the same; an ordinary user gets a read-only directory."""
    (ws / "d" / ".git").mkdir(parents=True)
    (ws / "d").chmod(0o555)
    try:
        with holding() as held:
            script = f"chmod 755 {ws}/d; mkdir {ws}/d/.codex; touch {ws}/fine"
            held.run(writable(ws), ["/bin/sh", "-c", script])
        assert (ws / "fine").exists()
        assert not (ws / "d" / ".codex").exists()
    finally:
        (ws / "d").chmod(0o755)
