"""The compiled modules of a start in one file: used while they are those of the sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import handrail

RUN = "import sys; from handrail.__main__ import main; main()"
MODULE = "handrail/cli/foreground_command.py"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of ours that may be written, as in somebody's own environment."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(handrail.__file__).parent, tmp_path / "handrail", ignore=ignored)
    return tmp_path


def start(package: Path, *flags: str, **changes: str) -> list[str]:
    """Run a command with it; what was imported from where, as ``python -v`` says it."""
    env = {**os.environ, "PYTHONPATH": str(package), **changes}
    if not changes:
        env.pop("PYTHONDONTWRITEBYTECODE", None)
    work = package / "work"
    work.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, *flags, "-v", "-c", RUN, "run", "--", "echo", "hello"],
        cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50,
        check=True,
    )  # fmt: skip
    assert done.stdout == "hello\n"
    return [line for line in done.stderr.splitlines() if MODULE in line or "start.cpyth" in line]


def files(package: Path) -> list[str]:
    return sorted(one.name for one in (package / "handrail" / "__pycache__").glob("start.*"))


def test_the_second_start_reads_one_file(package: Path) -> None:
    assert start(package)
    assert len(files(package)) == 1
    assert start(package) == []  # none of the modules was looked for
    assert start(package, "-O")  # which has another code
    assert len(files(package)) == 2


def test_nobody_else_may_write_it(package: Path) -> None:
    before = os.umask(0)
    try:
        start(package)
    finally:
        os.umask(before)
    (name,) = files(package)
    assert (package / "handrail" / "__pycache__" / name).stat().st_mode & 0o777 == 0o644


def test_a_source_that_was_changed_counts(package: Path) -> None:
    start(package)
    source = package / MODULE
    source.write_text(source.read_text().replace("= 125, 126, 127", "= 99, 126, 127"))
    assert start(package)
    assert start(package) == []
    done = subprocess.run(
        ["sh", "-c", 'mkdir d; cd d; rmdir ../d; exec "$@"', "sh", sys.executable, "-c", RUN,
         "run", "--", "true"],
        env={**os.environ, "PYTHONPATH": str(package)}, cwd=package, capture_output=True,
        timeout=50, check=False,
    )  # fmt: skip
    assert done.returncode == 99


@pytest.mark.parametrize("text", [b"", b"nonsense", b"\xe3" * 100, b"N"])
def test_a_file_that_does_not_read_is_made_anew(package: Path, text: bytes) -> None:
    start(package)
    (name,) = files(package)
    place = package / "handrail" / "__pycache__" / name
    place.write_bytes(text)
    assert start(package)
    assert place.read_bytes() != text
    assert start(package) == []


def test_nothing_is_written_where_that_is_not_wanted(package: Path) -> None:
    assert start(package, PYTHONDONTWRITEBYTECODE="1")
    assert files(package) == []
