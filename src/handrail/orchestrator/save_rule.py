"""A «yes, always»: a rule in force at once, and a line in the user's rules file."""

from __future__ import annotations

from handrail.errors import HandrailError
from handrail.orchestrator.audit import Notice, RuleAdded
from handrail.policy.amend import append_line, network_rule_line, prefix_rule_line
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
    failure = write_rule(path, line)
    notice = None if failure is None else Notice(call_id, failure)
    return rule, RuleAdded(call_id, line, None if failure else path), notice


#: Protocol of a question -> that of a rule.
_PROTOCOLS = {"https_connect": "https"}


def network_rule_lines(host: str, port: int, protocol: str) -> tuple[str, str] | None:
    """The rules that «always» and «never» write for a host; None: none can be written."""
    named = _PROTOCOLS.get(protocol, protocol)
    about = f"{protocol} access to {host}"
    try:
        allow = network_rule_line(host, port, named, Decision.ALLOW, justification=f"Allow {about}")
        deny = network_rule_line(
            host, port, named, Decision.FORBIDDEN, justification=f"Deny {about}"
        )
    except HandrailError:
        return None
    return allow, deny


def write_rule(path: str | None, line: str) -> str | None:
    """Add the line to a rules file; a sentence if that fails.  None as path: nothing is written."""
    if path is None:
        return None
    try:
        append_line(path, line)
    except HandrailError as error:
        return f"the rule holds until the end of the session only: {error}"
    return None
