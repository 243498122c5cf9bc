"""Repositories that nobody named: found, protected, and never in the way of the next command."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.sandbox.plan.git_index import RepositoryIndex
from handrail.sandbox.profile import Access, Profile, Rule
from tests.sandbox.runs import holding

pytestmark = pytest.mark.system


@pytest.fixture
def ws() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(dir="/var/tmp"))
    yield place
    shutil.rmtree(place)


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
    index = RepositoryIndex(os.fsencode(ws))
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
