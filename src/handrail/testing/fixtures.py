"""Fixtures for pytest: ``pytest_plugins = ["handrail.testing.fixtures"]``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from handrail.executor.fake import FakeExecutor

#: How long a server may take to end its children and itself.
_STOP_SECONDS = 20.0


@pytest.fixture
def fake_executor() -> FakeExecutor:
    """A scripted executor without scripts; add them with ``replies`` and ``on``."""
    return FakeExecutor()


@pytest.fixture
def handrail_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real server on a loopback port; it and its processes end with the test."""
    state = tmp_path_factory.mktemp("handrail") / "state"
    server = subprocess.Popen(
        [sys.executable, "-P", "-m", "handrail", "serve", "--state-dir", str(state)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    with server:
        try:
            url = server.stdout.readline().strip() if server.stdout is not None else ""
            if not url:
                pytest.fail("the server did not start; its stderr says why")
            yield url
        finally:
            server.terminate()
            try:
                server.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
