"""The value of a word when its command starts, if the word itself determines it.  Pure.

Quotes and escapes are undone; what only the run can tell is None.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from handrail.bash_syntax import node_text

if TYPE_CHECKING:
    from tree_sitter import Node

ARGUMENTS = frozenset({
    "word", "number", "string", "raw_string", "ansi_c_string", "translated_string",
    "concatenation", "expansion", "simple_expansion", "command_substitution",
    "process_substitution", "arithmetic_expansion", "brace_expression",
})  # fmt: skip
REDIRECTS = frozenset({"file_redirect", "heredoc_redirect", "herestring_redirect"})
#: Unquoted characters that make a word something else at run time.
_PATTERN = re.compile(r"[*?\[$`]|\{[^}]")
_ESCAPE = re.compile(r"\\(\n|.)", re.DOTALL)
_QUOTED_ESCAPE = re.compile(r'\\(\n|[$`"\\])')
_ANSI_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|(.))", re.DOTALL
)
_ANSI_LETTERS = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
    "v": "\v", "\\": "\\", "'": "'", '"': '"', "?": "?",
}  # fmt: skip


def literal_value(node: Node, data: bytes) -> str | None:
    """The word's value when the command starts; None if only the run can tell."""
    text = node_text(node, data)
    if node.type in ("word", "number"):
        bare = _ESCAPE.sub("", text)
        return None if _PATTERN.search(bare) else _ESCAPE.sub(_unescaped, text)
    if node.type == "raw_string":
        return text[1:-1]
    if node.type == "ansi_c_string":
        return _ANSI_ESCAPE.sub(_ansi, text[2:-1])
    if node.type == "string":
        if any(child.type not in ('"', "string_content", "$") for child in node.children):
            return None
        return _QUOTED_ESCAPE.sub(_unescaped, text[1:-1])
    if node.type in ("concatenation", "command_name", "translated_string", "variable_assignment"):
        return _concatenated(node, data)
    return text if node.type in ("variable_name", "=", "+=") else None


def _concatenated(node: Node, data: bytes) -> str | None:
    parts = node.children
    if [child.type for child in parts[:2]] == ["word", "word"] and "," in node_text(node, data):
        return None  # {a,b}: the grammar has no node for it
    values = [literal_value(child, data) for child in parts if child.type != "$"]
    return None if None in values else "".join(value for value in values if value is not None)


def unquoted(text: str) -> str:
    """The content of a double-quoted string, its escapes undone."""
    return _QUOTED_ESCAPE.sub(_unescaped, text)


def fed_text(redirect: Node, data: bytes) -> str | None:
    """The text that a here-document or a here-string feeds to a command."""
    if redirect.type == "herestring_redirect":
        return literal_value(redirect.children[-1], data)
    if redirect.type != "heredoc_redirect":
        return None
    body = next((child for child in redirect.children if child.type == "heredoc_body"), None)
    return None if body is None else node_text(body, data)


def _unescaped(found: re.Match[str]) -> str:
    return "" if found.group(1) == "\n" else found.group(1)


def _ansi(found: re.Match[str]) -> str:
    hexadecimal = found.group(1) or found.group(2) or found.group(3)
    if hexadecimal:
        return chr(min(int(hexadecimal, 16), 0x10FFFF))
    if found.group(4):
        return chr(int(found.group(4), 8) & 0xFF)
    return _ANSI_LETTERS.get(found.group(5), "\\" + found.group(5))
