"""Checks and converts a caller's command, environment and input.  Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from handrail.errors import UsageError
from handrail.executor.argument_checks import check_size
from handrail.process.env_policy import Inherit, bad_name, without_secrets
from handrail.process.spec import Limits

#: A string for ``/bin/sh -c``, or an argument list that no shell sees.
Command: TypeAlias = "str | Sequence[str | bytes | os.PathLike[str] | os.PathLike[bytes]]"
#: A path; one that is not UTF-8 is given as bytes, or as ``os.fsdecode`` makes it.
AnyPath: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"
#: Variables by name; None removes one.
Env: TypeAlias = "Mapping[str, str | bytes | None]"

SHELL = "/bin/sh"


def to_argv(command: Command | bytes) -> tuple[str | bytes, ...]:
    """The argv to start; raises UsageError for what no program can be given."""
    argv: tuple[str | bytes, ...]
    if isinstance(command, str):
        if not command.strip():
            raise UsageError("the command is empty; give a shell command or a list of words")
        argv = (SHELL, "-c", command)
    elif isinstance(command, (bytes, bytearray)):  # also a sequence, but of numbers
        raise UsageError("a shell command is given as str; bytes may be words of a list")
    elif type(command) is not list and isinstance(command, (Mapping, AbstractSet)):
        # Their words are keys, or have no order.  A list is told without their slow check.
        raise UsageError(
            f"a command is a str, or a list of str, bytes and paths, not a {type(command).__name__}"
        )
    else:
        try:
            argv = tuple(os.fspath(word) for word in command)
        except TypeError as error:
            raise UsageError(
                f"a command is a str, or a list of str, bytes and paths ({error})"
            ) from None
        if not argv or not argv[0]:
            empty = "first word" if argv else "list of words"
            raise UsageError(f"the {empty} is empty; the first word is the program")
    for word in argv:
        if (b"\0" if isinstance(word, bytes) else "\0") in word:  # type: ignore[operator]
            raise UsageError(f"the word {word!r} contains NUL, which no program can be given")
        _check_text(word)
    return argv


def _check_text(word: str | bytes, what: str | None = None) -> None:
    """Refuse lone surrogates that do not stand for a byte; ``what`` is named instead of it."""
    try:
        os.fsencode(word)
    except UnicodeEncodeError:
        raise UsageError(
            f"{what or repr(word)} holds a lone surrogate that stands for no byte"
        ) from None


class Environment:
    """The variables of one child: those of the machine it runs on, and the caller's changes.

    Of the machine's, those that look like a secret are left out, whatever ``inherit`` is.  A
    value of None removes a variable.
    """

    __slots__ = ("overlay", "policy")

    def __init__(self, *changes: Env | None, inherit: Inherit = Inherit.ALL) -> None:
        merged: dict[str, str | bytes | None] = {}
        for change in changes:
            if change is not None and not isinstance(change, Mapping):
                raise UsageError(f"env is a mapping of names to values, not {change!r}")
            merged.update(change or {})
        wrong = bad_name(merged)
        if wrong is not None:
            raise UsageError(
                f"the environment name {wrong!r} cannot be used; names are texts, not empty, and"
                " contain neither = nor NUL"
            )
        self.overlay: dict[str, str] = {}
        for name, value in merged.items():
            _check_text(name)
            if value is None:
                continue
            if not isinstance(value, (str, bytes)) or "\0" in os.fsdecode(value):
                raise UsageError(f"the value of {name} must be str or bytes without NUL, or None")
            _check_text(value, f"the value of {name}")
            self.overlay[name] = os.fsdecode(value)
        removed = sorted(name for name, value in merged.items() if value is None)
        self.policy = without_secrets(inherit, removed)


def to_bytes(data: str | bytes) -> bytes:
    """Input for a process or a file; text is UTF-8.  Raises UsageError for anything else."""
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            shown = data[max(0, error.start - 20) : error.end + 20]
            raise UsageError(f"{shown!r} is no text that UTF-8 knows; give bytes") from None
    try:
        return bytes(memoryview(data))  # bytes(5) would be five zeros
    except TypeError:
        raise UsageError(f"input is str or bytes, not {type(data).__name__}") from None


def to_path(path: AnyPath) -> str:
    """A path as text, which may have surrogates; raises UsageError for what is no path."""
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise UsageError(f"a path is str, bytes or a Path, not {type(path).__name__}") from None
    _check_text(text)
    return text


def check_limits(limits: Limits | None) -> Limits | None:
    """The limits; raises UsageError for what is none."""
    if limits is not None and not isinstance(limits, Limits):
        raise UsageError(f"limits is Limits(...), such as Limits(memory=1 << 30), not {limits!r}")
    return limits


def check_callable(function: object, name: str) -> None:
    """Raises UsageError unless the argument ``name`` is a function or None."""
    if function is not None and not callable(function):
        raise UsageError(f"{name} is a function, such as print, not {function!r}")


def to_size(size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of a terminal; raises UsageError for what is no size."""
    try:
        rows, cols = size
    except (TypeError, ValueError):
        raise UsageError(f"size is (rows, columns), such as (24, 80), not {size!r}") from None
    check_size(rows, cols)
    return rows, cols


def byte_count(value: int, name: str) -> int:
    """The value of the argument ``name``; raises UsageError unless it is a whole number from 0."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(f"{name} must be bytes, such as 64 * 1024 * 1024, not {value!r}")
    return value


def seconds(value: float | None, name: str) -> float | None:
    """The value of the argument ``name``; raises UsageError unless it is a number from 0 on."""
    if value is None:
        return None
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value < float("inf"):
        raise UsageError(f"{name} must be seconds from 0 on, not {value!r}; None is no limit")
    return value


def check_labels(labels: Mapping[str, str] | None) -> dict[str, str]:
    """Labels as they are kept; raises UsageError."""
    if not isinstance(labels, Mapping | None):
        raise UsageError(f"labels are texts by name, such as {{'task': '42'}}, not {labels!r}")
    found = dict(labels or {})
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, str) or not name or "=" in name:
            raise UsageError(
                f"labels are texts by name, such as {{'task': '42'}}, not {name!r}: {value!r}"
            )
    return found
