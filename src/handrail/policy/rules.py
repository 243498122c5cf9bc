"""What a rule is, what it matches, and how several of them add up.

Three kinds, named as in a rules file: ``prefix_rule`` (a command that starts like this),
``host_executable`` (which absolute paths may stand for a bare name) and ``network_rule`` (a host to
connect to or not).  ``rule_statements.py`` makes them from what a file says.  Prefix rules only add
up: of all that match, the strictest decides, so neither order nor a later file can relax an earlier
forbid.

Tokens compare exactly: no globs, no regular expressions, no case folding.

One thing the peer's language lacks: ``sandbox="keep"`` or ``"off"``.  There an allowed command
leaves the sandbox; here «may run» and «may run outside» are two questions, and a rule that says
nothing about the second keeps the sandbox.
"""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

#: One command: a program and its arguments.
Argv = tuple[str, ...]
#: One command as far as it is known before it runs: ``None`` stands for any number of words.
Words = tuple["str | None", ...]
#: Returns the absolute, normalised path of a program on a command line; None: do not resolve.
Resolver = Callable[[str], "str | None"]


class Decision(enum.IntEnum):
    """What a rule says; a larger one is stricter."""

    ALLOW = 0
    PROMPT = 1
    FORBIDDEN = 2

    @property
    def word(self) -> str:
        """The spelling in rules files and in JSON."""
        return self.name.lower()


class Sandbox(enum.Enum):
    """Whether a command that may run also may leave the sandbox."""

    KEEP = "keep"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a rule was written."""

    path: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else self.path or "(no file)"


@dataclass(frozen=True, slots=True)
class PrefixRule:
    """Commands that start with ``first`` and then one alternative of each of ``rest``."""

    first: str
    rest: tuple[tuple[str, ...], ...] = ()
    decision: Decision = Decision.ALLOW
    justification: str | None = None
    sandbox: Sandbox | None = None
    source: Source = field(default=Source(), compare=False)

    def matched_prefix(self, argv: Sequence[str]) -> Argv | None:
        """The words of ``argv`` that this rule covers, leaving its first word unchecked."""
        length = 1 + len(self.rest)
        if len(argv) < length:
            return None
        if all(word in choices for word, choices in zip(argv[1:length], self.rest, strict=True)):
            return (self.first, *argv[1:length])
        return None

    def could_match(self, words: Words) -> bool:
        """True if some value of the unknown words makes the rule match (first word unchecked)."""
        return _could_match(words[1:], self.rest)

    def __str__(self) -> str:
        tokens = [self.first, *("|".join(choices) for choices in self.rest)]
        return " ".join(tokens)


@dataclass(frozen=True, slots=True)
class Match:
    """One rule that applies to one command."""

    rule: PrefixRule
    prefix: Argv
    resolved_program: str | None = None

    @property
    def decision(self) -> Decision:
        return self.rule.decision


@dataclass(frozen=True, slots=True)
class HostExecutable:
    """The absolute paths that may stand for a bare name; none at all: no path may."""

    name: str
    paths: tuple[str, ...]
    source: Source = field(default=Source(), compare=False)


@dataclass(frozen=True, slots=True)
class NetworkRule:
    """What to do with connections to one host; ``port`` None means all ports."""

    host: str
    protocol: str
    decision: Decision
    justification: str | None = None
    source: Source = field(default=Source(), compare=False)
    port: int | None = None


@dataclass(frozen=True)
class Policy:
    """All rules of one session, in the order of their definition.

    ``lost`` names rules files that could not be read and that seem to forbid something.
    """

    rules: tuple[PrefixRule, ...] = ()
    hosts: Mapping[str, HostExecutable] = field(default_factory=dict)
    network: tuple[NetworkRule, ...] = ()
    lost: tuple[str, ...] = ()

    @cached_property
    def _by_first(self) -> dict[str, tuple[PrefixRule, ...]]:
        index: dict[str, list[PrefixRule]] = {}
        for rule in self.rules:
            index.setdefault(rule.first, []).append(rule)
        return {first: tuple(rules) for first, rules in index.items()}

    @cached_property
    def _refusing(self) -> dict[str, tuple[PrefixRule, ...]]:
        """Prompt and forbid rules by the base name of their program."""
        index: dict[str, list[PrefixRule]] = {}
        for rule in self.rules:
            if rule.decision is not Decision.ALLOW:
                index.setdefault(posixpath.basename(rule.first), []).append(rule)
        return {base: tuple(rules) for base, rules in index.items()}

    def extended(self, rules: Iterable[PrefixRule]) -> Policy:
        """This policy with more rules appended."""
        return Policy((*self.rules, *rules), self.hosts, self.network, self.lost)

    def merged(self, later: Policy) -> Policy:
        """This policy and a later one: rules add up, host lists of the same name are replaced."""
        return Policy(
            (*self.rules, *later.rules),
            {**self.hosts, **later.hosts},
            (*self.network, *later.network),
            (*self.lost, *later.lost),
        )

    def matches(self, argv: Sequence[str], resolve: Resolver | None = None) -> tuple[Match, ...]:
        """The rules for ``argv``, in definition order.

        Rules on ``argv[0]`` as written come first; only if none of them matches and ``resolve``
        is given, rules on the base name of the resolved path are tried.
        """
        if not argv:
            return ()
        exact = self._matching(argv, argv[0], None)
        if exact or resolve is None:
            return exact
        path = resolve(argv[0])
        if path is None:
            return ()
        name = posixpath.basename(path)
        if not name or not self._may_stand_for(path, name):
            return ()
        return self._matching(argv, name, path)

    def refusals(self, words: Words) -> tuple[tuple[Match, bool], ...]:
        """The prompt and forbid rules that a partly known command matches, each with «for certain».

        The base name counts, whatever path is in front of it, in the command and in the rule: a
        path avoids no forbid.  A rule for another path is not certain, nor one for a name whose
        host list lacks this path: it may be a second path of the same file.  Unknown words are
        first left out (certain), then taken for anything (not certain).
        """
        name = words[0] if words else None
        if not name:
            return ()
        known = tuple(word for word in words if word is not None)
        found: list[tuple[Match, bool]] = []
        base = posixpath.basename(name)
        listed = base == name or self._may_stand_for(name, base)
        for rule in self._refusing.get(base, ()):
            path = name if rule.first != name else None
            prefix = rule.matched_prefix(known)
            if prefix is not None:
                certain = rule.first == name or (rule.first == base and listed)
                found.append((Match(rule, prefix, path), certain))
            elif len(known) < len(words) and rule.could_match(words):
                found.append((Match(rule, (rule.first,), path), False))
        return tuple(found)

    def _matching(self, argv: Sequence[str], first: str, path: str | None) -> tuple[Match, ...]:
        found = []
        for rule in self._by_first.get(first, ()):
            prefix = rule.matched_prefix(argv)
            if prefix is not None:
                found.append(Match(rule, prefix, path))
        return tuple(found)

    def _may_stand_for(self, path: str, name: str) -> bool:
        listed = self.hosts.get(name)
        return listed is None or posixpath.normpath(path) in listed.paths


def strictest(matches: Iterable[Match]) -> Decision | None:
    """The decision of the strictest match; None for none."""
    return max((match.decision for match in matches), default=None)


def normal_path(path: str, cwd: str = "/") -> str:
    """``path`` made absolute against ``cwd``, without ``.``, ``..`` and doubled slashes."""
    joined = posixpath.normpath(posixpath.join(cwd, path))
    return "/" + joined.lstrip("/")


def is_within(path: str, roots: Iterable[str]) -> bool:
    """Whether a normal path is one of these or lies below one."""
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def _could_match(words: Words, rest: Sequence[tuple[str, ...]]) -> bool:
    """Wildcard match of a prefix: ``None`` among the words stands for any number of words."""
    if not rest:
        return True
    if not words:
        return False
    head, tail = words[0], words[1:]
    if head is None:
        return _could_match(tail, rest) or _could_match(words, rest[1:])
    return head in rest[0] and _could_match(tail, rest[1:])
