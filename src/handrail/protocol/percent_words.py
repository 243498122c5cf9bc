"""Arguments that are not UTF-8: percent-encoded, as in ``file:`` URIs.  Pure.

JSON has only Unicode strings, while arguments and variables are bytes.
"""

from __future__ import annotations

from urllib.parse import quote_from_bytes, unquote_to_bytes

#: Not encoded, so that the text stays readable; neither are letters and digits.
_SAFE = "/!$&'()*+,-.:;=@_~[]|^ <>{}?#\"\\`"


def encode(word: bytes) -> str:
    """Encode an argument for ``words: percent``."""
    return quote_from_bytes(word, safe=_SAFE)


def decode(text: str) -> str:
    """Decode an argument; bytes that are not UTF-8 become lone surrogates, as in ``os``."""
    if "%" not in text:
        return text
    return unquote_to_bytes(text).decode("utf-8", "surrogateescape")
