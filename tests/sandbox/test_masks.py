"""What covers missing names comes and goes with its sandboxes, and never takes what is not ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from handrail.sandbox.masks import Mask, Registry, Stale


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(str(tmp_path / "registry"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "place"
    place.mkdir()
    return place


def masks(place: Path) -> list[Mask]:
    return [Mask(os.fsencode(place / ".git"), True), Mask(os.fsencode(place / "later"), False)]


def test_a_mask_lives_as_long_as_its_lease(registry: Registry, place: Path) -> None:
    lease = registry.acquire(masks(place))
    assert (place / ".git").is_dir()
    assert (place / "later").is_file()
    lease.release()
    assert list(place.iterdir()) == []
    assert sorted(os.listdir(registry.directory)) == ["lock", "pool"]
    registry.close()


def test_masks_are_shared(registry: Registry, place: Path) -> None:
    other = Registry(registry.directory)
    first = registry.acquire(masks(place))
    again = registry.acquire(masks(place))
    elsewhere = other.acquire(masks(place)[:1])
    again.release()
    first.release()
    assert (place / ".git").is_dir()
    assert not (place / "later").exists()
    elsewhere.release()
    assert list(place.iterdir()) == []


def test_what_is_there_is_not_a_mask(registry: Registry, place: Path) -> None:
    (place / ".git").mkdir()
    with pytest.raises(Stale):
        registry.acquire(masks(place))
    assert not (place / "later").exists()
    assert (place / ".git").is_dir()
    status = os.stat(place / ".git")
    assert not registry.is_mask(os.fsencode(place / ".git"), (status.st_dev, status.st_ino))


def test_a_mask_that_somebody_uses_is_theirs(registry: Registry, place: Path) -> None:
    lease = registry.acquire(masks(place))
    (place / ".git" / "config").write_text("mine")
    (place / "later").write_text("mine")
    lease.release()
    assert (place / ".git" / "config").read_text() == "mine"
    assert (place / "later").read_text() == "mine"


def test_one_that_was_replaced_is_left_alone(registry: Registry, place: Path) -> None:
    lease = registry.acquire(masks(place))
    (place / "kept").mkdir()  # so that the number is not given again
    (place / ".git").rename(place / "moved")
    (place / ".git").mkdir()
    lease.release()
    assert (place / ".git").is_dir()


def test_what_a_killed_process_left_is_swept(registry: Registry, place: Path) -> None:
    script = (
        "import sys, os, signal\n"
        "from handrail.sandbox.masks import Mask, Registry\n"
        "Registry(sys.argv[1]).acquire([Mask(os.fsencode(sys.argv[2]), True)])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    argv = [sys.executable, "-c", script, registry.directory, str(place / ".git")]
    assert subprocess.run(argv, check=False).returncode == -9
    assert (place / ".git").is_dir()
    registry.sweep()
    assert list(place.iterdir()) == []
    assert sorted(os.listdir(registry.directory)) == ["lock", "pool"]


def test_a_symlink_on_the_way_is_not_followed(registry: Registry, place: Path) -> None:
    (place / "real").mkdir()
    (place / "link").symlink_to("real")
    with pytest.raises(Stale):
        registry.acquire([Mask(os.fsencode(place / "link" / ".git"), True)])
    assert list((place / "real").iterdir()) == []
