"""Events and answers with the secrets of a workspace masked in all their texts.  Pure.

Output is masked where it is read.  A command, a directory or what is typed is a model's own text,
and has a secret only if the model was told it elsewhere; a log of it should not have one either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from handrail.secret_masks import Secrets

T = TypeVar("T")


def masked_record(record: T, secrets: Secrets) -> T:
    """The dataclass with its texts masked, also in tuples and in dataclasses of its fields."""
    if not secrets:
        return record
    changed = {
        one.name: shown
        for one in fields(record)  # type: ignore[arg-type]
        if (shown := _masked(value := getattr(record, one.name), secrets)) is not value
    }
    return replace(record, **changed) if changed else record  # type: ignore[type-var]


def masked_listener(listener: Callable[[T], None], secrets: Secrets) -> Callable[[T], None]:
    """The listener, told events with their texts masked."""
    if not secrets:
        return listener
    return lambda event: listener(masked_record(event, secrets))


def _masked(value: Any, secrets: Secrets) -> Any:
    if type(value) is str:  # and no enum
        shown = secrets.masked_text(value)
        return value if shown == value else shown
    if isinstance(value, tuple):
        words = tuple(_masked(one, secrets) for one in value)
        return value if all(a is b for a, b in zip(words, value, strict=True)) else words
    if is_dataclass(value) and not isinstance(value, type):
        return masked_record(value, secrets)
    return value
