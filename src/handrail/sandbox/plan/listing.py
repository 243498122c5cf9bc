"""The names in a directory as one text: each behind its kind, with a zero at its end.  Pure.

``directory_reader`` has them so.  Most directories are asked only whether anything of interest is
in them, for which one search of the text is enough.
"""

from __future__ import annotations

import re

#: Added to what the kernel says of a kind (d_type), so that it is never zero.
KIND = 0x40
DIRECTORY = b"D"
_UNKNOWN = b"@"
_INSIDE = re.compile(rb"(?:\A|\0)([@D])([^\0]+)")


def names(listed: bytes) -> list[bytes]:
    """All names in a directory."""
    return [name[1:] for name in listed.split(b"\0")[:-1]]


def directories(listed: bytes) -> list[bytes] | None:
    """The names of the directories among them; None: the file system does not tell the kinds."""
    found = _INSIDE.findall(listed)
    if any(kind == _UNKNOWN for kind, _ in found):
        return None
    return [name for _, name in found]


def kind(listed: bytes, name: bytes) -> bytes:
    """The kind of one of them; empty: there is none of that name."""
    found = re.search(rb"(?:\A|\0)([@-O])" + re.escape(name) + rb"\0", listed)
    return found[1] if found else b""
