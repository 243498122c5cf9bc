"""Words of a command that are no text: percent-encoded, as in ``file:`` URIs.  Pure.

JSON has strings of Unicode and nothing else, while arguments and variables are bytes.
"""

from __future__ import annotations

from urllib.parse import quote_from_bytes, unquote_to_bytes

#: Left as they are, so that what travels can be read; everything else outside letters is encoded.
_SAFE = "/!$&'()*+,-.:;=@_~[]|^ <>{}?#\"\\`"


def encode(word: bytes) -> str:
    """A word as it travels with ``words: percent``."""
    return quote_from_bytes(word, safe=_SAFE)


def decode(text: str) -> str:
    """The word that was meant; bytes that are no UTF-8 are lone surrogates, as in ``os``."""
    if "%" not in text:
        return text
    return unquote_to_bytes(text).decode("utf-8", "surrogateescape")
