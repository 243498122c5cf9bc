"""Network rules of rules files, for the decision; not needed by the porter."""

from __future__ import annotations

from handrail.network.hosts import BadHost
from handrail.network.saved_rules import SavedRule, saved_rule
from handrail.policy.rules import Policy


def of_policy(policy: Policy) -> list[SavedRule]:
    """The network rules of a policy; one whose host cannot exist is about nothing."""
    found = []
    for rule in policy.network:
        try:
            found.append(saved_rule(rule.host, rule.port, rule.decision.word))
        except BadHost:
            continue
    return found
