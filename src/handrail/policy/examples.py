"""The examples of a rule: ``match`` and ``not_match``, split into words and checked at load.

An example is a rule's own test: a file whose rules contradict their examples is not used.  Pure;
``load.py`` calls it after evaluating a whole file, so that a ``host_executable`` further down
counts.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from handrail.policy.rule_statements import RuleError
from handrail.policy.rules import Argv, Policy, PrefixRule, Resolver

#: What a backslash escapes in double quotes (POSIX 2.2.3), newline apart.
_ESCAPABLE = '$`"\\'
_BLANKS = " \t\n"


@dataclass(frozen=True, slots=True)
class Examples:
    """The examples of one ``prefix_rule``."""

    rules: tuple[PrefixRule, ...]
    match: tuple[Argv, ...] = ()
    not_match: tuple[Argv, ...] = ()

    def broken(self, policy: Policy, resolve: Resolver) -> str | None:
        """The first example that does not hold, as a sentence; None if all hold.

        ``policy`` gives the host lists; its rules do not count, an example has to match its own
        rule.
        """
        own = Policy(self.rules, policy.hosts)
        for example in self.not_match:
            if own.matches(example, resolve):
                return f"not_match example `{shlex.join(example)}` is matched by {self._named()}"
        missed = [example for example in self.match if not own.matches(example, resolve)]
        if missed:
            listed = ", ".join(f"`{shlex.join(example)}`" for example in missed)
            return f"match example {listed} is not matched by {self._named()}"
        return None

    def _named(self) -> str:
        return "the rule " + " / ".join(f"[{rule}]" for rule in self.rules)


def example_words(example: str | Sequence[str]) -> Argv:
    """An example as argv; a string is split as a POSIX shell splits words."""
    if not isinstance(example, str):
        if not example:
            raise RuleError("an example is an empty list")
        return tuple(example)
    words = split_words(example)
    if words is None:
        raise RuleError(f"the quotes of the example {example!r} do not close")
    if not words:
        raise RuleError("an example is an empty string")
    return words


def split_words(text: str) -> Argv | None:
    """Split ``text`` into shell words, with quotes and comments; None if quotes stay open.

    Nothing is expanded and operators are ordinary characters.  The standard library's ``shlex``
    differs from a shell in what a backslash does in double quotes and before a newline.
    """
    words: list[str] = []
    word: list[str] | None = None
    quote = ""
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if quote == "'":
            if char == "'":
                quote = ""
            elif word is not None:
                word.append(char)
            continue
        if char == "\\":
            if at == len(text):
                return None
            following = text[at]
            at += 1
            if following == "\n":
                continue
            word = [] if word is None else word
            if quote and following not in _ESCAPABLE:
                word.append("\\")
            word.append(following)
        elif quote:
            if char == '"':
                quote = ""
            elif word is not None:
                word.append(char)
        elif char in "'\"":
            quote = char
            word = [] if word is None else word
        elif char in _BLANKS:
            if word is not None:
                words.append("".join(word))
                word = None
        elif char == "#" and word is None:
            newline = text.find("\n", at)
            at = len(text) if newline < 0 else newline + 1
        else:
            word = [] if word is None else word
            word.append(char)
    if quote:
        return None
    if word is not None:
        words.append("".join(word))
    return tuple(words)
