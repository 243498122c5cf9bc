"""Implements ``handrail policy check``: rules files and a command -> what the rules say.

The JSON is the peer's, key by key and byte by byte, so scripts around its ``execpolicy check`` go
on working; like there the exit code is 0 whatever the decision, and 1 for files that cannot be
used.  Three additions, off by default:

``shell``    splits a shell script first and reports each of its commands.
``explain``  says in words what would happen under an approval setting, why, and by which line of
             which file, and returns the decision as exit code.

``exit_code`` returns the decision as exit code without the words.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from handrail.errors import PolicyError
from handrail.policy.context import Situation
from handrail.policy.decide import Action, Finding, Verdict, decide
from handrail.policy.layers import load_rules
from handrail.policy.load import Loaded, load_files, resolver, rules_files
from handrail.policy.rules import Decision, Match, Policy, Resolver, Sandbox, strictest
from handrail.policy.strict_script_reader import shell_call, split
from handrail.policy.wrappers import sightings

#: Exit codes of ``explain``; 1 and 2 are taken by broken files and wrong usage.
EXIT_CODES = {Action.ALLOW: 0, Action.ASK: 3, Action.FORBID: 4}
UNUSABLE = 1
#: Exit codes of ``exit_code``, by the word in the JSON.
_DECISION_CODES = {"allow": 0, "prompt": 3, "forbidden": 4}
NO_MATCH = 5


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What the command line prints, where, and its exit code."""

    exit_code: int
    output: str = ""
    error: str = ""
    #: Files of a directory that are broken, with the reason.
    left_out: tuple[str, ...] = ()


def check(
    rules: Sequence[str] | None,
    command: Sequence[str],
    *,
    cwd: str,
    home: str,
    resolve_host_executables: bool = False,
    pretty: bool = False,
    shell: bool = False,
    explain: Situation | None = None,
    exit_code: bool = False,
) -> CheckResult:
    """Judge ``command`` by these rules files; None: by the default layers (``layers.py``)."""
    try:
        loaded = load_rules() if rules is None else Loaded(load_files(_files(rules)))
    except PolicyError as error:
        return CheckResult(UNUSABLE, error=f"{error}\n")
    policy, left_out = loaded.policy, tuple(map(str, loaded.problems))
    if explain is not None:
        verdict = decide(command, policy, explain)
        words = explanation(command, verdict)
        return CheckResult(EXIT_CODES[verdict.action], words, left_out=left_out)
    resolve = resolver(cwd, home) if resolve_host_executables else None
    if shell:
        report = _shell_report(command, policy, resolve)
    else:
        report = _report(policy.matches(command, resolve))
    code = _DECISION_CODES.get(str(report.get("decision")), NO_MATCH) if exit_code else 0
    if exit_code and policy.lost and code in (0, NO_MATCH):
        code = _DECISION_CODES["prompt"]  # as in ``decide``: a rule that forbids it may be lost
    return CheckResult(code, _as_json(report, pretty=pretty) + "\n", left_out=left_out)


def _files(paths: Sequence[str]) -> list[str]:
    """Rules files, and those of directories among them; raises RulesFileError."""
    return [
        file for path in paths for file in (rules_files(path) if os.path.isdir(path) else [path])
    ]


def _report(matches: Sequence[Match]) -> dict[str, object]:
    report: dict[str, object] = {"matchedRules": [_match_report(match) for match in matches]}
    decision = strictest(matches)
    if decision is not None:
        report["decision"] = decision.word
    return report


def _match_report(match: Match) -> dict[str, object]:
    inner: dict[str, object] = {
        "matchedPrefix": list(match.prefix),
        "decision": match.decision.word,
    }
    if match.resolved_program is not None:
        inner["resolvedProgram"] = match.resolved_program
    if match.rule.justification is not None:
        inner["justification"] = match.rule.justification
    return {"prefixRuleMatch": inner}


def _shell_report(
    command: Sequence[str], policy: Policy, resolve: Resolver | None
) -> dict[str, object]:
    """Report every command of a script, with what only the lenient reader finds."""
    plain = split(command)
    judged = plain or (tuple(command),)
    reports = [{"command": list(one), **_report(policy.matches(one, resolve))} for one in judged]
    decisions = [strictest(policy.matches(one, resolve)) for one in judged]
    seen = sightings(tuple(command))
    # As in ``decide``: what may run, but need not, is asked about.
    refusals = [
        match.decision if certain and sure else Decision.PROMPT
        for words, certain in seen.commands[0 if plain is None else 1 :]
        for match, sure in policy.refusals(words)
    ]
    if seen.cut and any(rule.decision is not Decision.ALLOW for rule in policy.rules):
        refusals.append(Decision.PROMPT)
    result: dict[str, object] = {
        "isScript": shell_call(command) is not None,
        "splittable": plain is not None,
        "commands": reports,
        "mayRun": [list(words) for words, _ in seen.commands[1:]],
        "complete": seen.clear,
    }
    found = [one for one in decisions if one is not None]
    found += refusals
    held_back = [one for one in found if one is not Decision.ALLOW]
    if held_back or (found and None not in decisions):
        result["decision"] = max(found).word
    return result


def explanation(command: Sequence[str], verdict: Verdict) -> str:
    """The verdict in words, one fact a line."""
    lines = [f"{verdict.action.value}: {shlex.join(command)}"]
    if verdict.reason:
        lines.append(f"  {verdict.reason}")
    if verdict.action is not Action.FORBID:
        where = "outside the sandbox" if verdict.sandbox is Sandbox.OFF else "in the sandbox"
        lines.append(f"  it would run {where}, if there is one")
    if verdict.withheld and verdict.withheld != verdict.reason:
        lines.append(f"  {verdict.withheld}")
    for finding in verdict.findings:
        lines.extend(f"  {line}" for line in _finding_lines(finding))
    if verdict.proposed_prefix:
        lines.append(f"  rule to offer: {shlex.join(verdict.proposed_prefix)}")
    return "".join(f"{_printable(line)}\n" for line in lines)


def _printable(line: str) -> str:
    """One line that shows a command as it is: it could move the cursor, or forge another line."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in line)


def _finding_lines(finding: Finding) -> list[str]:
    shown = " ".join("…" if word is None else shlex.quote(word) for word in finding.command)
    seen = "may run" if finding.glimpsed else "command"
    lines = [f"{seen} `{shown}`: {finding.decision.word} ({finding.cause.value})"]
    for match in finding.matches:
        path = f" (as {match.resolved_program})" if match.resolved_program else ""
        why = f": {match.rule.justification}" if match.rule.justification else ""
        source = match.rule.source
        lines.append(f"  {source}: {match.decision.word} `{match.rule}`{path}{why}")
    return lines


def _as_json(report: dict[str, object], *, pretty: bool) -> str:
    if pretty:
        return json.dumps(report, ensure_ascii=False, indent=2)
    return json.dumps(report, ensure_ascii=False, separators=(",", ":"))
