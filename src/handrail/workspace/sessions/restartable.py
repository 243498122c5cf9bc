"""What shell and Python sessions share: one program, which can be ended and started again."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Generic, Protocol, Self, TypeVar

from handrail.name_hints import NamesChecked
from handrail.workspace.uncancellable import to_the_end


class Life(Protocol):
    """A program of a session, from its start to its end."""

    async def end(self) -> None: ...


L = TypeVar("L", bound=Life)


class RestartableSession(NamesChecked, Generic[L]):
    """A session with one program at a time; ``_lock`` guards which one it is."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._life: L | None = None

    @abstractmethod
    async def _begin(self) -> L:
        """Start the program; raises ExecutorSpawnFailed."""

    async def _open(self) -> Self:
        """Start the program unless it was started; raises what ``_begin`` raises."""
        async with self._lock:
            if self._life is None:
                self._life = await self._begin()
        return self

    async def restart(self) -> None:
        """End the program with its background jobs, and start another, without the state.

        Raises ExecutorSpawnFailed, and of Python UsageError when its machine has not the packages.
        """
        await self.close()
        await self._open()

    async def close(self) -> None:
        """End the program with its background jobs; can be repeated and raises nothing."""
        life = self._life
        if life is not None:
            await to_the_end(life.end())
            async with self._lock:
                if self._life is life:
                    self._life = None

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()
