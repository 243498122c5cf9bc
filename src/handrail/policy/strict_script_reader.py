"""Shell scripts -> the commands in them, read with the tree-sitter bash grammar.

This is the strict reader, for *allow*: ``plain_commands`` returns either the exact words of every
command the script can run, or None, «cannot tell».  Anything but plain words joined by ``&&``,
``||``, ``;``, ``|`` and newlines gives None.  Its lenient counterpart, for *forbid* and *ask*, is
``lenient_script_reader.py``.  ``literal_commands`` is in between: what the peer's list of dangerous
commands examines, kept apart because its blind spots are part of compatible behaviour.

The grammar is not bash.  It takes ``\\r``, form feeds and backslash-space for white space, and a
backslash-newline in a word for a separator, where bash makes them part of the word or joins it.
Therefore the plain reader also checks every byte *between* the words (``_gaps_are_plain``).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from handrail.bash_syntax import node_text, syntax_tree
from handrail.policy.rules import Argv

if TYPE_CHECKING:
    from tree_sitter import Node

#: Programs whose ``-c SCRIPT`` is parsed, and the spellings of that flag.
SHELLS = frozenset({"bash", "zsh", "sh"})
SCRIPT_FLAGS = frozenset({"-c", "-lc"})

_PLAIN_NODES = frozenset({
    "program", "list", "pipeline", "command", "command_name", "word", "string", "string_content",
    "raw_string", "number", "concatenation",
})  # fmt: skip
_PLAIN_TOKENS = frozenset({"&&", "||", ";", "|", '"', "\n"})
_OPERATORS = frozenset({"&&", "||", ";", "|", "\n"})
_ATOMS = frozenset({"word", "number", "string", "raw_string"})
_ARGUMENTS = _ATOMS | {"concatenation"}
#: Characters after which an unquoted word may become another one, or several.
_LIVE = re.compile(r"[{}*?\[\]\\~^#$`]|^=")
#: A backslash that means something inside double quotes.
_LIVE_QUOTED = re.compile(r'\\[$`"\\\n]')
_GAP = re.compile(r"(?:[ \t\n]|\\\n)*\Z")


@dataclass(frozen=True, slots=True)
class ShellCall:
    """``bash -c SCRIPT`` in three words."""

    program: str
    flag: str
    script: str


def shell_call(argv: Sequence[str]) -> ShellCall | None:
    """``argv`` as a call of a shell with a script: exactly three words, by file name."""
    if len(argv) != 3 or argv[1] not in SCRIPT_FLAGS or posixpath.basename(argv[0]) not in SHELLS:
        return None
    return ShellCall(*argv)


def split(argv: Sequence[str]) -> tuple[Argv, ...] | None:
    """The plain commands of a shell call; None if it is none, or cannot be told."""
    call = shell_call(argv)
    return None if call is None else plain_commands(call.script)


@lru_cache(maxsize=16)  # each is read for its rules and for the answers that were given before
def plain_commands(script: str) -> tuple[Argv, ...] | None:
    """The commands of a script of plain words, in source order; None: cannot tell."""
    tree = syntax_tree(script)
    if tree is None or tree[0].has_error:
        return None
    root, data = tree
    nodes = list(walk(root))
    if not all(_is_plain(node) for node in nodes) or not _gaps_are_plain(root, data):
        return None
    commands: list[Argv] = []
    for node in nodes:
        if node.type == "command":
            words = _plain_words(node, data)
            if words is None:
                return None
            commands.append(words)
    return tuple(commands) or None


def literal_commands(script: str) -> tuple[Argv, ...]:
    """Every command with a literal name, dynamic words left out; nothing if it does not parse."""
    tree = syntax_tree(script)
    if tree is None or tree[0].has_error:
        return ()
    root, data = tree
    commands: list[Argv] = []
    for node in walk(root):
        name = node.child_by_field_name("name") if node.type == "command" else None
        if name is None:
            continue
        program = _literal(name.children[0], data) if name.child_count == 1 else None
        if program is None:
            continue
        arguments = [_literal(child, data) for child in node.children if child.type in _ARGUMENTS]
        commands.append((program, *(word for word in arguments if word is not None)))
    return tuple(commands)


def walk(root: Node) -> Iterator[Node]:
    """All nodes in source order, without recursion: scripts may nest deeper than Python does."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def _is_plain(node: Node) -> bool:
    if node.is_missing:
        return False
    return node.type in (_PLAIN_NODES if node.is_named else _PLAIN_TOKENS)


def _gaps_are_plain(root: Node, data: bytes) -> bool:
    """True if only blanks and continued lines are between the words, and join none of them."""
    end, after_word, joined_to = 0, False, None
    for node, whole in _pieces(root):
        gap = data[end : node.start_byte].decode("utf-8", "surrogateescape")
        same_word = whole is not None and whole == joined_to
        if not _GAP.match(gap) or (same_word and gap):
            return False
        is_word = node.type in _ATOMS
        if after_word and is_word and not same_word and not gap.replace("\\\n", ""):
            return False
        end, after_word, joined_to = node.end_byte, is_word, whole
    return bool(_GAP.match(data[end:].decode("utf-8", "surrogateescape")))


def _pieces(root: Node) -> Iterator[tuple[Node, int | None]]:
    """Words, quoted strings and operators in order, each with the concatenation it belongs to."""
    stack: list[tuple[Node, int | None]] = [(root, None)]
    while stack:
        node, whole = stack.pop()
        if node.type in _ATOMS or node.type in _OPERATORS:
            yield node, whole
            continue
        inside = node.id if node.type == "concatenation" else whole
        stack.extend((child, inside) for child in reversed(node.children))


def _plain_words(command: Node, data: bytes) -> Argv | None:
    """The words of a command node, whose name has to be one unquoted word."""
    words: list[str] = []
    for child in command.children:
        if child.type == "command_name":
            named = [part.type for part in child.children] == ["word"] and not words
            word = _literal(child.children[0], data) if named else None
        else:
            word = _literal(child, data) if words else None
        if word is None:
            return None
        words.append(word)
    return tuple(words) or None


def _literal(node: Node, data: bytes) -> str | None:
    """The value of an argument that no expansion, pattern or escape can change, else None."""
    text = node_text(node, data)
    if node.type in ("word", "number"):
        return None if _LIVE.search(text) else text
    if node.type == "raw_string":
        return text[1:-1]
    if node.type == "string":
        quiet = all(child.type in ('"', "string_content") for child in node.children)
        return text[1:-1] if quiet and not _LIVE_QUOTED.search(text) else None
    if node.type == "concatenation":
        parts = [_literal(child, data) for child in node.children]
        # Like the peer, which takes ``''`` for a word and ``''\"\"`` for none.
        return None if None in parts else "".join(filter(None, parts)) or None
    return None
