"""A «yes, always»: a rule in force at once, and a line in the user's rules file."""

from __future__ import annotations

from handrail.errors import HandrailError
from handrail.orchestrator.audit import Notice, RuleAdded
from handrail.policy.amend import append_line, prefix_rule_line
from handrail.policy.proposals import is_too_broad
from handrail.policy.rules import Decision, PrefixRule, Sandbox


def add_rule(
    call_id: str, prefix: tuple[str, ...], path: str | None, *, sandbox: Sandbox | None
) -> tuple[PrefixRule | None, RuleAdded | None, Notice | None]:
    """Add the rule for ``prefix``; returns it with a note about it.

    ``sandbox`` is OFF if an unsandboxed run was approved; None: the rule does not say it.  A rule
    that cannot be written is in force until the session ends.
    """
    if is_too_broad(prefix):
        text = f"no rule was added: `{' '.join(prefix)}` would allow almost anything"
        return None, None, Notice(call_id, text)
    try:
        line = prefix_rule_line(prefix, Decision.ALLOW, sandbox=sandbox)
    except HandrailError as error:
        return None, None, Notice(call_id, f"no rule was added: {error}")
    rule = PrefixRule(prefix[0], tuple((word,) for word in prefix[1:]), sandbox=sandbox)
    failure = _write(path, line)
    notice = None if failure is None else Notice(call_id, failure)
    return rule, RuleAdded(call_id, line, None if failure else path), notice


def _write(path: str | None, line: str) -> str | None:
    if path is None:
        return None
    try:
        append_line(path, line)
    except HandrailError as error:
        return f"the rule holds until the end of the session only: {error}"
    return None
