"""Values of the expansions in a script, as far as the script itself determines them.  Pure.

``X=rm; $X y``, ``$(echo rm) y`` and ``printf 'rm y' | sh`` all run ``rm y``, and the script has
everything needed to know it.  This module follows literal values: assignments, loops over words,
arguments of ``bash -c``, and the output of ``echo``, ``printf`` and ``cat`` with a here-document.
Every assignment counts, wherever it is: it serves *forbid* and *ask* only, so a value too many
costs a question and a missing one is left to the guard.
"""

from __future__ import annotations

import base64
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from handrail.bash_syntax import node_text
from handrail.policy.rules import Words
from handrail.policy.strict_script_reader import walk
from handrail.policy.word_value import fed_text, literal_value, unquoted

if TYPE_CHECKING:
    from tree_sitter import Node

Variables = Mapping[str, tuple[str, ...]]

#: Limit of values of one variable, and of readings of one command.  One more is kept, as the sign
#: that there are too many.
_MOST = 16
#: Nested expansions are followed this far.
_DEPTH = 6
#: Longer values are not followed.
_LONGEST = 64 * 1024
_BRACES = re.compile(r"([^{}]*)\{([^{}]*,[^{}]*)\}([^{}]*)")
_PRINTF_ESCAPE = re.compile(r"\\(n|t|r|\\|x[0-9a-fA-F]{1,2}|0?[0-7]{1,3})")
_PRINTF_PLACE = re.compile(r"%[-+ 0#]*\d*(?:\.\d+)?([sbqdiuxXc%])")
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
_DECODERS = frozenset({"-d", "-D", "--decode"})


class Expansions:
    """The values of one script."""

    def __init__(self, root: Node, data: bytes, given: Variables) -> None:
        self._data = data
        self.variables: dict[str, tuple[str, ...]] = dict(given)
        self.aliases: dict[str, str] = {}
        #: True if a value was too long or too deep to be followed.
        self.cut = False
        self._outputs: dict[tuple[int, ...], str | None] = {}
        nodes = list(walk(root))
        names = (n.child_by_field_name("name") for n in nodes if n.type == "function_definition")
        self._functions = {node_text(name, data) for name in names if name is not None}
        inside = [node for node in nodes if node.type == "command_substitution"]
        self._substitute(inside)
        for node in nodes:
            self._note(node)
        if self.variables:
            self._substitute(inside)

    def _substitute(self, nodes: list[Node]) -> None:
        """Inner ones first: each is read once, however deep they nest."""
        self._outputs.clear()
        for node in reversed(nodes):
            self._outputs[(node.id,)] = self._output(node.named_children)

    def readings(self, nodes: Sequence[Node]) -> Iterator[Words]:
        """Other readings of a command than the literal one; none if all its words are literal."""
        literals = [self._literal(node) for node in nodes]
        if literals and literals[0] in self.aliases:
            yield (*self.aliases[literals[0]].split(), *literals[1:])
        choices = [self._words(node) for node in nodes]
        dark = [choice for choice, word in zip(choices, literals, strict=True) if word is None]
        if all(choice == [(None,)] for choice in dark):
            return  # nothing would become clearer
        for chosen in itertools.islice(itertools.product(*choices), _MOST):
            words = tuple(itertools.chain.from_iterable(chosen))
            if words and words[0] is not None:
                yield words

    def too_many(self, nodes: Sequence[Node]) -> bool:
        """True if these words have readings that are not tried."""
        return math.prod(len(self._words(node)) for node in nodes) > _MOST

    def output(self, nodes: Sequence[Node]) -> str | None:
        """What the commands in these parts of the script print, as far as it is literal."""
        key = tuple(node.id for node in nodes)
        if key not in self._outputs:
            self._outputs[key] = self._output(nodes)
        return self._outputs[key]

    def _output(self, nodes: Sequence[Node]) -> str | None:
        found: list[str] = []
        decode = False
        for node in _this_level(nodes):
            if node.type == "command":
                words = self._first_reading(node)
                if words and words[0] == "base64" and _DECODERS & set(words):
                    decode = True
                elif (text := self._printed(node, words)) is not None:
                    found.append(text)
            elif node.type == "heredoc_body":
                found.append(node_text(node, self._data))
        if decode:
            found += [text for one in found if (text := _decoded(one)) is not None]
        text = "\n".join(found)
        self.cut |= len(text) > _LONGEST
        return text if found and len(text) <= _LONGEST else None

    def _note(self, node: Node) -> None:
        if node.type == "variable_assignment":
            name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
            if name is not None and value is not None:
                parts = value.named_children if value.type == "array" else [value]
                texts = [self._texts(part, 0) for part in parts]
                for chosen in itertools.islice(itertools.product(*texts), _MOST + 1):
                    self._assign(node_text(name, self._data).partition("[")[0], " ".join(chosen))
        elif node.type == "for_statement":
            name = node.child_by_field_name("variable")
            for value in node.children_by_field_name("value"):
                for text in self._texts(value, 0):
                    self._assign("" if name is None else node_text(name, self._data), text)
        elif node.type == "command":
            self._note_builtin(node)

    def _note_builtin(self, node: Node) -> None:
        words = self._first_reading(node)
        match words:
            case ["alias", *definitions]:
                for definition in definitions:
                    name, equals, value = (definition or "").partition("=")
                    if equals:
                        self.aliases[name] = value
            case ["read", *names]:
                texts = [fed_text(child, self._data) for child in node.children]
                for text, variable in itertools.product(texts, names):
                    self._assign(variable or "", text or "")
            case ["printf", "-v", str(name), *rest]:
                self._assign(name, _printf(rest))
            case ["set", "--", *rest]:
                self._assign_all(positional((None, *rest)))
            case [str(name), *rest] if name in self._functions:
                self._assign_all(positional((None, *rest)))

    def _assign_all(self, found: Variables) -> None:
        for name, values in found.items():
            for value in values:
                self._assign(name, value)

    def _assign(self, name: str, value: str) -> None:
        known = self.variables.get(name, ())
        self.cut |= len(value) > _LONGEST
        if value and len(value) <= _LONGEST and value not in known and len(known) <= _MOST:
            self.variables[name] = (*known, value)

    def _first_reading(self, node: Node) -> list[str | None]:
        name = node.child_by_field_name("name")
        arguments = node.children_by_field_name("argument")
        words: list[str | None] = []
        for part in ([] if name is None else [name]) + arguments:
            texts = self._texts(part, 0)
            words.append(texts[0] if texts else None)
        return words

    def _printed(self, node: Node, words: list[str | None]) -> str | None:
        name = (words[0] or "").rpartition("/")[2] if words else ""
        if name == "echo":
            said = list(
                itertools.dropwhile(lambda word: word in ("-n", "-e", "-E", "-ne"), words[1:])
            )
            return _controls(" ".join(word for word in said if word is not None))
        if name == "printf":
            return _printf(words[1:])
        if name == "which" or (name in ("command", "type") and {"-v", "-p", "-P"} & set(words)):
            return words[-1]  # its path, which has the same base name
        texts = [fed_text(child, self._data) for child in node.children]
        fed = next((text for text in texts if text is not None), None)
        return fed if name == "cat" else None

    def _words(self, node: Node) -> list[tuple[str | None, ...]]:
        literal = self._literal(node)
        if literal is not None:
            return [(literal,)]
        texts = self._texts(node, 0)
        if not texts:
            return [(None,)]
        inner = node.named_children[0] if node.type == "command_name" else node
        raw = node_text(inner, self._data)
        if inner.type == "string" and "@" not in raw:
            return [(text,) for text in texts]
        return [tuple(text.split()) for text in texts]

    def _texts(self, node: Node, depth: int) -> list[str]:
        """The possible values of a word before it is split; none if the script does not say."""
        literal = self._literal(node)
        if literal is not None:
            return [literal]
        if depth > _DEPTH:
            self.cut = True
            return []
        if node.type in ("simple_expansion", "expansion"):
            return self._values(node, depth)
        if node.type == "command_substitution":
            text = self._outputs.get((node.id,))
            return [] if text is None else [text.strip()]
        braces = _BRACES.fullmatch(self._with_brace(node))
        if braces:
            before, inside, after = braces.groups()
            return [" ".join(f"{before}{item}{after}" for item in inside.split(","))]
        if node.type in ("string", "concatenation", "command_name", "translated_string"):
            return self._joined(node, depth)
        return []

    def _literal(self, node: Node) -> str | None:
        if self._with_brace(node).startswith("{") and _BRACES.fullmatch(self._with_brace(node)):
            return None
        return literal_value(node, self._data)

    def _with_brace(self, node: Node) -> str:
        """The grammar takes the brace before the name of a command for a syntax error."""
        text = node_text(node, self._data)
        start = node.start_byte
        stray = text.endswith("}") and "{" not in text and self._data[start - 1 : start] == b"{"
        return "{" + text if stray else text

    def _values(self, node: Node, depth: int) -> list[str]:
        names = (child for child in walk(node) if child.type.endswith("variable_name"))
        found: list[str] = []
        for name in itertools.islice(names, 1):
            found += self.variables.get(node_text(name, self._data), ())
        if node_text(node, self._data).startswith("${!"):
            found += [text for one in found for text in self.variables.get(one, ())]
        for child in node.named_children:  # ${X:-this}
            if not child.type.endswith("variable_name") and child.type != "subscript":
                found += self._texts(child, depth + 1)
        return found[: _MOST + 1]

    def _joined(self, node: Node, depth: int) -> list[str]:
        quoted = node.type == "string"
        parts: list[list[str]] = []
        end = node.start_byte
        for child in node.children:
            # Blanks between two expansions have no node of their own.
            parts.append([self._data[end : child.start_byte].decode("utf-8", "replace")])
            end = child.end_byte
            if child.type == '"':
                continue
            if quoted and not child.is_named:
                parts.append([node_text(child, self._data)])
            elif quoted and child.type == "string_content":
                parts.append([unquoted(node_text(child, self._data))])
            else:
                parts.append(self._texts(child, depth + 1))
        texts = list(map("".join, itertools.islice(itertools.product(*parts), _MOST + 1)))
        short = [text for text in texts if len(text) <= _LONGEST]
        self.cut |= len(short) < len(texts)
        return short


def _this_level(nodes: Iterable[Node]) -> Iterator[Node]:
    """The nodes below these, without those in nested substitutions."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        yield node
        if node.type not in ("command_substitution", "process_substitution"):
            stack.extend(reversed(node.children))


def positional(words: Sequence[str | None]) -> dict[str, tuple[str, ...]]:
    """The parameters of a script that is called with these words, its own name first."""
    known = [word or "" for word in words]
    found: dict[str, tuple[str, ...]] = {str(at): (word,) for at, word in enumerate(known) if word}
    rest = " ".join(known[1:])
    return {**found, "@": (rest,), "*": (rest,)} if rest else found


def _printf(words: Sequence[str | None]) -> str:
    known = [word or "" for word in words]
    if known[:1] == ["--"]:
        del known[0]
    if not known:
        return ""
    form, values = _controls(known[0]), known[1:]
    parts: list[str] = []
    rest = iter(values)
    left = len(values)
    size = 0
    while True:
        used = 0

        def place(found: re.Match[str]) -> str:
            nonlocal used
            if found[1] == "%":
                return "%"
            used += 1
            return next(rest, "")

        parts.append(_PRINTF_PLACE.sub(place, form))
        left -= used
        size += len(parts[-1])
        if not used or left <= 0 or size > _LONGEST:
            return "".join(parts)


def _controls(text: str) -> str:
    def control(found: re.Match[str]) -> str:
        code = found[1]
        if code in _CONTROLS:
            return _CONTROLS[code]
        return chr(int(code[1:], 16) if code[0] == "x" else int(code, 8) & 0xFF)

    return _PRINTF_ESCAPE.sub(control, text)


def _decoded(text: str) -> str | None:
    try:
        return base64.b64decode(text.strip(), validate=True).decode()
    except ValueError:
        return None
