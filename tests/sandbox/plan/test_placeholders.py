"""What covers missing names comes and goes with its sandboxes, and never takes what is not ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from handrail.sandbox.plan.placeholder_lease import Placeholder, Stale
from handrail.sandbox.plan.placeholders import PlaceholderRegistry


@pytest.fixture
def registry(tmp_path: Path) -> PlaceholderRegistry:
    return PlaceholderRegistry(str(tmp_path / "registry"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "place"
    place.mkdir()
    return place


def masks(place: Path) -> list[Placeholder]:
    return [
        Placeholder(os.fsencode(place / ".git"), True),
        Placeholder(os.fsencode(place / "later"), False),
    ]


def test_a_mask_lives_as_long_as_its_lease(registry: PlaceholderRegistry, place: Path) -> None:
    lease = registry.acquire(masks(place))
    assert (place / ".git").is_dir()
    assert (place / "later").is_file()
    lease.release()
    assert list(place.iterdir()) == []
    assert os.listdir(registry.directory) == ["lock"]
    registry.close()


def test_programs_of_the_host_can_use_what_they_trust_meanwhile(
    registry: PlaceholderRegistry, place: Path
) -> None:
    names = {".X11-unix": 0o1777, f"tmux-{os.geteuid()}": 0o700, ".git": 0o755}
    before = os.umask(0o077)
    try:
        lease = registry.acquire([Placeholder(os.fsencode(place / name), True) for name in names])
    finally:
        os.umask(before)
    assert {name: (place / name).stat().st_mode & 0o7777 for name in names} == names
    lease.release()
    assert list(place.iterdir()) == []


def test_masks_are_shared(registry: PlaceholderRegistry, place: Path) -> None:
    other = PlaceholderRegistry(registry.directory)
    first = registry.acquire(masks(place))
    again = registry.acquire(masks(place))
    elsewhere = other.acquire(masks(place)[:1])
    again.release()
    first.release()
    assert (place / ".git").is_dir()
    assert not (place / "later").exists()
    elsewhere.release()
    assert list(place.iterdir()) == []


def test_a_lease_is_prepared_and_filled_later(registry: PlaceholderRegistry, place: Path) -> None:
    """As for a sandbox that waits; beside it is one that has its own."""
    prepared = registry.prepare()
    assert list(place.iterdir()) == []
    beside = registry.acquire(masks(place))
    prepared.fill(masks(place))
    beside.release()
    PlaceholderRegistry(registry.directory).sweep()  # another program sees that it is held
    assert {path.name for path in place.iterdir()} == {".git", "later"}
    prepared.release()
    assert list(place.iterdir()) == []
    assert os.listdir(registry.directory) == ["lock"]


def test_a_prepared_lease_that_is_not_filled(registry: PlaceholderRegistry, place: Path) -> None:
    unused, failed = registry.prepare(), registry.prepare()
    (place / "later").write_text("not ours")
    with pytest.raises(Stale):
        failed.fill(masks(place))
    unused.release()
    failed.release()
    assert [path.name for path in place.iterdir()] == ["later"]
    assert os.listdir(registry.directory) == ["lock"]


def test_what_is_there_is_not_a_mask(registry: PlaceholderRegistry, place: Path) -> None:
    (place / ".git").mkdir()
    with pytest.raises(Stale):
        registry.acquire(masks(place))
    assert not (place / "later").exists()
    assert (place / ".git").is_dir()
    status = os.stat(place / ".git")
    assert not registry.is_mask(os.fsencode(place / ".git"), (status.st_dev, status.st_ino))


def test_a_mask_that_somebody_uses_is_theirs(registry: PlaceholderRegistry, place: Path) -> None:
    lease = registry.acquire(masks(place))
    (place / ".git" / "config").write_text("mine")
    (place / "later").write_text("mine")
    lease.release()
    assert (place / ".git" / "config").read_text() == "mine"
    assert (place / "later").read_text() == "mine"


def test_one_that_was_replaced_is_left_alone(registry: PlaceholderRegistry, place: Path) -> None:
    lease = registry.acquire(masks(place))
    (place / "kept").mkdir()  # so that the number is not given again
    (place / ".git").rename(place / "moved")
    (place / ".git").mkdir()
    lease.release()
    assert (place / ".git").is_dir()


def killed_with(registry: PlaceholderRegistry, path: Path) -> Path:
    """Have a program killed while it holds a directory; gives its record."""
    script = (
        "import sys, os, signal\n"
        "from handrail.sandbox.plan.placeholder_lease import Placeholder\n"
        "from handrail.sandbox.plan.placeholders import PlaceholderRegistry\n"
        "PlaceholderRegistry(sys.argv[1]).acquire([Placeholder(os.fsencode(sys.argv[2]), True)])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    argv = [sys.executable, "-c", script, registry.directory, str(path)]
    assert subprocess.run(argv, check=False).returncode == -9
    assert path.is_dir()
    (record,) = Path(registry.directory).glob("*.made")
    return record


def made_anew(path: Path) -> tuple[os.stat_result, os.stat_result]:
    """Remove an empty directory and make another there; gives what both look like."""
    before = now = path.stat()
    while now.st_mtime_ns == before.st_mtime_ns:  # the clock of files is coarse
        path.rmdir()
        path.mkdir()
        now = path.stat()
    return before, now


def test_what_a_killed_process_left_is_swept(registry: PlaceholderRegistry, place: Path) -> None:
    killed_with(registry, place / ".git")
    registry.sweep()
    assert list(place.iterdir()) == []
    assert os.listdir(registry.directory) == ["lock"]


def test_a_directory_that_got_the_inode_of_one_is_left_alone(
    registry: PlaceholderRegistry, place: Path
) -> None:
    record = killed_with(registry, place / ".git")
    before, now = made_anew(place / ".git")
    # As some file systems do by themselves.
    text = record.read_bytes().replace(b" %d " % before.st_ino, b" %d " % now.st_ino)
    record.write_bytes(text)
    registry.sweep()
    assert (place / ".git").is_dir()
    assert os.listdir(registry.directory) == ["lock"]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_one_made_anew_is_left_alone_when_leases_end(
    registry: PlaceholderRegistry, place: Path, elsewhere: bool
) -> None:
    """A lease that came to share it later goes by what the first one has made."""
    first = registry.acquire(masks(place)[:1])
    before, now = made_anew(place / ".git")
    if (before.st_dev, before.st_ino) == (now.st_dev, now.st_ino):  # by the file system
        other = PlaceholderRegistry(registry.directory) if elsewhere else registry
        second = other.prepare()
        second.fill(masks(place)[:1])
        second.release()
        if elsewhere:
            other.close()
    first.release()
    assert (place / ".git").is_dir()
    registry.close()


def test_a_record_without_times_is_swept(registry: PlaceholderRegistry, place: Path) -> None:
    """It is of a program that knew none."""
    (place / ".git").mkdir()
    status = (place / ".git").stat()
    name = f"{os.stat('/proc/self/ns/mnt').st_ino}-1-x-1"
    Path(registry.directory, name + ".held").touch()
    text = b"%d %d %b\0" % (status.st_dev, status.st_ino, os.fsencode(place / ".git"))
    Path(registry.directory, name + ".made").write_bytes(text)
    registry.sweep()
    assert list(place.iterdir()) == []


def test_a_symlink_on_the_way_is_not_followed(registry: PlaceholderRegistry, place: Path) -> None:
    (place / "real").mkdir()
    (place / "link").symlink_to("real")
    with pytest.raises(Stale):
        registry.acquire([Placeholder(os.fsencode(place / "link" / ".git"), True)])
    assert list((place / "real").iterdir()) == []


def test_what_is_taken_away_never_comes_back(registry: PlaceholderRegistry, place: Path) -> None:
    """Whoever has gone into a mask cannot put anything into the next one."""
    lease = registry.acquire(masks(place))
    entered = os.open(place / ".git", os.O_RDONLY | os.O_DIRECTORY)
    lease.release()
    other = place / "other"
    other.mkdir()
    lease = registry.acquire(masks(other))
    with pytest.raises(FileNotFoundError):
        os.mkdir("hooks", dir_fd=entered)
    os.close(entered)
    lease.release()
    assert list(other.iterdir()) == []


def test_what_a_sandbox_can_write_is_never_read(registry: PlaceholderRegistry, place: Path) -> None:
    (place / "empty").touch()
    lease = registry.acquire(masks(place))
    status = os.stat(place / "empty")
    identities = ((0, 0), (status.st_dev, status.st_ino))
    forged = [b"%d %d %b\0" % (*one, os.fsencode(place / "empty")) for one in identities]
    Path(f"/proc/self/fd/{lease.fd}").write_bytes(b"".join(forged))
    os.close(lease.fd)  # as if everybody had been killed
    next_one = PlaceholderRegistry(registry.directory)
    next_one.sweep()
    next_one.close()
    assert [path.name for path in place.iterdir()] == ["empty"]


def test_a_record_without_identity_fits_nothing(registry: PlaceholderRegistry, place: Path) -> None:
    (place / "empty").touch()
    name = f"{os.stat('/proc/self/ns/mnt').st_ino}-1-x-1"
    Path(registry.directory, name + ".held").touch()
    Path(registry.directory, name + ".made").write_bytes(b"0 0 %b\0" % os.fsencode(place / "empty"))
    registry.sweep()
    assert (place / "empty").exists()
    assert os.listdir(registry.directory) == ["lock"]


def test_a_directory_that_we_never_make_is_not_taken_away(
    registry: PlaceholderRegistry, place: Path
) -> None:
    (place / "src").mkdir()
    status = os.stat(place / "src")
    text = b"%d %d %b\0" % (status.st_dev, status.st_ino, os.fsencode(place / "src"))
    Path(registry.directory, "1-x-1.held").touch()
    Path(registry.directory, "1-x-1.made").write_bytes(text)
    registry.sweep()
    assert (place / "src").is_dir()


def test_what_is_no_file_of_ours_in_the_registry_is_passed_over(
    registry: PlaceholderRegistry, place: Path
) -> None:
    os.mkfifo(f"{registry.directory}/1-00000000-1.held")
    os.mkfifo(f"{registry.directory}/2-00000000-1.made")
    Path(f"{registry.directory}/2-00000000-1.held").touch()
    lease = registry.acquire(masks(place))
    assert (place / ".git").is_dir()
    lease.release()
    assert list(place.iterdir()) == []
    registry.close()


#: Reads what to do with the registry, line by line, and answers each with what is there then.
ELSEWHERE = """
import os, signal, sys
from handrail.sandbox.plan.placeholder_lease import Placeholder
from handrail.sandbox.plan.placeholders import PlaceholderRegistry
place = os.fsencode(sys.argv[2])
mask = Placeholder(os.path.join(place, b".git"), True)
leases = []
for line in sys.stdin:
    if line == "acquire\\n":
        leases.append(PlaceholderRegistry(sys.argv[1]).acquire([mask]))
    elif line == "release\\n":
        leases.pop(0).release()
    elif line == "killed\\n":
        if os.fork() == 0:
            PlaceholderRegistry(sys.argv[1]).acquire([mask])
            os.kill(os.getpid(), signal.SIGKILL)
        os.wait()
    elif line == "sweep\\n":
        PlaceholderRegistry(sys.argv[1]).sweep()
    print(*os.listdir(sys.argv[2]), flush=True)
"""


class Elsewhere:
    """A process that sees another directory at ``place`` than we do."""

    def __init__(self, registry: PlaceholderRegistry, place: Path) -> None:
        mount = 'mount -t tmpfs tmpfs "$2" && echo up && exec "$0" -c "$3" "$1" "$2"'
        self.process = subprocess.Popen(
            [
                *("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount),
                *(sys.executable, registry.directory, str(place), ELSEWHERE),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "up\n":
            self.close()
            pytest.skip("no mount namespace with a file system of its own can be made here")

    def then(self, what: str) -> list[str]:
        """Have it do this; the names that it sees afterwards."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "it has ended"
        return answer.split()

    def close(self) -> None:
        self.process.communicate()


@contextmanager
def elsewhere(registry: PlaceholderRegistry, place: Path) -> Iterator[Elsewhere]:
    there = Elsewhere(registry, place)
    try:
        yield there
    finally:
        there.close()


@pytest.mark.fault
def test_one_path_in_two_mount_namespaces_is_two_placeholders(
    registry: PlaceholderRegistry, place: Path
) -> None:
    """Each is shared by the leases that see it, and stays until the last of those."""
    with elsewhere(registry, place) as one, elsewhere(registry, place) as other:
        for there in (one, other, one, other):  # each has two leases in the end
            assert there.then("acquire") == [".git"]
        assert list(place.iterdir()) == []
        for there in (one, other):
            assert there.then("release") == [".git"]
        for there in (one, other):
            assert there.then("release") == []
    assert os.listdir(registry.directory) == ["lock"]


@pytest.mark.fault
def test_what_was_left_in_another_mount_namespace_is_swept_there(
    registry: PlaceholderRegistry, place: Path
) -> None:
    with elsewhere(registry, place) as there:
        assert there.then("killed") == [".git"]
        registry.sweep()  # which cannot see it
        registry.acquire(masks(place)).release()
        assert there.then("sweep") == []
    assert os.listdir(registry.directory) == ["lock"]


@pytest.mark.fault
def test_a_record_of_a_mount_namespace_that_is_gone_is_forgotten_in_the_end(
    registry: PlaceholderRegistry, place: Path
) -> None:
    with elsewhere(registry, place) as there:
        assert there.then("killed") == [".git"]
    registry.sweep()
    (held,) = Path(registry.directory).glob("*.held")
    os.utime(held, (0, 0))
    registry.sweep()
    assert os.listdir(registry.directory) == ["lock"]
