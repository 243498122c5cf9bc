"""Shell text -> tree-sitter's syntax tree, for policy and patches, which both read scripts.

tree-sitter and its grammar are imported at the first script.  The grammar's scanner passes code
points to C's ``isalnum`` family, which looks them up in a table of 384 entries: ``{`` before a
character beyond Latin-1 ends the whole process with SIGSEGV (tree-sitter-bash 0.25.1, found by
fuzzing).  Therefore the grammar never sees such a character: each of its bytes is replaced by
``%``, which is as good as any other part of a word and keeps every offset.  The words themselves
are read from the original bytes.
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

#: In UTF-8, characters beyond U+00FF start with a byte of C4 or more; stray bytes may follow it.
_BEYOND_THE_TABLE = re.compile(rb"[\xc4-\xff][\x80-\xbf]*")


def syntax_tree(script: str) -> tuple[Node, bytes] | None:
    """The root of the script's tree and the bytes it points into; None: too long, or no text."""
    if len(script) > SCRIPT_LIMIT or "\0" in script:
        return None
    try:
        data = script.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None
    from tree_sitter import Parser

    shown = _BEYOND_THE_TABLE.sub(lambda found: b"%" * len(found[0]), data)
    # A parser takes microseconds to make and is not thread-safe; the grammar is.
    return Parser(_grammar()).parse(shown).root_node, data


def node_text(node: Node, data: bytes) -> str:
    return data[node.start_byte : node.end_byte].decode("utf-8", "surrogateescape")


@cache
def _grammar() -> Language:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Language(tree_sitter_bash.language())
