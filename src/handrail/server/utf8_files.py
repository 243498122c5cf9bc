"""Small files that must be UTF-8, and the peer's sentence for one that is not."""

from __future__ import annotations

from handrail.errors import HandrailError


class NotText(HandrailError):
    """The bytes are not UTF-8; the sentence says where."""


def decode(data: bytes) -> str:
    """The text of a file; raises NotText."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            text = f"incomplete utf-8 byte sequence from index {error.start}"
        else:
            length = error.end - error.start
            text = f"invalid utf-8 sequence of {length} bytes from index {error.start}"
        raise NotText(text) from None
