"""``scripts/setup`` installs for each target what that needs, and says so before it does.

Programs of the machine are stand-ins that write down how they were called.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
TOOLS = ("sh", "env", "dirname", "cksum", "cat", "grep", "id", "tail")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A copy of what the script reads, on a machine without bubblewrap and sshd."""
    for name in ("pyproject.toml", "requirements-dev.lock", "scripts/setup"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(HOME / name, tmp_path / name)
    script = tmp_path / "scripts/setup"
    found = script.read_text()
    assert "$PATH:/usr/sbin:/sbin" in found  # where this machine may have an sshd
    script.write_text(found.replace("$PATH:/usr/sbin:/sbin", "$PATH"))
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in TOOLS:
        program = shutil.which(name)
        assert program is not None
        (tools / name).symlink_to(program)
    stand_in(tools / "apt-get", f'echo "$*" >>{tmp_path}/calls\necho noise\n')
    stand_in(tools / "sudo", '[ "$*" = "-n true" ] || { shift; exec "$@"; }\n')
    return tmp_path


def stand_in(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)


def set_up(machine: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [machine / "scripts/setup", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
        env={"PATH": str(machine / "tools"), "VENV": "made", "HOME": str(machine)},
    )


def ready(machine: Path) -> None:
    """Leave nothing for pip to do."""
    script = "cksum pyproject.toml requirements-dev.lock scripts/setup | cksum"
    wanted = subprocess.run(["sh", "-c", script], check=True, cwd=machine, capture_output=True)
    (machine / "made").mkdir()
    (machine / "made/.ready").write_bytes(wanted.stdout)


@pytest.mark.parametrize(
    ("kind", "packages"),
    [
        ("demo", ["bubblewrap"]),
        ("dev", ["bubblewrap"]),
        ("test", ["bubblewrap", "openssh-server openssh-client curl iproute2"]),
        ("docs", []),
    ],
)
def test_each_target_installs_and_announces_what_it_needs(
    machine: Path, kind: str, packages: list[str]
) -> None:
    ready(machine)
    done = set_up(machine, kind)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "installing system packages" in line]
    assert said == [f"setup: installing system packages by apt-get: {one}" for one in packages]
    calls = machine / "calls"
    called = calls.read_text().splitlines() if calls.exists() else []
    assert [line.split(" -qq ")[1] for line in called] == packages
    assert "noise" not in done.stdout + done.stderr


def test_a_machine_that_cannot_install_is_told_what_is_missing(machine: Path) -> None:
    ready(machine)
    (machine / "tools/apt-get").unlink()
    done = set_up(machine, "demo")
    assert done.returncode == 0
    assert "bubblewrap is missing" in done.stderr
    assert not (machine / "calls").exists()


def test_failures_of_pip_are_shown_and_kept(machine: Path) -> None:
    python = machine / "made/bin/python"
    python.parent.mkdir(parents=True)
    stand_in(
        python,
        'case "$*" in *install*) echo "no such wheel"; exit 1;; -c*) echo 3.11;; esac\n',
    )
    stand_in(machine / "tools/python3", 'case "$1" in --version) echo Python 3.11;; esac\n')
    done = set_up(machine, "demo")
    assert done.returncode == 1
    assert "setup: making made with Python 3.11 (once" in done.stderr
    assert "no such wheel" in done.stderr
    assert "made/setup.log" in done.stderr
    assert "no such wheel" in (machine / "made/setup.log").read_text()
    assert not (machine / "made/.ready").exists()


def test_an_unknown_target_is_refused(machine: Path) -> None:
    done = set_up(machine, "everything")
    assert done.returncode == 2
    assert "usage: scripts/setup" in done.stderr
    assert not (machine / "made").exists()
