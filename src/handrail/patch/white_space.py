"""Which characters count as white space, for the grammar and for the lenient searches.

The Unicode property White_Space.  ``str.strip()`` alone would also take U+001C to U+001F,
which the patch format treats as text.
"""

from __future__ import annotations

WHITE_SPACE = "".join(
    (
        "\t\n\v\f\r \x85\xa0\u1680",
        "".join(map(chr, range(0x2000, 0x200B))),
        "\u2028\u2029\u202f\u205f\u3000",
    )
)


def strip(text: str) -> str:
    """``text`` without white space at both ends."""
    return text.strip(WHITE_SPACE)


def strip_end(text: str) -> str:
    """``text`` without white space at its end."""
    return text.rstrip(WHITE_SPACE)
