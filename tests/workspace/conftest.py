"""Workspaces without a sandbox in a directory of their own, and nothing left behind."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from handrail import Workspace
from handrail.workspace import loop_thread
from tests.server.process_kit import nothing_left


@pytest.fixture(autouse=True)
def _tidy() -> Iterator[None]:
    loop_thread.bridge()  # its thread and its descriptors stay, by design
    with nothing_left():
        yield


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace(tmp_path, sandbox="off") as workspace:
        yield workspace


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Tests that are coroutines; whatever the loop complains about fails them."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    complaints: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, c: complaints.append(c))
        async with asyncio.timeout(55):
            await pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})

    asyncio.run(watched())
    assert complaints == []
    return True
