"""The text of one rules file -> the statements in it.

The language is Starlark, run by the starlark-pyo3 package (imported here and nowhere else, when
the first file is read); nothing of a file is ever executed as Python.  It has no ``load``, no
files, no clock and no unbounded loops, and a step limit ends what takes too long.

The three statements are defined by a prelude in Starlark itself: its type annotations check the
arguments in place, so an error points at the author's line, and its ``type`` still tells a tuple
from a list, which the way to Python does not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from handrail.errors import PolicyError
from handrail.policy.examples import Examples, example_words
from handrail.policy.rule_statements import RuleError, host_executable, network_rule, prefix_rules
from handrail.policy.rules import Argv, HostExecutable, NetworkRule, PrefixRule, Source

if TYPE_CHECKING:
    import starlark

#: The engine checks for an end every thousand instructions; this many checks are allowed.
STEP_LIMIT = 20_000
#: Default of an optional text: an explicit None is an error, as in the peer.
UNSET = "\0"
#: The path given to the engine, so that its reports can be parsed.
_MODULE = "rules"
_PRELUDE = "prelude.star"
_FRAME = re.compile(rf"^  \* {_MODULE}:(\d+), in ", re.MULTILINE)
_PLACE = re.compile(rf"^ --> {_MODULE}:(\d+):(\d+)$", re.MULTILINE)
_SENTENCE = re.compile(r"^error: (.*?)(?=\n --> |\Z)", re.MULTILINE | re.DOTALL)

#: A Starlark type and the string, which is empty for other types.
_Kind = tuple[str, str]
#: One level up: type, the string in a list, the elements if it is a list.
_Nested = tuple[str, list[str], list[_Kind]]


class RulesFileError(PolicyError):
    """A rules file cannot be used; ``line`` and ``column`` count from 1, 0 is unknown."""

    def __init__(self, message: str, *, path: str, line: int = 0, column: int = 0) -> None:
        place = ":".join(str(part) for part in (path, line, column) if part)
        super().__init__(f"{place}: {message}")
        self.message = message
        self.path = path
        self.line = line
        self.column = column


@dataclass(slots=True)
class Statements:
    """What one file says, in its order."""

    rules: list[PrefixRule] = field(default_factory=list)
    hosts: dict[str, HostExecutable] = field(default_factory=dict)
    network: list[NetworkRule] = field(default_factory=list)
    examples: list[tuple[Examples, Source]] = field(default_factory=list)


class _PrefixCall(msgspec.Struct):
    pattern: list[_Nested]
    decision: str
    match: list[_Nested]
    not_match: list[_Nested]
    justification: str
    sandbox: str


class _HostCall(msgspec.Struct):
    name: str
    paths: list[_Kind]


class _NetworkCall(msgspec.Struct):
    host: str
    protocol: str
    decision: str
    justification: str
    port: int | None


def read_statements(text: str, path: str) -> Statements:
    """Evaluate one file; examples are collected, not yet checked.

    Raises RulesFileError with the position of the first mistake.
    """
    import starlark

    found = Statements()
    failures: list[RulesFileError] = []

    def native(name: str, stack: str, arguments: object) -> None:
        source = Source(path, _innermost_line(stack))
        try:
            _take(found, name, arguments, source)
        except RuleError as wrong:
            failures.append(RulesFileError(str(wrong), path=path, line=source.line))
            raise

    steps = iter(range(STEP_LIMIT))
    options = starlark.EvalOptions(check_cancelled=lambda: next(steps, None) is None)
    try:
        syntax = _syntax(text)
        module = _module_with_statements(native)
        starlark.eval_with(options, module, syntax, starlark.Globals.standard())
    except starlark.StarlarkError as wrong:
        raise failures[0] if failures else _located(str(wrong), path) from None
    return found


def style_remarks(text: str) -> list[tuple[int, str]]:
    """What the engine's own linter says about a file that parses: line and sentence."""
    import starlark

    remarks = starlark.parse(_MODULE, text, _dialect()).lint()
    return [(remark.resolved_location.span.begin.line + 1, remark.problem) for remark in remarks]


def _dialect() -> starlark.Dialect:
    import starlark

    dialect = starlark.Dialect.extended()
    dialect.enable_f_strings = True
    dialect.enable_types = starlark.DialectTypes.ENABLE
    return dialect


def _syntax(text: str) -> starlark.AstModule:
    """The parsed file, ending in None: the engine hands its last value to Python, which has no
    form for a function.  The bare text is parsed first, for the sake of its error messages."""
    import starlark

    syntax = starlark.parse(_MODULE, text, _dialect())
    try:
        return starlark.parse(_MODULE, text + "\nNone\n", _dialect())
    except starlark.StarlarkError:
        return syntax


def _module_with_statements(native: Callable[[str, str, object], None]) -> starlark.Module:
    import starlark

    module = starlark.Module()
    module["_unset"] = UNSET
    module.add_callable("_native", native)
    with open(os.path.join(os.path.dirname(__file__), _PRELUDE), encoding="utf-8") as file:
        prelude = starlark.parse("prelude", file.read(), _dialect())
    with_stack = starlark.Globals.extended_by([starlark.LibraryExtension.CallStack])
    starlark.eval(module, prelude, with_stack)
    module["_native"] = None
    return module


def _take(found: Statements, name: str, arguments: object, source: Source) -> None:
    """Add one statement to the list of its kind."""
    if name == "prefix_rule":
        call = msgspec.convert(arguments, _PrefixCall)
        rules = prefix_rules(
            [_token(element) for element in call.pattern],
            call.decision,
            _optional(call.justification),
            _optional(call.sandbox),
            source,
        )
        match = tuple(_example(element) for element in call.match)
        not_match = tuple(_example(element) for element in call.not_match)
        found.rules.extend(rules)
        if match or not_match:
            found.examples.append((Examples(rules, match, not_match), source))
    elif name == "host_executable":
        host = msgspec.convert(arguments, _HostCall)
        found.hosts[host.name] = host_executable(
            host.name, _strings(host.paths, "a host_executable path"), source
        )
    else:
        network = msgspec.convert(arguments, _NetworkCall)
        reason = _optional(network.justification)
        found.network.append(
            network_rule(
                network.host, network.protocol, network.decision, reason, source, network.port
            )
        )


def _token(element: _Nested) -> Sequence[str]:
    kind, text, alternatives = element
    if kind == "string":
        return text
    if kind != "list":
        raise RuleError(f"a pattern element is a string or a list of strings, not a {kind}")
    return _strings(alternatives, "an alternative in a pattern")


def _example(element: _Nested) -> Argv:
    kind, text, words = element
    if kind == "string":
        return example_words(text[0])
    if kind != "list":
        raise RuleError(f"an example is a string or a list of strings, not a {kind}")
    return example_words(_strings(words, "a word of an example"))


def _strings(values: Sequence[_Kind], what: str) -> list[str]:
    for kind, _ in values:
        if kind != "string":
            raise RuleError(f"{what} is a string, not a {kind}")
    return [text for _, text in values]


def _optional(text: str) -> str | None:
    return None if text == UNSET else text


def _innermost_line(stack: str) -> int:
    lines = _FRAME.findall(stack)
    return int(lines[-1]) if lines else 0


def _located(report: str, path: str) -> RulesFileError:
    """The engine's report, reduced to its sentence and its position in the file."""
    sentence = _SENTENCE.search(report)
    message = sentence.group(1).strip() if sentence else report.strip()
    message = message.replace("prelude.", "")
    if message == "Evaluation cancelled":
        message = "the file takes too long to evaluate"
    place = _PLACE.search(report)
    if place:
        line, column = int(place.group(1)), int(place.group(2))
    else:
        line, column = _innermost_line(report), 0
    return RulesFileError(message, path=path, line=line, column=column)
