"""A supervisor is made for a command that needs one, and for no other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from handrail import AsyncWorkspace
from handrail.sandbox.syscalls import supervisor

#: Makes one call that is announced.
CONNECT = "import socket; socket.socket(socket.AF_UNIX).connect_ex('missing')"


@pytest.mark.parametrize(("code", "made"), [("pass", 0), (CONNECT, 1)])
async def test_the_end_of_a_command_makes_no_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, made: int
) -> None:
    """The kernel reports the end of all processes on the listener, as it does a call."""
    found: list[object] = []

    class Counted(supervisor.Supervisor):
        def __init__(self, *args: object) -> None:
            found.append(self)
            super().__init__(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(supervisor, "Supervisor", Counted)
    async with AsyncWorkspace(tmp_path, sandbox="workspace-write") as ws:
        for _ in range(3):
            result = await ws.run([sys.executable, "-I", "-S", "-c", code])
            assert result.exit is not None
            assert result.exit.code == 0, result
    assert len(found) == 3 * made
