"""Shell text -> tree-sitter's syntax tree, for policy and patches, which both read scripts.

tree-sitter and its grammar are imported at the first script.  The grammar's scanner passes code
points to C's ``isalnum`` family, which knows 384 of them: ``{`` before a character beyond ends the
whole process with SIGSEGV (tree-sitter-bash 0.25.1, found by fuzzing), and which of the others are
letters depends on the libc.  Therefore the grammar never sees such a character, but as many bytes
in its place, so that every offset stays: ``a`` for letters and digits, and for others ``§``, which
is none and has no meaning.  So ``é=1 x`` is an assignment, as in zsh and to the peer; in bash it is
a command of that name.  The words themselves are read from the original bytes.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Language, Node

#: Longer scripts are not read.  Linux takes no argument beyond 128 KiB (MAX_ARG_STRLEN), so only
#: mistakes are longer.
SCRIPT_LIMIT = 256 * 1024

#: A character beyond ASCII in UTF-8; stray bytes may follow it, and be alone.
_BEYOND_ASCII = re.compile(rb"[\x80-\xbf]+|[\xc0-\xff][\x80-\xbf]*")


def syntax_tree(script: str) -> tuple[Node, bytes] | None:
    """The root of the script's tree and the bytes it points into; None: too long, or no text."""
    if len(script) > SCRIPT_LIMIT or "\0" in script:
        return None
    try:
        data = script.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None
    from tree_sitter import Parser

    shown = _BEYOND_ASCII.sub(_stand_in, data)
    # A parser takes microseconds to make and is not thread-safe; the grammar is.
    return Parser(_grammar()).parse(shown).root_node, data


def _stand_in(found: re.Match[bytes]) -> bytes:
    """As many bytes as the character has; a stray byte, which is no character, is one ``%``."""
    size = len(found[0])
    if found[0].decode("utf-8", "replace").isalnum():
        return b"a" * size
    return b"%" if size == 1 else b"\xc2\xa7" * (size // 2) + b"a" * (size % 2)


def node_text(node: Node, data: bytes) -> str:
    return data[node.start_byte : node.end_byte].decode("utf-8", "surrogateescape")


@cache
def _grammar() -> Language:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Language(tree_sitter_bash.language())
