"""Calls that open something: ``await`` returns it, ``async with`` closes it at the end, too."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from handrail.name_hints import UnknownAttribute, arguments_checked

P = ParamSpec("P")
T_co = TypeVar("T_co", bound=AbstractAsyncContextManager[Any], covariant=True)


class Opening(Coroutine[Any, Any, T_co]):
    """The coroutine of a call that opens something, and a context manager for what it opens.

    So ``async with ws.shell() as sh`` reads as it does in a blocking workspace, and
    ``sh = await ws.shell()`` leaves the closing to the caller.
    """

    __slots__ = ("_opened", "_work")

    def __init__(self, work: Coroutine[Any, Any, T_co]) -> None:
        self._work = work

    # A type checker must not see it: for it every attribute would exist then.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):  # a protocol asks
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            call = f"{self._work.__qualname__}(...)"
            raise UnknownAttribute(
                f"{call} has no {name!r} before it is awaited; use `await {call}` or `async with`"
            )

    def __await__(self) -> Generator[Any, Any, T_co]:
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        """Go on with the call, as the event loop does; raises what it raises."""
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error in the call, as the event loop does; raises what it raises."""
        return self._work.throw(*error)

    def close(self) -> None:
        """Give up the call; raises what it raises."""
        self._work.close()

    async def __aenter__(self) -> T_co:
        self._opened = await self._work
        await self._opened.__aenter__()
        return self._opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._opened.__aexit__(kind, error, trace)


def opens(function: Callable[P, Coroutine[Any, Any, T_co]]) -> Callable[P, Opening[T_co]]:
    """Make a coroutine function that opens something one whose calls are context managers too."""
    checked = arguments_checked(function)

    @wraps(function)
    def call(*given: Any, **options: Any) -> Opening[T_co]:
        return Opening(checked(*given, **options))

    return call
