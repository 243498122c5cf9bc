"""What a program leaves that is killed while it makes placeholders, and what is not its own."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from handrail.sandbox.plan.placeholder_lease import Placeholder, Stale
from handrail.sandbox.plan.placeholders import PlaceholderRegistry

#: Makes placeholders again and again, and is killed one step later each time: a step is the return
#: of a built-in function.  Says how much was left each time, and what of it after a sweep.
KILLED_AT_EACH_STEP = """
import os, signal, sys
from handrail.sandbox.plan.placeholder_lease import Placeholder
from handrail.sandbox.plan.placeholders import PlaceholderRegistry

directory, place = sys.argv[1:]
names = {".git": True, "later": False, ".X11-unix": True}
masks = [Placeholder(os.fsencode(os.path.join(place, name)), names[name]) for name in names]

def killed(step):
    def passed(frame, event, what):
        nonlocal step
        if event == "c_return":
            step -= 1
            if step == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    registry = PlaceholderRegistry(directory)
    sys.setprofile(passed)
    registry.acquire(masks)
    sys.setprofile(None)
    os._exit(0)

step, status = 0, signal.SIGKILL
while os.WIFSIGNALED(status):
    step += 1
    if os.fork() == 0:
        killed(step)
    status = os.wait()[1]
    left = os.listdir(place)
    registry = PlaceholderRegistry(directory)
    registry.sweep()
    registry.close()
    print(len(left), *os.listdir(place), *os.listdir(directory))
"""


def expected_by_a_killed_program(registry: PlaceholderRegistry, *paths: Path) -> None:
    """A record as it is when its program is killed before the first is made."""
    name = f"{os.stat('/proc/self/ns/mnt').st_ino}-1-x-1+"
    Path(registry.directory, name + ".held").touch()
    text = b"".join(b"0 0 %b\0" % os.fsencode(path) for path in paths)
    Path(registry.directory, name + ".made").write_bytes(text)


@pytest.mark.fault
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o777])
def test_killed_at_each_step(registry: PlaceholderRegistry, place: Path, umask: int) -> None:
    argv = [sys.executable, "-c", KILLED_AT_EACH_STEP, registry.directory, str(place)]
    run = subprocess.run(argv, check=True, capture_output=True, text=True, umask=umask)
    steps = [line.split() for line in run.stdout.splitlines()]
    assert {"0", "1", "2", "3"} == {step[0] for step in steps}
    assert [step[1:] for step in steps] == [["lock"]] * len(steps)


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777, 0o1777])
def test_what_another_program_made_is_left_alone(
    registry: PlaceholderRegistry, place: Path, mode: int
) -> None:
    """It is empty and where one was expected, but has no mark."""
    (place / ".git").mkdir()
    (place / "later").touch()
    for name in (".git", "later"):
        (place / name).chmod(mode)
    expected_by_a_killed_program(registry, place / ".git", place / "later")
    registry.sweep()
    assert sorted(path.name for path in place.iterdir()) == [".git", "later"]
    assert os.listdir(registry.directory) == ["lock"]


def test_what_is_used_is_left_alone(registry: PlaceholderRegistry, place: Path) -> None:
    """It has the mark, and something was put into it."""
    (place / ".git").mkdir()
    (place / ".git" / "config").touch()
    (place / "later").write_text("mine")
    for name in (".git", "later"):
        (place / name).chmod(0o1700)
    expected_by_a_killed_program(registry, place / ".git", place / "later")
    registry.sweep()
    assert sorted(path.name for path in place.iterdir()) == [".git", "later"]


def test_a_directory_that_we_never_make_is_left_alone(
    registry: PlaceholderRegistry, place: Path
) -> None:
    (place / "src").mkdir()
    (place / "src").chmod(0o1755)
    (place / "link").symlink_to(".")
    expected_by_a_killed_program(registry, place / "src", place / "link" / ".git")
    (place / ".git").mkdir()
    (place / ".git").chmod(0o1755)
    registry.sweep()
    assert sorted(path.name for path in place.iterdir()) == [".git", "link", "src"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes directories of other users")
def test_a_directory_of_another_user_is_left_alone(
    registry: PlaceholderRegistry, place: Path
) -> None:
    (place / ".git").mkdir()
    os.chown(place / ".git", 1000, 1000)
    (place / ".git").chmod(0o1755)
    expected_by_a_killed_program(registry, place / ".git")
    registry.sweep()
    assert (place / ".git").is_dir()


def test_a_new_one_is_not_taken_for_that_of_a_killed_program(
    registry: PlaceholderRegistry, place: Path
) -> None:
    """A look for what is left comes while a new one has its mark still."""
    paths = [place / ".agents", place / ".git"]
    expected_by_a_killed_program(registry, *paths)
    (place / ".git").mkdir()
    (place / ".git").chmod(0o1755)  # this one was made
    lease = registry.acquire([Placeholder(os.fsencode(path), True) for path in paths])
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o755] * 2
    lease.release()
    assert list(place.iterdir()) == []


def test_a_start_that_fails_leaves_no_mark(registry: PlaceholderRegistry, place: Path) -> None:
    (place / ".git").mkdir()
    names = [".agents", ".codex", ".git"]
    with pytest.raises(Stale):
        registry.acquire([Placeholder(os.fsencode(place / name), True) for name in names])
    assert [path.name for path in place.iterdir()] == [".git"]
    assert os.listdir(registry.directory) == ["lock"]
