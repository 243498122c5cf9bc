"""What is imported before a command starts: people wait for every module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: Each of them took longer than what it was wanted for.
DEAR = {"argparse", "asyncio", "dataclasses", "enum", "re", "signal", "struct", "typing"}
DEAR |= {"threading", "collections"}


@pytest.mark.parametrize("sandbox", ["off", "workspace-write"])
def test_nothing_dear_is_imported_for_a_single_command(sandbox: str, tmp_path: Path) -> None:
    # The script, for -m itself imports some of them.
    script = str(Path(sys.executable).with_name("handrail"))
    argv = [sys.executable, "-X", "importtime", script, "run", "--sandbox", sandbox]
    done = subprocess.run(
        [*argv, "--", "true"], cwd=tmp_path, capture_output=True, text=True, timeout=50, check=True
    )
    imported = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    ours = imported[imported.index("handrail") :]  # before it: the interpreter's own
    assert DEAR.isdisjoint(ours)
    assert sandbox == "off" or {"hashlib", "resource"}.isdisjoint(ours)
    assert "handrail.sandbox.plan.path_rules" in ours or sandbox == "off"


def test_the_package_itself_is_next_to_nothing() -> None:
    script = "import sys; before = {*sys.modules}; import handrail; print(*{*sys.modules} - before)"
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"handrail"}


def test_the_list_of_commands_needs_none_of_their_modules() -> None:
    argv = [sys.executable, "-X", "importtime", "-m", "handrail", "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=50, check=True)
    assert "apply-patch" in done.stdout
    assert "handrail.cli.commands" not in done.stderr


def test_a_server_starts_without_what_only_some_requests_need() -> None:
    script = "import handrail.server.app, sys; print(*sys.modules)"
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    later = {"config", "capabilities", "files", "files_sandboxed", "http"}
    unwanted = {f"handrail.server.methods.{name}" for name in later} | {"tomllib", "argparse"}
    assert unwanted.isdisjoint(done.stdout.split())


def test_the_keeper_is_started_before_the_event_loop_is_imported() -> None:
    script = (
        "import sys\n"
        "from handrail.process.keeper_client import start_keeper\n"
        "def start(**_): print(*sys.modules); sys.exit(0)\n"
        "start_keeper.start_keeper = start\n"
        "sys.argv[1:] = ['serve', '--listen', 'stdio']\n"
        "from handrail.__main__ import main\n"
        "main()\n"
    )
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=50, check=True)
    loaded = set(done.stdout.split())
    assert "handrail.server.recovery.state_dir" in loaded
    assert {"asyncio", "ssl", "uvloop", "msgspec", "handrail.server.app"}.isdisjoint(loaded)
