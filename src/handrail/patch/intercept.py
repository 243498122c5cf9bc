"""Recognise a patch in a shell call, so that it is applied without a shell.  Pure.

A call is taken over if it *is* ``apply_patch`` with its patch, or if it is a shell whose script
consists of one statement and nothing else:

  apply_patch <<'TAG' .. TAG            any tag, any quoting of it, also ``<<-``
  cd DIR && apply_patch <<'TAG' .. TAG  DIR one plain word or one quoted string

Everything else is left to the shell, which finds an ``apply_patch`` program on its path.  A script
that is nothing but the text of a patch is recognised too, as a mistake.

A script is parsed only if it mentions the command.  Where the tool we are compatible with would
write into a directory the shell would never have entered (``cd ~``, ``cd *``, ``cd -``, ``cd
"$X/a"``, ``cd a\\ b``), we leave the call to the shell.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from handrail.bash_syntax import node_text, syntax_tree
from handrail.patch.grammar import PatchSyntaxError, parse

if TYPE_CHECKING:
    from tree_sitter import Node

COMMANDS = ("apply_patch", "applypatch")

_POSIX_SHELLS = ("bash", "zsh", "sh")
_POWER_SHELLS = ("powershell", "pwsh")
_NOT_PLAIN = frozenset("~*?[]{}\\$`\"'")
_LEADING_TABS = re.compile(r"^\t+", re.MULTILINE)
_HEREDOC = ("heredoc_start", "heredoc_body", "heredoc_end")
_CD_LIST = ["command", "&&", "command"]


@dataclass(frozen=True, slots=True)
class PatchCall:
    """A patch to apply; ``directory`` is where the script went first, relative to its cwd."""

    text: str
    directory: str | None = None


@dataclass(frozen=True, slots=True)
class BarePatch:
    """A patch in place of a command: nothing says that it is to be applied."""


def recognise(argv: Sequence[str]) -> PatchCall | BarePatch | None:
    """Recognise a patch call in ``argv``; None means that it is none."""
    match argv:
        case [text]:
            return BarePatch() if _is_patch(text) else None
        case [command, text] if command in COMMANDS:
            return PatchCall(text)
    script = _script(argv)
    return None if script is None else recognise_script(script)


def recognise_script(script: str) -> PatchCall | BarePatch | None:
    """``recognise`` for a shell script."""
    if _is_patch(script):
        return BarePatch()
    if not any(command in script for command in COMMANDS):
        return None
    tree = syntax_tree(script)
    return None if tree is None else _read_program(*tree)


def _is_patch(text: str) -> bool:
    try:
        parse(text)
    except PatchSyntaxError:
        return False
    return True


def _script(argv: Sequence[str]) -> str | None:
    """The script of a shell call in one of the forms agents use."""
    if not argv:
        return None
    shell = posixpath.basename(argv[0].replace("\\", "/")).lower().removesuffix(".exe")
    match [shell, *argv[1:]]:
        case [name, "-c" | "-lc", script] if name in _POSIX_SHELLS:
            return script
        case [name, *options, script] if name in _POWER_SHELLS:
            if [option.lower() for option in options] in (["-command"], ["-noprofile", "-command"]):
                return script
        case ["cmd", "/c" | "/C", script]:
            return script
    return None


def _read_program(program: Node, data: bytes) -> PatchCall | None:
    """The one statement of a script, if it is a command with one heredoc as its input."""
    match program.named_children:
        case [statement] if statement.type == "redirected_statement":
            pass
        case _:
            return None
    match statement.named_children:
        case [body, redirect] if redirect.type == "heredoc_redirect":
            text = _heredoc(redirect, data)
        case _:
            return None
    if text is None:
        return None
    if _is_apply(body, data, bare=True):
        return PatchCall(text)
    if body.type != "list" or [child.type for child in body.children] != _CD_LIST:
        return None
    first, _, second = body.children
    directory = _cd_directory(first, data)
    # Further arguments are ignored here; the tool we follow checks the name alone.
    if directory is None or not _is_apply(second, data, bare=False):
        return None
    return PatchCall(text, directory)


def _heredoc(redirect: Node, data: bytes) -> str | None:
    """The body of a heredoc that has nothing else on its first line."""
    match redirect.named_children:
        case [start, body, end] if (start.type, body.type, end.type) == _HEREDOC:
            text = node_text(body, data)
        case _:
            return None
    if redirect.children[0].type == "<<-":
        text = _LEADING_TABS.sub("", text)
    return text


def _is_apply(command: Node, data: bytes, *, bare: bool) -> bool:
    """Whether ``command`` calls the patch tool; assignments before the name do not matter."""
    if command.type != "command" or _name(command, data) not in COMMANDS:
        return False
    return not bare or command.named_children[-1].type == "command_name"


def _name(command: Node, data: bytes) -> str | None:
    """The name a command is called by, if it is one plain word."""
    name = command.child_by_field_name("name")
    if name is None or [child.type for child in name.named_children] != ["word"]:
        return None
    return node_text(name, data)


def _cd_directory(command: Node, data: bytes) -> str | None:
    """The directory of ``cd DIR``, if it is literal."""
    if _name(command, data) != "cd":
        return None
    match command.children_by_field_name("argument"):
        case [argument] if command.named_children[-1] == argument:
            return _literal(argument, data)
    return None


def _literal(word: Node, data: bytes) -> str | None:
    text = node_text(word, data)
    if word.type == "raw_string":
        return text[1:-1]
    if word.type == "string":
        # Exactly one piece of text: no expansion, nothing empty, no backslash.
        if [child.type for child in word.named_children] != ["string_content"]:
            return None
        inside = text[1:-1]
        return None if "\\" in inside else inside
    if word.type != "word" or text == "-" or not _NOT_PLAIN.isdisjoint(text):
        return None
    return text
