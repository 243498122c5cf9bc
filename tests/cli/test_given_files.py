"""Files given to a sandboxed command as its streams: it reads or writes them, and no more."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from handrail.sandbox.landlock import ruleset
from tests.cli.user import HANDRAIL

READ_ONLY = ["sandbox", "--profile", "read-only", "--"]
WAYS = {
    "sandbox": READ_ONLY,
    "json": ["sandbox", "--json", "--profile", "read-only", "--"],
    "run": ["run", "--sandbox", "read-only", "--"],
}
#: Everything that a descriptor of a file allows beyond reading it.
SPOIL = """
import fcntl, os, sys
number = int(sys.argv[1])
def attempt(function, *arguments):
    try: function(*arguments)
    except OSError: pass
def open_again(flags):
    for place in ("/proc/self/fd/%d", "/dev/fd/%d", "/proc/%d/fd/%%d" % os.getpid()):
        fd = os.open(place % number, flags | os.O_NONBLOCK)
        if flags == os.O_RDONLY:
            os.write(3 - number, os.read(fd, 99))
        else:
            os.write(fd, b"spoiled")
for flags in (os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_RDONLY):
    if number or flags != os.O_RDONLY:
        attempt(open_again, flags)
attempt(os.ftruncate, number, 0)
attempt(os.pwrite, number, b"spoiled", 0)
attempt(fcntl.fcntl, number, fcntl.F_SETFL, 0)
attempt(os.pwrite, number, b"spoiled", 0)
attempt(os.lseek, number, 0, 0)
attempt(os.fchmod, number, 0o777)
attempt(os.utime, number, (1, 1))
attempt(fcntl.flock, number, fcntl.LOCK_EX | fcntl.LOCK_NB)
os.write(3 - number if number else 1, b"ended\\n")
"""


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """A workspace, and a directory beside it."""
    for name in ("w", "out"):
        (tmp_path / name).mkdir()
    return tmp_path / "w", tmp_path / "out"


def handrail(words: list[str], cwd: Path, **given: object) -> subprocess.CompletedProcess[str]:
    settings: dict[str, object] = {"stdin": subprocess.DEVNULL, "stdout": -1, "stderr": -1}
    return subprocess.run(
        [*HANDRAIL, *words],
        cwd=cwd,
        env={**os.environ, "XDG_STATE_HOME": str(cwd.parent / "xdg")},
        text=True,
        timeout=60,
        check=False,
        **{**settings, **given},  # type: ignore[call-overload]
    )


def look(path: Path) -> tuple[int, int, str]:
    status = path.stat()
    return status.st_mode, status.st_mtime_ns, path.read_text()


@pytest.mark.parametrize("way", WAYS)
def test_a_file_given_to_read_cannot_be_changed(way: str, places: tuple[Path, Path]) -> None:
    workspace, outside = places
    file = outside / "file"
    file.write_text("as it was")
    before = look(file)
    with file.open() as stdin:
        done = handrail([*WAYS[way], "python3", "-I", "-c", SPOIL, "0"], workspace, stdin=stdin)
    assert "ended" in done.stdout, done.stderr
    assert look(file) == before


@pytest.mark.parametrize("number", [1, 2])
def test_a_log_can_be_appended_to_and_nothing_else(number: int, places: tuple[Path, Path]) -> None:
    workspace, outside = places
    file = outside / "log"
    file.write_text("HISTORY\n")
    mode = file.stat().st_mode
    name = ("stdout", "stderr")[number - 1]
    with file.open("a") as log:
        command = ["python3", "-I", "-c", SPOIL + "os.write(number, b'new\\n')", str(number)]
        done = handrail([*READ_ONLY, *command], workspace, **{name: log})
    said = (done.stdout or "") + (done.stderr or "")
    assert "ended" in said
    assert "HISTORY" not in said
    assert file.read_text().startswith("HISTORY\n")
    assert file.read_text().endswith("new\n")
    assert file.stat().st_mode == mode


@pytest.mark.skipif(
    ruleset.abi_version() < ruleset.LOWEST_ABI, reason="this kernel has no Landlock to speak of"
)
def test_landlock_copies_as_well(places: tuple[Path, Path]) -> None:
    workspace, outside = places
    file = outside / "log"
    file.write_text("HISTORY\n")
    code = (
        "import sys\n"
        "from handrail.sandbox import probe\n"
        "probe.BWRAP_PLACES = ()\n"
        "from handrail.cli.commands.sandbox import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    script = (
        "import os; os.write(1, b'new\\n')\ntry: os.ftruncate(1, 0)\nexcept OSError: sys.exit(3)"
    )
    with file.open("a") as log:
        done = subprocess.run(
            [
                *(sys.executable, "-c", code, "--profile", "read-only", "--"),
                *("python3", "-I", "-c", "import sys; " + script),
            ],
            cwd=workspace,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 3, done.stderr
    assert file.read_text() == "HISTORY\nnew\n"


def test_what_the_command_may_write_is_handed_over(places: tuple[Path, Path]) -> None:
    workspace, _ = places
    file = workspace / "file"
    file.write_text("0123456789")
    with file.open("r+") as both:
        script = "import os; os.lseek(0, 5, 0); print(os.read(0, 9)); os.ftruncate(1, 2)"
        handrail(
            ["sandbox", "--", "python3", "-I", "-c", script], workspace, stdin=both, stdout=both
        )
    assert file.read_text().startswith("01")
    assert file.stat().st_size < 30


def test_protected_files_of_the_workspace_are_copied(places: tuple[Path, Path]) -> None:
    workspace, _ = places
    subprocess.run(["git", "init", "-q", workspace], check=True)
    config = workspace / ".git" / "config"
    before = look(config)
    with config.open("r+") as stdin:
        done = handrail(
            ["sandbox", "--", "python3", "-I", "-c", SPOIL, "0"], workspace, stdin=stdin
        )
    assert "ended" in done.stdout
    assert look(config) == before


def test_all_of_a_large_file_passes_both_ways(places: tuple[Path, Path]) -> None:
    workspace, outside = places
    source, target = outside / "source", outside / "target"
    source.write_bytes(os.urandom(1 << 16) * 100)
    for mode in ("wb", "ab"):
        target.unlink(missing_ok=True)
        with source.open("rb") as stdin, target.open(mode) as stdout:
            done = handrail([*READ_ONLY, "cat"], workspace, stdin=stdin, stdout=stdout)
        assert (done.returncode, done.stderr) == (0, "")
        assert target.read_bytes() == source.read_bytes()


def test_the_next_reader_goes_on_where_the_command_stopped(places: tuple[Path, Path]) -> None:
    workspace, outside = places
    lines = outside / "lines"
    lines.write_text("one\ntwo\nthree\n" * 1000)
    with lines.open("rb", buffering=0) as stdin:
        assert handrail([*READ_ONLY, "true"], workspace, stdin=stdin).returncode == 0
        assert stdin.tell() == 0
        script = "import os; print(os.read(0, 4))"
        done = handrail([*READ_ONLY, "python3", "-I", "-c", script], workspace, stdin=stdin)
        assert done.stdout == "b'one\\n'\n"
        assert stdin.tell() == 4
        assert stdin.read(4) == b"two\n"
        done = handrail([*READ_ONLY, "wc", "-c"], workspace, stdin=stdin)
        assert done.stdout.strip() == str(14 * 1000 - 8)
        assert stdin.read(1) == b""


def test_the_order_of_both_outputs_is_kept(places: tuple[Path, Path]) -> None:
    workspace, outside = places
    file = outside / "both"
    script = "for i in 1 2 3 4 5; do echo o$i; echo e$i >&2; echo f$i > /dev/stderr; done"
    with file.open("w") as both:
        handrail([*READ_ONLY, "sh", "-c", script], workspace, stdout=both, stderr=both)
    expected = [f"{kind}{i}" for i in range(1, 6) for kind in "oef"]
    assert file.read_text().split() == expected


def test_exit_codes_and_endings_are_the_command_s(places: tuple[Path, Path]) -> None:
    workspace, outside = places
    file = outside / "file"
    file.write_text("x" * 3_000_000)
    for script, code in (("exit 7", 7), ("kill -9 $$", 137), ("head -c 1 >/dev/null", 0)):
        with file.open() as stdin, (outside / "o").open("w") as stdout:
            done = handrail([*READ_ONLY, "sh", "-c", script], workspace, stdin=stdin, stdout=stdout)
        assert done.returncode == code
    with file.open() as stdin, (outside / "o").open("w") as stdout:
        words = ["run", "--sandbox", "read-only", "--timeout", "0.3", "--", "sleep", "60"]
        assert handrail(words, workspace, stdin=stdin, stdout=stdout).returncode == 124


def test_output_that_cannot_be_written_is_told(places: tuple[Path, Path]) -> None:
    workspace, outside = places

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    with (outside / "o").open("w") as stdout:
        done = handrail(
            [*READ_ONLY, "sh", "-c", "head -c 2000000 /dev/zero; exit 0"],
            workspace,
            stdout=stdout,
            preexec_fn=limit,
        )
    assert done.returncode == 125
    assert "File too large" in done.stderr


def test_a_directory_is_no_stream(places: tuple[Path, Path]) -> None:
    """An interpreter does not start with one, but a program can get one later."""
    workspace, outside = places
    code = (
        "import os, sys\n"
        "os.dup2(os.open(sys.argv[1], os.O_RDONLY), 0)\n"
        "from handrail.cli.commands.sandbox import main\n"
        "sys.exit(main(sys.argv[2:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, outside, "--profile", "read-only", "--", "true"],
        cwd=workspace,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 125
    assert "leads out of the sandbox" in done.stderr


def test_no_other_descriptor_is_inherited(places: tuple[Path, Path]) -> None:
    workspace, outside = places
    file = outside / "file"
    file.write_text("x")
    with file.open("r+") as extra, file.open() as stdin:
        done = handrail(
            [*READ_ONLY, "python3", "-I", "-c", "import os; print(os.listdir('/proc/self/fd'))"],
            workspace,
            stdin=stdin,
            pass_fds=[extra.fileno()],
        )
    assert done.stdout == "['0', '1', '2', '3']\n"  # the last is the list itself


@pytest.mark.parametrize("place", ["/tmp", "/var/tmp"])
@pytest.mark.parametrize("words", [["sandbox", "--"], ["run", "--"], ["sandbox", "--json", "--"]])
def test_a_file_of_the_hosts_tmp_is_not_the_commands(
    words: list[str], place: str, tmp_path: Path
) -> None:
    """The command may write its own /tmp; the file it was given lies in another."""
    with tempfile.NamedTemporaryFile(dir=place) as given:
        given.write(b"precious")
        given.flush()
        script = "echo spoiled > /proc/self/fd/0; cat"
        with open(given.name, "rb") as stdin:
            done = subprocess.run(
                [*HANDRAIL, *words, "sh", "-c", script],
                stdin=stdin, capture_output=True, cwd=tmp_path, check=False,
            )  # fmt: skip
        assert b"precious" in done.stdout
        assert Path(given.name).read_bytes() == b"precious"
