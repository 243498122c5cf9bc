"""Checks a model's arguments before anything reads them: an object with valid text."""

from __future__ import annotations

from collections.abc import Mapping

from handrail.errors import UsageError


def check_arguments(arguments: object) -> None:
    """Raise UsageError, with a sentence for the model, for arguments that cannot be used."""
    if not isinstance(arguments, Mapping):
        raise UsageError("failed to parse function arguments: expected an object with named fields")
    for name, value in arguments.items():
        if not _can_be_sent(name) or not _can_be_sent(value):
            raise UsageError(
                f"failed to parse function arguments: `{ascii(name)[1:-1]}` holds half of a"
                " surrogate pair, which is no character: write the whole character"
            )


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
