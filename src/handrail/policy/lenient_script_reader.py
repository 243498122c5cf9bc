"""Every command that can be seen in a script: the lenient reader, for *forbid* and *ask*.

Where ``strict_script_reader.plain_commands`` gives up at the first redirection or variable, this
one goes on: a trailing ``> log`` must not disable a forbid.  It looks through redirections,
assignments, negation, groups, control flow, functions and substitutions, undoes quotes and escapes,
and reads on around syntax errors, because a shell runs the lines before one.

What only the run can tell (variables, globs, substitutions) becomes ``None``, any number of words.
Nothing found here ever allows anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from handrail.bash_syntax import node_text, syntax_tree
from handrail.policy.expansions import Expansions, Variables
from handrail.policy.rules import Words
from handrail.policy.word_value import ARGUMENTS, REDIRECTS, fed_text, literal_value

if TYPE_CHECKING:
    from tree_sitter import Node

_BUILTINS = frozenset({"declaration_command", "unset_command"})
_NO_VARIABLES: Variables = {}
#: Limit of pipe parts before a command that are read.
_MOST_SOURCES = 8


@dataclass(frozen=True, slots=True)
class Glimpse:
    """One command somewhere in a script, and the text the script itself feeds to its stdin."""

    words: Words
    stdin: str | None = None
    #: Its process substitutions: ``<(echo x)``.
    files: tuple[str, ...] = ()
    #: Its words have more readings than are tried.
    many: bool = False
    #: More is piped into it than is read.
    far: bool = False


@dataclass(frozen=True, slots=True)
class Glimpses:
    """The commands of a script; ``clear`` is False if there may be others, and ``cut`` is True
    if a limit kept a value from being followed.

    ``variables`` are the values that its own scripts may find.
    """

    commands: tuple[Glimpse, ...]
    clear: bool
    variables: Variables = field(default_factory=dict)
    cut: bool = False


def glimpses(script: str, given: Variables = _NO_VARIABLES) -> Glimpses:
    """Every command that can be seen in the script, in source order.

    After them come the same commands with other readings of their words, if the script itself says
    what a variable or a substitution is.  ``given`` are values from outside.
    """
    tree = syntax_tree(script)
    if tree is None:
        return Glimpses((), clear=False)
    root, data = tree
    values = Expansions(root, data, given)
    seen: list[Glimpse] = []
    more: list[Glimpse] = []
    for place in _places(root):
        node = place.node
        if node.type == "command":
            first, *others = _command(place, data, values)
            seen.append(first)
            more += others
        elif (found := _glimpse(node, data)) is not None:
            seen.append(found)
            if node.type == "command_name":
                many = values.too_many([node])
                more += [Glimpse(words, many=many) for words in values.readings([node])]
    clear = not root.has_error and all(found.words[0] is not None for found in seen)
    return Glimpses((*seen, *more), clear, values.variables, values.cut)


@dataclass(frozen=True, slots=True)
class _Place:
    """A node, the redirections around it, and the parts of the script that are piped into it."""

    node: Node
    redirects: tuple[Node, ...] = ()
    sources: tuple[Node, ...] = ()
    #: There are more parts than are kept.
    far: bool = False


def _places(root: Node) -> Iterator[_Place]:
    """All nodes in source order.  Every list of children is made once: scripts may be wide."""
    stack = [_Place(root)]
    while stack:
        place = stack.pop()
        yield place
        stack.extend(reversed(list(_below(place))))


def _below(place: _Place) -> Iterator[_Place]:
    children = place.node.children
    kind = place.node.type
    sources, far = place.sources, place.far
    if kind in ("program", "command_substitution", "process_substitution"):
        sources, far = (), False
    if kind == "redirected_statement":
        mine = tuple(child for child in children if child.type in REDIRECTS)
        for child in children:
            if child.type == "heredoc_redirect":
                # ``cat <<E | sh``: the grammar attaches the rest of the line to the redirection.
                body = [part for part in child.children if part.type == "heredoc_body"]
                before = [part for part in children if part.type not in REDIRECTS]
                fed = (*body, *before)
                yield _Place(child, (), fed[:_MOST_SOURCES], len(fed) > _MOST_SOURCES)
            else:
                around = (*mine, *place.redirects) if child.type not in REDIRECTS else ()
                yield _Place(child, around, sources, far)
        return
    for at, child in enumerate(children):
        ends_it = kind in ("pipeline", "list") and at == len(children) - 1
        around = place.redirects if ends_it else ()
        if kind == "pipeline":
            # Every other child is a ``|``.
            first = max(at - 2 * _MOST_SOURCES, 0)
            fed = (*(part for part in children[first:at] if part.is_named), *sources)
            beyond = far or first > 0 or len(fed) > _MOST_SOURCES
            yield _Place(child, around, fed[:_MOST_SOURCES], beyond)
        else:
            yield _Place(child, around, sources, far)


def _glimpse(node: Node, data: bytes) -> Glimpse | None:
    """The command of this very node, if it is one of the unusual kinds."""
    if node.type in _BUILTINS and node.children:
        name = node_text(node.children[0], data)
        arguments = [literal_value(child, data) for child in node.children[1:] if child.is_named]
        return Glimpse((name, *arguments))
    if node.type == "test_command" and node.children:
        return Glimpse((node_text(node.children[0], data), None))
    stray = node.type == "command_name" and node.parent is not None
    if stray and node.parent is not None and node.parent.type != "command":
        return Glimpse((literal_value(node, data), None))
    return None


def _command(place: _Place, data: bytes, values: Expansions) -> list[Glimpse]:
    """A command as written, and its other readings."""
    children = place.node.children
    redirects = [child for child in children if child.type in REDIRECTS]
    redirects += place.redirects
    arguments = [
        child for child in children if child.type == "command_name" or child.type in ARGUMENTS
    ]
    # The grammar attaches words behind a redirection to the redirection, bash to the command.
    for redirect in redirects:
        arguments.extend(_arguments_behind(redirect))
    stdin = None
    for redirect in redirects:
        stdin = _fed(redirect, data, values) or stdin
    if stdin is None:
        stdin = values.output(place.sources)
    made = (
        values.output(part.named_children)
        for part in arguments
        if part.type == "process_substitution"
    )
    files = tuple(text for text in made if text is not None)
    words = [_joined(arguments, data) or (None,), *values.readings(arguments)]
    many = None in words[0] and values.too_many(arguments)
    return [Glimpse(one, stdin, files, many, place.far) for one in words]


def _fed(redirect: Node, data: bytes, values: Expansions) -> str | None:
    text = fed_text(redirect, data)
    if text is None and redirect.type == "herestring_redirect":
        texts = next(iter(values.readings([redirect.children[-1]])), ())
        return " ".join(word for word in texts if word is not None) or None
    if text is None and redirect.type == "file_redirect":
        made = [part for part in redirect.children if part.type == "process_substitution"]
        return values.output(made[0].named_children) if made else None
    return text


def _arguments_behind(redirect: Node) -> list[Node]:
    words = [child for child in redirect.children if child.type in ARGUMENTS]
    if redirect.type == "heredoc_redirect":
        return words
    return words[1:]


def _joined(nodes: list[Node], data: bytes) -> Words:
    """The values of these words; a continued line without a blank joins two."""
    words: list[str | None] = []
    end = -1
    for node in nodes:
        value = literal_value(node, data)
        continued = 0 <= end < node.start_byte and not data[end : node.start_byte].replace(
            b"\\\n", b""
        )
        if continued and words:
            before = words.pop()
            value = None if before is None or value is None else before + value
        words.append(value)
        end = node.end_byte
    return tuple(words)
