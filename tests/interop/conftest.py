"""The program under test, the servers, and rooms for the tasks."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import tool_server
from tests.interop.codex import NoCodex, cache_dir, find_codex
from tests.interop.kinds import KINDS, Servers
from tests.interop.stage import Stage


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "interop: the real Codex command line, as a client")


@pytest.fixture(scope="session")
def codex() -> str:
    """The released Codex command line."""
    try:
        return find_codex()
    except NoCodex as why:
        pytest.skip(str(why))


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """A directory outside the system's temporary one, which sandboxes leave writable."""
    parent = cache_dir() / "interop"
    parent.mkdir(parents=True, exist_ok=True)
    base = Path(tempfile.mkdtemp(prefix="run-", dir=parent)).resolve()
    yield base
    shutil.rmtree(base)


@pytest.fixture(scope="module")
def servers(codex: str, base: Path) -> Iterator[Servers]:
    """One listening server of each sort; none may leave anybody behind."""
    home = base / "server"
    home.mkdir()
    servers = Servers(codex, home)
    for kind in KINDS:
        if kind.transport == "ws":
            servers.url(kind)  # before a test counts its processes
    yield servers
    for who, leftovers in servers.stop().items():
        assert leftovers == [], who


@pytest.fixture
def stage(codex: str, base: Path) -> Iterator[Stage]:
    """A room for one turn."""
    room = Path(tempfile.mkdtemp(prefix="task-", dir=base))
    yield Stage(codex, room)
    shutil.rmtree(room)


@pytest.fixture(scope="module")
def tool_url() -> Iterator[str]:
    """A tool server over HTTP."""
    with tool_server.over_http() as url:
        yield url
