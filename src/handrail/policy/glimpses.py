"""Every command that can be seen in a script: the lenient reader, for *forbid* and *ask*.

Where ``shell_words.plain_commands`` gives up at the first redirection or variable, this one goes
on: a forbid that a trailing ``> log`` could lift would be none.  It looks through redirections,
assignments, negation, groups, control flow, functions and substitutions, undoes quotes and
escapes, and reads on around syntax errors, because a shell runs the lines before one.

What only the run can tell (variables, globs, substitutions) becomes ``None``, any number of
words.  Nothing found here ever allows anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from handrail.bash_syntax import node_text, syntax_tree
from handrail.policy.rules import Words
from handrail.policy.shell_words import walk

if TYPE_CHECKING:
    from tree_sitter import Node

_BUILTINS = frozenset({"declaration_command", "unset_command"})
_ARGUMENTS = frozenset({
    "word", "number", "string", "raw_string", "ansi_c_string", "translated_string",
    "concatenation", "expansion", "simple_expansion", "command_substitution",
    "process_substitution", "arithmetic_expansion", "brace_expression",
})  # fmt: skip
_REDIRECTS = frozenset({"file_redirect", "heredoc_redirect", "herestring_redirect"})
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


@dataclass(frozen=True, slots=True)
class Glimpse:
    """One command somewhere in a script, and the text the script itself feeds to its stdin."""

    words: Words
    stdin: str | None = None


@dataclass(frozen=True, slots=True)
class Glimpses:
    """The commands of a script; ``clear`` is False if there may be others."""

    commands: tuple[Glimpse, ...]
    clear: bool


def glimpses(script: str) -> Glimpses:
    """Every command that can be seen in the script, in source order."""
    tree = syntax_tree(script)
    if tree is None:
        return Glimpses((), clear=False)
    root, data = tree
    seen = [found for node in walk(root) if (found := _glimpse(node, data)) is not None]
    clear = not root.has_error and all(found.words[0] is not None for found in seen)
    return Glimpses(tuple(seen), clear)


def _glimpse(node: Node, data: bytes) -> Glimpse | None:
    """The command this very node stands for, if it is one."""
    if node.type == "command":
        return _command(node, data)
    if node.type in _BUILTINS and node.children:
        name = node_text(node.children[0], data)
        arguments = [_value(child, data) for child in node.children[1:] if child.is_named]
        return Glimpse((name, *arguments))
    if node.type == "test_command" and node.children:
        return Glimpse((node_text(node.children[0], data), None))
    stray = node.type == "command_name" and node.parent is not None
    if stray and node.parent is not None and node.parent.type != "command":
        return Glimpse((_value(node, data), None))
    return None


def _command(node: Node, data: bytes) -> Glimpse:
    redirects = [child for child in node.children if child.type in _REDIRECTS]
    redirects += _redirects_around(node)
    arguments = [
        child for child in node.children if child.type == "command_name" or child.type in _ARGUMENTS
    ]
    # The grammar counts words behind a redirection to the redirection, bash to the command.
    for redirect in redirects:
        arguments.extend(_arguments_behind(redirect))
    stdin = None
    for redirect in redirects:
        stdin = _fed_text(redirect, data) or stdin
    return Glimpse(_joined(arguments, data) or (None,), stdin)


def _redirects_around(node: Node) -> list[Node]:
    """Redirections of the statement that ends in this command."""
    found: list[Node] = []
    inner, outer = node, node.parent
    while outer is not None and outer.type in ("redirected_statement", "pipeline", "list"):
        if outer.type == "redirected_statement":
            found.extend(child for child in outer.children if child.type in _REDIRECTS)
        elif outer.children[-1].id != inner.id:
            break
        inner, outer = outer, outer.parent
    return found


def _arguments_behind(redirect: Node) -> list[Node]:
    words = [child for child in redirect.children if child.type in _ARGUMENTS]
    if redirect.type == "heredoc_redirect":
        return words
    return words[1:]


def _fed_text(redirect: Node, data: bytes) -> str | None:
    if redirect.type == "herestring_redirect":
        return _value(redirect.children[-1], data)
    body = next((child for child in redirect.children if child.type == "heredoc_body"), None)
    return None if body is None else node_text(body, data)


def _joined(nodes: list[Node], data: bytes) -> Words:
    """The values of these words; a continued line without a blank makes one of two."""
    words: list[str | None] = []
    end = -1
    for node in nodes:
        value = _value(node, data)
        continued = 0 <= end < node.start_byte and not data[end : node.start_byte].replace(
            b"\\\n", b""
        )
        if continued and words:
            before = words.pop()
            value = None if before is None or value is None else before + value
        words.append(value)
        end = node.end_byte
    return tuple(words)


def _value(node: Node, data: bytes) -> str | None:
    """What the word will be when the command starts; None if only the run can tell."""
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
    values = [_value(child, data) for child in parts if child.type != "$"]
    return None if None in values else "".join(value for value in values if value is not None)


def _unescaped(found: re.Match[str]) -> str:
    return "" if found.group(1) == "\n" else found.group(1)


def _ansi(found: re.Match[str]) -> str:
    hexadecimal = found.group(1) or found.group(2) or found.group(3)
    if hexadecimal:
        return chr(min(int(hexadecimal, 16), 0x10FFFF))
    if found.group(4):
        return chr(int(found.group(4), 8) & 0xFF)
    return _ANSI_LETTERS.get(found.group(5), "\\" + found.group(5))
