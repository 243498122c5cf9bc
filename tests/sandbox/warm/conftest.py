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

from handrail import AsyncWorkspace, private_places
from handrail.executor.local import LocalExecutor
from handrail.keeper.proc_children import children_of
from handrail.sandbox import probe
from handrail.sandbox.warm import demand, pool
from handrail.sandbox.warm.pool import WarmSandboxes
from handrail.sandbox.warm.waiting_sandbox import WaitingSandbox
from tests.support.eventually import eventually_so

Warm = Callable[..., AbstractAsyncContextManager["Warmed"]]


class Warmed:
    """A workspace, and the sandboxes that wait for it."""

    def __init__(self, ws: AsyncWorkspace, executor: LocalExecutor) -> None:
        self.ws = ws
        self.executor = executor

    def _found(self) -> WarmSandboxes | None:
        """There is none before the second command."""
        sandbox = self.executor._sandbox
        return None if sandbox is None else sandbox._sandbox._warm

    @property
    def standing(self) -> list[WaitingSandbox]:
        found = self._found()
        lines = [] if found is None else found._lines.values()
        return [one for line in lines for one in line.standing]

    @property
    def used(self) -> int:
        found = self._found()
        return 0 if found is None else found.used

    @property
    def started(self) -> int:
        """How many commands started in a copy, that had waited or not."""
        found = self._found()
        return 0 if found is None else found.used + found.copied

    @property
    def pool(self) -> WarmSandboxes:
        found = self._found()
        assert found is not None
        return found

    async def wait(self, count: int = 2) -> None:
        """Until so many wait."""
        while len(self.standing) < count:
            await self.ws.run("true")
            with contextlib.suppress(AssertionError):  # other programs make plans false, too
                await eventually_so(lambda: len(self.standing) >= count, limit=2)

    @asynccontextmanager
    async def resting(self) -> AsyncIterator[None]:
        """None is made meanwhile: one that is made after a change may rightly be used."""
        most, self.pool._most = self.pool._most, 0
        await eventually_so(lambda: self.pool._maker is None, "none is being made")
        yield
        self.pool._most = most

    async def run(self, command: str, *, ahead: bool = True) -> Any:
        """Run a command; ``ahead``: from one that waited, else never from one."""
        for _ in range(50):
            before = self.used
            result = await self.ws.run(command)
            if (self.used > before) is ahead:
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
    monkeypatch.delenv("HANDRAIL_WARM", raising=False)
    if not pool.possible(probe.bubblewrap()):
        pytest.skip("no sandbox can wait on this machine")
    # Servers of other tests come and go, and the places that they keep private.
    monkeypatch.setattr(private_places, "revision", lambda: (len(private_places._added),))
    monkeypatch.setattr(private_places, "remembered", lambda **_: [])
    # Longer than a busy machine takes.
    monkeypatch.setattr(demand, "BURST_SECONDS", 60.0)
    monkeypatch.setattr(demand, "KEEP_SECONDS", 120.0)

    @asynccontextmanager
    async def made(root: Path, **options: Any) -> AsyncIterator[Warmed]:
        os.makedirs(root, exist_ok=True)
        executor = LocalExecutor()
        try:
            async with AsyncWorkspace(root, executor=executor, **options) as ws:
                yield Warmed(ws, executor)
        finally:
            await executor.close()

    return made


@pytest.fixture
def forced(warm: Warm, monkeypatch: pytest.MonkeyPatch) -> Warm:
    """Every command starts in a copy, from the first on."""
    monkeypatch.setenv("HANDRAIL_WARM", "on")
    return warm


async def copied(warmed: Warmed, command: str, **options: object) -> str:
    """What a command says that started in a copy; other programs make plans false, too."""
    for _ in range(10):
        before = warmed.started
        result = await warmed.ws.run(command, **options)
        if warmed.started > before:
            return str(result.stdout)
    raise AssertionError("it never started in a copy")


def commands(keeper: int, name: str) -> list[int]:
    """The processes of this name that are commands of sandboxes below a keeper."""
    first = [pid for outer in children_of(keeper) for pid in children_of(outer)]
    found = [pid for one in first for pid in children_of(one)]
    return [pid for pid in found if Path(f"/proc/{pid}/comm").read_text() == f"{name}\n"]
