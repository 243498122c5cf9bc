"""Implements ``handrail policy lint``: what is wrong, or not as meant, in rules files.

Errors make a file unusable; warnings are rules that say more, or less, than they seem to.  For
continuous integration: exit code 1 for errors, with ``strict`` for warnings as well.
"""

from __future__ import annotations

import enum
import ipaddress
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from handrail.policy.language import RulesFileError, style_remarks
from handrail.policy.load import parse_rules, read_text, working_directory
from handrail.policy.programs import runs_what_it_finds
from handrail.policy.proposals import is_too_broad
from handrail.policy.rules import Decision, Policy, PrefixRule, Sandbox, Source

_HOST = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")
#: What shells and older tools would read as a pattern; here it is literal.
_GLOB = re.compile(r"[*?]|\[.*\]")


class Severity(enum.Enum):
    ERROR = "error"
    WARNING = "warning"
    #: What a rule cannot do; nothing is wrong with it.
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing to look at."""

    severity: Severity
    source: Source
    text: str

    def __str__(self) -> str:
        return f"{self.source}: {self.severity.value}: {self.text}"


@dataclass(frozen=True, slots=True)
class LintResult:
    remarks: tuple[Remark, ...]

    @property
    def errors(self) -> int:
        return self._count(Severity.ERROR)

    def _count(self, severity: Severity) -> int:
        return sum(remark.severity is severity for remark in self.remarks)

    def exit_code(self, *, strict: bool = False) -> int:
        """0 if the files may be used; with ``strict``, only if there are no warnings either."""
        return int(self.errors > 0 or (strict and self._count(Severity.WARNING) > 0))

    def text(self) -> str:
        """The remarks, one a line, and a count."""
        warnings = self._count(Severity.WARNING)
        lines = [str(remark) for remark in self.remarks]
        lines.append(f"errors: {self.errors}, warnings: {warnings}")
        return "\n".join(lines) + "\n"


def lint(paths: Sequence[str]) -> LintResult:
    """Check these files, in the order they would be loaded."""
    remarks: list[Remark] = []
    policy = Policy()
    for path in paths:
        try:
            text = read_text(path)
            policy = policy.merged(parse_rules(text, path, policy.hosts))
        except RulesFileError as error:
            source = Source(error.path, error.line)
            remarks.append(Remark(Severity.ERROR, source, error.message))
            continue
        remarks.extend(_warning(Source(path, line), said) for line, said in style_remarks(text))
    remarks.extend(_rule_remarks(policy.rules))
    remarks.extend(_host_remarks(policy))
    remarks.extend(_cover_remarks(policy))
    order = {path: at for at, path in enumerate(paths)}
    remarks.sort(key=lambda remark: (order.get(remark.source.path, -1), remark.source.line))
    return LintResult(tuple(remarks))


def _warning(source: Source, text: str) -> Remark:
    return Remark(Severity.WARNING, source, text)


def _rule_remarks(rules: Sequence[PrefixRule]) -> Iterator[Remark]:
    by_first: dict[str, list[PrefixRule]] = {}
    for rule in rules:
        yield from _single_remarks(rule)
        yield from _pair_remarks(rule, by_first.get(rule.first, ()), rules)
        by_first.setdefault(rule.first, []).append(rule)


def _single_remarks(rule: PrefixRule) -> Iterator[Remark]:
    shortest = (rule.first, *(choices[0] for choices in rule.rest))
    if rule.decision is Decision.ALLOW and is_too_broad(shortest):
        yield _warning(rule.source, f"`{rule}` allows almost anything: name the arguments, too")
    if rule.sandbox is Sandbox.OFF and rule.justification is None:
        yield _warning(rule.source, f"`{rule}` leaves the sandbox: give a justification")
    if rule.sandbox is Sandbox.OFF and runs_what_it_finds(rule.first):
        yield _warning(
            rule.source,
            f"`{rule}` leaves the sandbox, and `{rule.first}` runs what it finds in its working"
            " directory, the settings of a repository among it: where commands can write, leaving"
            " is asked all the same",
        )
    if "/" in rule.first and not rule.first.startswith("/"):
        yield _warning(
            rule.source, f"`{rule.first}` is another program in every directory: use a full path"
        )
    if rule.decision is Decision.FORBIDDEN and rule.rest:
        yield Remark(
            Severity.NOTE,
            rule.source,
            f"`{rule}` is read from the words of commands: what `{rule.first}` is made to do in"
            f" another way, by its settings or by a program that uses it, is not held. Forbid"
            f" `{rule.first}` as a whole to cover its file, or keep the network closed",
        )
    if any(_GLOB.search(word) for word in shortest[1:]):
        yield _warning(rule.source, f"`{rule}`: words match literally here, there are no patterns")


def _pair_remarks(
    rule: PrefixRule, earlier: Iterable[PrefixRule], rules: Iterable[PrefixRule]
) -> Iterator[Remark]:
    if any(rule == other for other in earlier):
        yield _warning(rule.source, f"`{rule}` is there already")
    if rule.decision is Decision.FORBIDDEN:
        return
    for other in rules:
        if other.first == rule.first and other.decision > rule.decision and _covers(other, rule):
            yield _warning(
                rule.source,
                f"`{rule}` never applies: {other.source} says {other.decision.word} to all of it",
            )
            return


def _covers(wide: PrefixRule, narrow: PrefixRule) -> bool:
    """True if every command that ``narrow`` matches is matched by ``wide``."""
    if len(wide.rest) > len(narrow.rest):
        return False
    pairs = zip(wide.rest, narrow.rest, strict=False)
    return all(set(inner) <= set(outer) for outer, inner in pairs)


def _host_remarks(policy: Policy) -> Iterator[Remark]:
    named = {rule.first for rule in policy.rules}
    for host in policy.hosts.values():
        if host.name not in named:
            yield _warning(host.source, f"no rule is about `{host.name}`: this changes nothing")
    for rule in policy.network:
        if not _is_host(rule.host):
            yield _warning(rule.source, f"`{rule.host}` is no host name and no address")


def _cover_remarks(policy: Policy) -> Iterator[Remark]:
    """Programs forbidden as a whole that cannot be covered: their file has other names too."""
    from handrail.policy import program_files  # it examines this machine

    files = program_files.ProgramFiles()
    path, home = os.environ.get("PATH"), os.environ.get("HOME")
    places = program_files.search_directories(path, home, working_directory())
    names = program_files.forbidden_whole(policy)
    for rule in policy.rules:
        if rule.decision is not Decision.FORBIDDEN or rule.rest or rule.first not in names:
            continue
        shared = files.find((rule.first,), places, also=names).shared
        for path, other in shared[:1]:
            yield _warning(
                rule.source,
                f"`{rule}`: {path} is also the program `{other}`, so sandboxes do not cover it and"
                " only the reading of commands keeps it from running",
            )


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _HOST.fullmatch(text) is not None
    return True
