"""The names in a directory as one text: each behind its kind, with a zero at its end.  Pure.

``directory_reader`` has them so.  Most directories are asked only whether anything of interest is
in them, for which one search of the text is enough.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re

#: Added to what the kernel says of a kind (d_type), so that it is never zero.
KIND = 0x40
DIRECTORY = b"D"
_UNKNOWN = b"@"
#: The pattern of directories and what may be one, once it was needed: most starts need none.
_inside: list[re.Pattern[bytes]] = []


def names(listed: bytes) -> list[bytes]:
    """All names in a directory."""
    return [name[1:] for name in listed.split(b"\0")[:-1]]


def directories(listed: bytes) -> list[bytes] | None:
    """The names of the directories among them; None: the file system does not tell the kinds."""
    if not _inside:
        import re

        _inside.append(re.compile(rb"(?:\A|\0)([@D])([^\0]+)"))
    found = _inside[0].findall(listed)
    if any(kind == _UNKNOWN for kind, _ in found):
        return None
    return [name for _, name in found]


def kind(listed: bytes, name: bytes) -> bytes:
    """The kind of one of them; empty: there is none of that name."""
    at = listed.find(name + b"\0")
    while at > 0:
        if at == 1 or not listed[at - 2]:
            return listed[at - 1 : at]
        at = listed.find(name + b"\0", at + 1)
    return b""
