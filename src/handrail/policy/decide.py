"""May this command run?  Allow, ask or forbid, with the reasons.

Two readings of one argv meet here.  For *allow*, every command of a script must be known word by
word (``strict_script_reader``) and each be allowed; a base name stands for a path only in trusted
directories.  For *forbid* and *ask*, one sighting anywhere is enough (``wrappers``), and a path in
front of the name changes nothing.  The strictest finding decides (``rules.strictest``).  Where a
rule forbids or asks, an argv without findings must also be read for certain (``guard``), else it is
asked about.

Commands without a rule are decided by the approval setting:

  ============  ==========  ==================  ==================  =======
  command is    untrusted   on request, bound   on request, free    never
  ============  ==========  ==================  ==================  =======
  dangerous     ask         ask                 ask                 forbid
  escalating    ask         ask                 allow               forbid
  any other     ask         allow               allow               allow
  ============  ==========  ==================  ==================  =======

(«bound»: files are restricted by a sandbox.)  Asking itself is done by ``orchestrator/``.
"""

from __future__ import annotations

import enum
import posixpath
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from handrail.bash_syntax import SCRIPT_LIMIT
from handrail.policy.context import Approval, Situation
from handrail.policy.dangerous import Danger, command_danger, effects
from handrail.policy.known_safe import is_known_safe
from handrail.policy.proposals import first_of, proposed_prefix
from handrail.policy.rules import (
    Argv,
    Decision,
    Match,
    Policy,
    Sandbox,
    Words,
    normal_path,
    strictest,
)
from handrail.policy.strict_script_reader import shell_call, split
from handrail.policy.wrappers import sightings

if TYPE_CHECKING:
    from handrail.policy.guard.verdict import Reading

#: Limit of characters of a command in a reason.
SHOWN_LIMIT = 500


class Action(enum.Enum):
    ALLOW = "allow"
    ASK = "ask"
    FORBID = "forbid"


class Cause(enum.Enum):
    """What a finding, or a verdict, is based on."""

    RULE = "a rule"
    DANGER = "a dangerous command"
    EFFECT = "an effect that is hard to undo"
    UNTRUSTED = "no rule allows it"
    ESCALATION = "it wants to leave the sandbox"
    KNOWN_SAFE = "it only reads"
    SETTING = "the approval setting"
    UNCLEAR = "not all its commands can be seen"
    LOST_RULES = "a rules file is broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding about one command of the argv."""

    command: Words
    decision: Decision
    cause: Cause
    matches: tuple[Match, ...] = ()
    danger: Danger | None = None
    #: True for what only the lenient reader finds.
    glimpsed: bool = False
    #: Which part cannot be read, if that is the cause.
    unclear: str | None = None

    @property
    def by_rule(self) -> bool:
        return self.cause is Cause.RULE


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer.  ``reason`` is for people, None if there is nothing to say beyond «asks»."""

    action: Action
    sandbox: Sandbox = Sandbox.KEEP
    cause: Cause = Cause.SETTING
    reason: str | None = None
    findings: tuple[Finding, ...] = field(default=(), repr=False)
    #: The rule to offer with the question: «always, for commands that start like this».
    proposed_prefix: Argv | None = None
    #: The rule to offer with a question after the sandbox refused something.
    retry_prefix: Argv | None = None
    #: Why the sandbox is kept although a rule would leave it; None: no rule would, or it is left.
    withheld: str | None = None

    @property
    def ground(self) -> str:
        """Why the approval setting asks, in a few words, for a question without a ``reason``."""
        dangers = [finding.danger.value for finding in self.findings if finding.danger]
        return dangers[0] if dangers and self.cause is Cause.DANGER else self.cause.value


def decide(
    argv: Sequence[str],
    policy: Policy,
    situation: Situation,
    wanted_prefix: Sequence[str] | None = None,
) -> Verdict:
    """The verdict on one argv.  ``wanted_prefix`` is the rule the caller would like to have."""
    refusal = _refused_at_once(policy, situation)
    if refusal is not None:
        return refusal
    commands = _commands(tuple(argv), situation)
    findings = [_judge(command, policy, situation) for command in commands]
    findings += _glimpsed(tuple(argv), policy, findings)
    verdict = _verdict(tuple(argv), findings, situation)
    sandbox, withheld = _sandbox(findings, situation), None
    if sandbox is Sandbox.OFF:
        withheld = _objection(tuple(argv), commands, findings, situation)
        sandbox = Sandbox.KEEP if withheld else sandbox
    leaves = situation.escalates and situation.restricted
    if verdict.action is Action.ALLOW and leaves and sandbox is Sandbox.KEEP:
        # The rule lets it run, not leave the sandbox: the user still has to grant that.
        verdict = Verdict(Action.ASK, cause=Cause.ESCALATION, reason=withheld)
    if policy.lost and verdict.action is Action.ALLOW:
        verdict = _without_lost_rules(policy, situation)
    proposal = None
    # No allow rule overrides a forbid, nor makes a script clearer.
    held_by_rule = any(
        (f.by_rule and f.decision is not Decision.ALLOW) or f.cause is Cause.UNCLEAR
        for f in findings
    )
    if verdict.action is Action.ASK and not held_by_rule:
        asked = [f.command for f in findings if f.decision is Decision.PROMPT]
        proposal = proposed_prefix(policy, commands, asked, wanted_prefix) if asked else None
    let = [f.command for f in findings if not f.by_rule and f.decision is Decision.ALLOW]
    return replace(
        verdict,
        sandbox=sandbox,
        findings=tuple(findings),
        proposed_prefix=proposal,
        retry_prefix=first_of(let),
        withheld=withheld,
    )


def _refused_at_once(policy: Policy, situation: Situation) -> Verdict | None:
    """The refusal that does not depend on the command; None: the command decides."""
    if policy.lost and situation.approval is Approval.NEVER:
        return _without_lost_rules(policy, situation)
    if situation.escalates and not situation.may_ask_to_escalate:
        return Verdict(
            Action.FORBID,
            cause=Cause.ESCALATION,
            reason="more permissions need an approval, and the approval policy allows no question:"
            " run it without them",
        )
    return None


def _without_lost_rules(policy: Policy, situation: Situation) -> Verdict:
    """What a lost file forbade is unknown, so only the user may let anything run."""
    granular = situation.granular
    silent = situation.approval is Approval.NEVER or (granular is not None and not granular.rules)
    names = ", ".join(policy.lost)
    return Verdict(
        Action.FORBID if silent else Action.ASK,
        cause=Cause.LOST_RULES,
        reason=f"{names} cannot be read and seems to forbid something: nothing runs unattended"
        " until it is repaired",
    )


def _commands(argv: Argv, situation: Situation) -> tuple[Argv, ...]:
    """The commands to be judged: those of a plain script, else the argv itself."""
    commands = split(argv)
    if commands is None:
        return (argv,)
    call = shell_call(argv)
    program = call.program if call else ""
    foreign = "/" in program and program != situation.shell and not situation.trusts(program)
    # A shell from elsewhere may do anything with the script, so its words prove nothing.
    return (*commands, argv) if foreign else commands


def _judge(command: Argv, policy: Policy, situation: Situation) -> Finding:
    def resolve(program: str) -> str | None:
        return normal_path(program, situation.cwd) if "/" in program else None

    matches = tuple(
        match
        for match in policy.matches(command, resolve)
        if match.decision is not Decision.ALLOW
        or match.resolved_program is None
        # As written: a relative path depends on a cwd that a script may have changed.
        or situation.trusts(command[0])
    )
    decision = strictest(matches)
    if decision is not None:
        return Finding(command, decision, Cause.RULE, matches)
    return _fallback(command, situation)


def _fallback(command: Argv, situation: Situation) -> Finding:
    found = command_danger(command)
    if found:
        return Finding(command, Decision.PROMPT, Cause.DANGER, danger=found)
    if situation.ask_about and situation.ask_about & effects(command):
        return Finding(command, Decision.PROMPT, Cause.EFFECT)
    if situation.approval is Approval.UNTRUSTED and situation.granular is None:
        program = command[0] if command else ""
        here = "/" not in program or situation.trusts(program)
        if situation.trust_known_safe and here and is_known_safe(command):
            return Finding(command, Decision.ALLOW, Cause.KNOWN_SAFE)
        return Finding(command, Decision.PROMPT, Cause.UNTRUSTED)
    if situation.escalates and situation.restricted:
        return Finding(command, Decision.PROMPT, Cause.ESCALATION)
    return Finding(command, Decision.ALLOW, Cause.SETTING)


def _glimpsed(argv: Argv, policy: Policy, known: Iterable[Finding]) -> list[Finding]:
    """Prompt and forbid rules that match anything the argv may start, beyond the known findings."""
    if all(rule.decision is Decision.ALLOW for rule in policy.rules):
        return []
    from handrail.policy.guard.verdict import read

    reported = {id(match.rule): match.decision for finding in known for match in finding.matches}
    found: list[Finding] = []
    seen = sightings(argv)
    reading = read(argv)
    commands = dict(seen.commands) | dict.fromkeys(reading.commands, True)
    if argv not in {finding.command for finding in known}:
        commands.pop(argv, None)  # a shell whose script was judged in its place
    for words, certain in commands.items():
        for match, sure in policy.refusals(words):
            decision = match.decision if certain and sure else Decision.PROMPT
            if reported.get(id(match.rule), Decision.ALLOW) < decision:
                reported[id(match.rule)] = decision
                found.append(Finding(words, decision, Cause.RULE, (match,), glimpsed=True))
    unclear = reading.unclear or _launched(reading, policy)
    # What exceeds a limit could be anything, so padding must not disable a rule.
    if seen.cut or any(len(word) > SCRIPT_LIMIT for word in argv):
        unclear = "it is longer or deeper than what is read"
    if not found and unclear:
        found.append(Finding(argv, Decision.PROMPT, Cause.UNCLEAR, glimpsed=True, unclear=unclear))
    return found


def _launched(reading: Reading, policy: Policy) -> str | None:
    """What a program that is not known to be ordinary may run by its words."""
    from handrail.policy.guard.ordinary import may_launch

    names = {
        posixpath.basename(rule.first)
        for rule in policy.rules
        if rule.decision is not Decision.ALLOW
    }
    for words in reading.commands:
        if words[0] in reading.functions:
            continue
        if name := may_launch(words, names):
            return f"{words[0]} may run {name}"
    return None


def _verdict(argv: Argv, findings: Sequence[Finding], situation: Situation) -> Verdict:
    decision = max(finding.decision for finding in findings)
    deciding = [finding for finding in findings if finding.decision is decision]
    if decision is Decision.ALLOW:
        return Verdict(Action.ALLOW, cause=deciding[0].cause)
    by_rule = [finding for finding in deciding if finding.by_rule]
    first = (by_rule or deciding)[0]
    if decision is Decision.FORBIDDEN:
        return Verdict(Action.FORBID, cause=Cause.RULE, reason=_rule_reason(argv, by_rule))
    refusal = _refusal(argv, first, situation)
    if refusal:
        return Verdict(Action.FORBID, cause=first.cause, reason=refusal)
    reason = _rule_reason(argv, by_rule) if by_rule else _unclear_reason(argv, first)
    return Verdict(Action.ASK, cause=first.cause, reason=reason)


def _refusal(argv: Argv, finding: Finding, situation: Situation) -> str | None:
    """Why a question may not be asked here; None: it may."""
    shown = f"`{_shown(argv)}`"
    if situation.granular is not None:
        about_rules = finding.by_rule or finding.cause is Cause.UNCLEAR
        asks = situation.granular.rules if about_rules else situation.granular.sandbox_approval
        if asks:
            return None
        what = "rules" if about_rules else "the sandbox"
        refused = f"questions about {what} are switched off"
    elif situation.approval is Approval.NEVER:
        refused = "the approval setting is never"
    else:
        return None
    if finding.danger:
        return f"{shown} is not run: {finding.danger.value}; use a safer way ({refused})"
    if finding.unclear:
        return f"{_unclear_reason(argv, finding)} ({refused})"
    return f"{shown} needs approval, but {refused}"


def _unclear_reason(argv: Argv, finding: Finding) -> str | None:
    if finding.unclear is None:
        return None
    return (
        f"`{_shown(argv)}` may run something that a rule forbids or asks about, and it cannot be"
        f" read for certain ({finding.unclear}): write it with plain command names and texts"
    )


def _rule_reason(argv: Argv, findings: Iterable[Finding]) -> str:
    """The sentence of the longest prefix that decided."""
    pairs = [(finding, match) for finding in findings for match in finding.matches]
    decision = max(finding.decision for finding, _ in pairs)
    pairs = [(f, m) for f, m in pairs if m.decision is decision or f.glimpsed]
    finding, match = max(pairs, key=lambda pair: len(pair[1].prefix))
    rule = match.rule
    shown = f"`{_shown(argv)}`"
    if finding.glimpsed:
        shown += f" may run `{_shown(finding.command)}`, which"
    says = "is forbidden" if finding.decision is Decision.FORBIDDEN else "needs approval"
    why = rule.justification or f"{rule.source} is about commands that start with `{rule}`"
    return f"{shown} {says}: {why}"


def _shown(words: Words) -> str:
    """The beginning of a command: people and models read a reason, and scripts are long."""
    text = " ".join("…" if word is None else shlex.quote(word) for word in words)
    return text if len(text) <= SHOWN_LIMIT else text[:SHOWN_LIMIT] + "…"


def _objection(
    argv: Argv, commands: Sequence[Argv], findings: Iterable[Finding], situation: Situation
) -> str | None:
    if situation.lookup is None:
        return None
    named = {word for finding in findings for match in finding.matches for word in match.prefix}
    # Rarely needed, and it examines files.
    from handrail.policy.trusted_program import objection

    return objection(argv, commands, situation, named)


def _sandbox(findings: Iterable[Finding], situation: Situation) -> Sandbox:
    """OFF only if every command is covered by a rule that takes it out of the sandbox."""
    for finding in findings:
        if finding.glimpsed:
            continue
        said = {match.rule.sandbox for match in finding.matches} - {None}
        if finding.decision is Decision.ALLOW and finding.by_rule and not said:
            said = {situation.unset_sandbox}
        if said != {Sandbox.OFF}:
            return Sandbox.KEEP
    return Sandbox.OFF
