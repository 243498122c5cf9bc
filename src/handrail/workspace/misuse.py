"""Answers mistaken names of attributes and arguments with a UsageError that says what to use."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from handrail.errors import UsageError

T = TypeVar("T")


class UnknownAttribute(UsageError, AttributeError):
    """There is no such attribute; an AttributeError too, or ``hasattr`` would raise it."""


class NamesChecked:
    """Base class whose unknown attributes raise a UsageError with the nearest name."""

    # A type checker must not see it: for it every attribute would exist then.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            if name.startswith("_"):  # a protocol asks, such as copy or pickle
                raise AttributeError(f"{kind!r} object has no attribute {name!r}")
            public = [one for one in dir(type(self)) if not one.startswith("_")]
            raise UnknownAttribute(f"a {kind} has no {name!r}{_nearest(name, public)}")


def call_checked(
    function: Callable[..., Coroutine[Any, Any, T]], *given: Any, **options: Any
) -> Coroutine[Any, Any, T]:
    """Call a coroutine function; raises UsageError for an option that it does not have."""
    try:
        return function(*given, **options)
    except TypeError:
        import inspect

        parameters = inspect.signature(function).parameters.values()
        known = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
        for name in options:
            if name not in known:
                raise UsageError(f"there is no option {name!r}{_nearest(name, known)}") from None
        raise


def _nearest(name: str, names: Iterable[str]) -> str:
    import difflib

    names = sorted(names)
    near = difflib.get_close_matches(name, names, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names)}"
