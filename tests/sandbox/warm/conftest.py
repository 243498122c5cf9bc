"""A workspace whose commands start from sandboxes that wait."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from handrail import AsyncWorkspace
from handrail.executor.local import LocalExecutor
from handrail.sandbox import probe
from handrail.sandbox.warm import demand, pool
from handrail.sandbox.warm.waiting_sandbox import WaitingSandbox
from tests.support.eventually import eventually_so

Warm = Callable[..., AbstractAsyncContextManager["Warmed"]]


class Warmed:
    """A workspace, and the sandboxes that wait for it."""

    def __init__(self, ws: AsyncWorkspace, executor: LocalExecutor) -> None:
        self.ws = ws
        self.executor = executor

    @property
    def pool(self) -> pool.WarmSandboxes:
        found = self.executor._sandbox._sandbox._warm  # type: ignore[union-attr]
        assert found is not None
        return found

    @property
    def standing(self) -> list[WaitingSandbox]:
        if self.executor._sandbox is None:
            return []
        return [one for line in self.pool._lines.values() for one in line.standing]

    async def wait(self, count: int = 2) -> None:
        """Until so many wait."""
        while len(self.standing) < count:
            await self.ws.run("true")
            with contextlib.suppress(AssertionError):  # other programs make plans false, too
                await eventually_so(lambda: len(self.standing) >= count, limit=2)

    async def run(self, command: str, *, ahead: bool = True) -> Any:
        """Run a command; ``ahead``: from one that waited, else never from one."""
        for _ in range(50):
            before = self.pool.used
            result = await self.ws.run(command)
            if (self.pool.used > before) is ahead:
                return result
            assert ahead, f"it was started from one that waited: {result}"
            await self.wait(1)
        raise AssertionError("none could ever be used")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not in a temporary directory that other programs use."""
    made = Path(tempfile.mkdtemp(prefix="handrail-warm-", dir="/var/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> Warm:
    monkeypatch.setenv("HANDRAIL_WARM", "demand")
    if not pool.possible(probe.bubblewrap()):
        pytest.skip("no sandbox can wait on this machine")
    # Longer than a busy machine takes.
    monkeypatch.setattr(demand, "KEEP_VISIBLE_SECONDS", 60.0)
    monkeypatch.setattr(demand, "RECENT_SECONDS", 60.0)

    @asynccontextmanager
    async def made(root: Path, **options: Any) -> AsyncIterator[Warmed]:
        os.makedirs(root, exist_ok=True)
        executor = LocalExecutor()
        try:
            async with AsyncWorkspace(root, executor=executor, **options) as ws:
                # Commands that share a network start cold.
                ws._location.loopback = None  # type: ignore[assignment]
                yield Warmed(ws, executor)
        finally:
            await executor.close()

    return made
