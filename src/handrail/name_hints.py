"""Answers mistaken attributes and arguments with a UsageError that says what to use.

Names are checked, and the values of arguments that are flags or texts: of a flag Python would take
every value, and a text of another type would fail where it is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterable
from functools import cache, wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from handrail.errors import UsageError

T = TypeVar("T")
#: ``inspect.CO_COROUTINE``; that module is slow to load.
CO_COROUTINE = 0x80
#: Annotation -> the types of its values, and how they are called.
_VALUES: dict[object, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "True or False"),
    "bool | None": ((bool, type(None)), "True, False or None"),
    "str": ((str,), "a str"),
    "str | None": ((str, type(None)), "a str or None"),
}
#: Names of ``subprocess`` that are not near to ours -> ours, the first that there is.
_OF_SUBPROCESS = {
    "kill": ("terminate",),
    "poll": ("exit",),
    "returncode": ("exit_code", "exit"),
    "communicate": ("result",),
    "send_signal": ("signal",),
    "stdin": ("send",),
    "stdout": ("lines",),
    "stderr": ("lines",),
    "pid": ("id",),
    "Popen": ("start",),
    "popen": ("start",),
    "exec": ("run",),
    "call": ("run",),
    "check_call": ("run",),
    "check_output": ("run",),
}
#: Argument -> what is said of it when its value has the wrong type.
_EXAMPLES = {"at": ", an address such as 'ssh://box' or 'ws://box:8443'"}


class UnknownAttribute(UsageError, AttributeError):
    """There is no such attribute; an AttributeError too, or ``hasattr`` would raise it."""


class AttributesChecked:
    """Base class whose unknown attributes raise a UsageError with the nearest name."""

    __slots__ = ()

    # A type checker must not see it: for it every attribute would exist then.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):  # a protocol asks, such as copy or pickle
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise unknown_attribute(_with_article(type(self)), name, dir(self))


class NamesChecked(AttributesChecked):
    """The same, and so do unknown arguments of its public methods and of the class itself.

    An attribute that cannot be set raises one too: what a workspace was given as ``sandbox`` or
    ``env`` does not change when a caller sets an attribute of that name.

    What is made by the thousand, and not by its user, has attributes checked alone.
    """

    __slots__ = ()

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None:
            if not name.startswith("_"):
                _check_settable(type(self), name)
            super().__setattr__(name, value)

        def __init_subclass__(cls, **more: Any) -> None:
            super().__init_subclass__(**more)
            _add_refusals(cls)
            for name, member in list(vars(cls).items()):
                if name.startswith("_") and name != "__init__":
                    continue
                if isinstance(member, FunctionType):
                    setattr(cls, name, arguments_checked(member))
                elif isinstance(member, classmethod):
                    setattr(cls, name, classmethod(arguments_checked(member.__func__)))


#: What a statement looks up first, what else -> the same of its twin, and both statements.
_STATEMENTS = (
    (("__enter__", "__exit__"), "__aenter__", "with", "async with"),
    (("__aenter__", "__aexit__"), "__enter__", "async with", "with"),
    (("__iter__",), "__aiter__", "for", "async for"),
    (("__aiter__",), "__iter__", "async for", "for"),
)


def _add_refusals(cls: type) -> None:
    """Have the statement that is for the twin of a class raise a UsageError with the right one."""
    for looked_up, twin, wrong, right in _STATEMENTS:
        if not hasattr(cls, twin) or hasattr(cls, looked_up[0]):
            continue

        def refuse(self: object, *_: object, wrong: str = wrong, right: str = right) -> None:
            raise UsageError(f"{_with_article(type(self))} is for `{right}`, not for `{wrong}`")

        for name in looked_up:
            setattr(cls, name, refuse)


def _check_settable(kind: type, name: str) -> None:
    """Refuse what would have no effect; a caller's own subclass may have attributes of its own."""
    if kind.__module__.partition(".")[0] != __package__:
        return
    there = getattr(kind, name, None)
    if isinstance(there, property) and there.fset is None:
        raise UnknownAttribute(
            f"{name!r} of {_with_article(kind)} cannot be set; give it as an argument"
        )
    if there is None and name not in kind.__annotations__:
        raise UnknownAttribute(
            f"{_with_article(kind)} has no {name!r} to be set; give it as an argument"
        )


def _with_article(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"


def unknown_attribute(owner: str, name: str, names: Iterable[str]) -> UnknownAttribute:
    """The error for an attribute that its owner does not have, with the nearest public name."""
    public = [one for one in names if not one.startswith("_")]
    meant = next((one for one in _OF_SUBPROCESS.get(name, ()) if one in public), None)
    hint = f"; did you mean {meant!r}?" if meant else _nearest(name, public)
    return UnknownAttribute(f"{owner} has no {name!r}{hint}")


def unknown_option(name: str, known: Iterable[str]) -> UsageError:
    """The error for an argument that a function does not take, with the nearest one it does."""
    return UsageError(f"there is no option {name!r}{_nearest(name, known)}")


def arguments_checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; arguments that it does not take, misses or mistakes are a UsageError."""
    if hasattr(function, "__wrapped__"):
        return function  # a dataclass with slots is made twice
    values = _values(function)

    if function.__code__.co_flags & CO_COROUTINE:

        @wraps(function)
        async def call_async(*given: Any, **options: Any) -> Any:
            try:
                work = function(*given, **options)
            except TypeError as error:
                raise _wrong_arguments(function, options, error) from None
            try:
                _check_values(values, given, options)
            except UsageError:
                work.close()
                raise
            return await work

        return call_async

    @wraps(function)
    def call(*given: Any, **options: Any) -> Any:
        if values:
            _check_values(values, given, options)
        try:
            return function(*given, **options)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                raise  # from within
            raise _wrong_arguments(function, options, error) from None

    return call


def _values(function: Callable[..., Any]) -> dict[str, tuple[int, tuple[type, ...], str]]:
    """The flags and texts among the arguments: position, types of values, how they are called."""
    code = function.__code__
    places = dict.fromkeys(
        code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount], sys.maxsize
    )  # by name alone: what is given at their place is one of any number
    places |= {name: place for place, name in enumerate(code.co_varnames[: code.co_argcount])}
    return {
        name: (places[name], *_VALUES[kind])
        for name, kind in function.__annotations__.items()
        if kind in _VALUES and name in places
    }


_known_values = cache(_values)


def _check_values(
    values: dict[str, tuple[int, tuple[type, ...], str]],
    given: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    for name, (place, kind, words) in values.items():
        if name in options:
            value = options[name]
        elif place < len(given):
            value = given[place]
        else:
            continue
        if not isinstance(value, kind):
            # Instead of a str its type alone: a token that was given as bytes must not be shown.
            shown = type(value).__name__ if kind[0] is str else repr(value)
            words += _EXAMPLES.get(name, "")
            raise UsageError(f"{name}= takes {words}, not {shown}")


def _wrong_arguments(
    function: Callable[..., Any], options: Iterable[str], error: TypeError
) -> UsageError:
    import inspect

    parameters = inspect.signature(function).parameters
    known = [
        name
        for name, one in parameters.items()
        if name not in ("self", "cls") and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    for name in options:
        if name not in known:
            return unknown_option(name, known)
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        known.append("other options by their names")
    return UsageError(f"{error}; it takes {', '.join(known) or 'no arguments'}")


def call_checked(
    function: Callable[..., Coroutine[Any, Any, T]], *given: Any, **options: Any
) -> Coroutine[Any, Any, T]:
    """Call a coroutine function; raises UsageError for an option that it lacks or mistakes."""
    _check_values(_known_values(function), (), options)
    try:
        return function(*given, **options)
    except TypeError:
        import inspect

        parameters = inspect.signature(function).parameters.values()
        known = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
        for name in options:
            if name not in known:
                raise unknown_option(name, known) from None
        raise


def _nearest(name: str, names: Iterable[str]) -> str:
    import difflib

    names = sorted(names)
    near = difflib.get_close_matches(name, names, 1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; there are {', '.join(names)}" if names else "; there is none"
