"""Reads a model's arguments, as an object or as JSON text, and checks that their text is valid."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from handrail.errors import UsageError


def read_arguments(arguments: object) -> Mapping[str, Any]:
    """The arguments by name; raises UsageError, with a sentence for the model.

    An empty text stands for no arguments, as some models write it.
    """
    if isinstance(arguments, str | bytes | bytearray):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise UsageError(f"failed to parse function arguments: no JSON: {error}") from None
    if not isinstance(arguments, Mapping):
        raise UsageError("failed to parse function arguments: expected an object with named fields")
    for name, value in arguments.items():
        if not _can_be_sent(name) or not _can_be_sent(value):
            raise UsageError(
                f"failed to parse function arguments: `{ascii(name)[1:-1]}` holds half of a"
                " surrogate pair, which is no character: write the whole character"
            )
    return arguments


def _can_be_sent(value: object) -> bool:
    """Whether every text in it is UTF-8: JSON can spell half a surrogate pair, UTF-8 cannot."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
    elif isinstance(value, Mapping):
        return all(_can_be_sent(part) for pair in value.items() for part in pair)
    elif isinstance(value, list | tuple):
        return all(_can_be_sent(part) for part in value)
    return True
