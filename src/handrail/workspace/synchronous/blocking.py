"""What the blocking versions of sessions and exposures share: calls on the loop, and an end."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, Self, TypeVar

from handrail.name_hints import NamesChecked


class Closing(Protocol):
    """An asynchronous object that can be closed."""

    async def close(self) -> None: ...


class Restarting(Closing, Protocol):
    """An asynchronous session."""

    async def interrupt(self) -> None: ...
    async def restart(self) -> None: ...


C = TypeVar("C", bound=Closing)
S = TypeVar("S", bound=Restarting)


class Blocking(NamesChecked, Generic[C]):
    """The blocking version of an asynchronous object; as a context manager it closes it."""

    def __init__(self, twin: C, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._twin = twin
        self._call = call

    def __repr__(self) -> str:
        return repr(self._twin).replace(type(self._twin).__name__, type(self).__name__, 1)

    def close(self) -> None:
        """End it, as ``close`` of the asynchronous version; can be repeated, raises nothing."""
        self._call(self._twin.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockingSession(Blocking[S]):
    """The blocking version of a shell session or a Python session."""

    def interrupt(self) -> None:
        """Interrupt what another thread runs; raises ExecutorTransportFailed."""
        self._call(self._twin.interrupt())

    def restart(self) -> None:
        """End the program with its background jobs, and start another, without the state.

        Raises ExecutorSpawnFailed, and of Python UsageError when its machine has not the packages.
        """
        self._call(self._twin.restart())
