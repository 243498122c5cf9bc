"""The managed network of a workspace's commands: its approver, its rules files, its memory.

Imported with the first command that has one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from handrail import private_places
from handrail.network.policy_rules import of_policy
from handrail.network.saved_rules import SavedRule
from handrail.network.settings import Managed
from handrail.orchestrator.approvals import Approver, Reviewers
from handrail.orchestrator.audit import no_listener
from handrail.orchestrator.network_call import CallFacts, NetworkApprovals, NetworkCall
from handrail.policy.layers import load_rules
from handrail.policy.rules import NetworkRule, Policy

if TYPE_CHECKING:
    from handrail.secret_masks import Secrets


class WorkspaceNetwork:
    """What one workspace decides about hosts; its commands share the answers for the session."""

    def __init__(self, approver: Approver | None, timeout: float | None) -> None:
        self._reviewers = None if approver is None else Reviewers(approver)
        self._timeout = timeout
        #: By the settings of a command, which differ in their rules files.
        self._sessions: dict[tuple[tuple[str, ...], str | None], NetworkApprovals] = {}

    def call(
        self,
        managed: Managed,
        process_id: str,
        argv: tuple[str | bytes, ...],
        cwd: str,
        secrets: Secrets,
    ) -> NetworkCall:
        """The network of one command; raises UsageError and RulesFileError."""
        shown = secrets.masked_words(argv)
        words = tuple(os.fsdecode(word) for word in shown)
        facts = CallFacts(process_id, words, cwd)
        return self._session(managed).call(facts, managed)

    def _session(self, managed: Managed) -> NetworkApprovals:
        key = tuple(managed.rules), managed.rules_file
        if key not in self._sessions:
            rules = _Rules(managed)
            self._sessions[key] = NetworkApprovals(
                self._reviewers,
                timeout=self._timeout,
                rules=rules.__iter__,
                rules_file=managed.rules_file,
                listener=no_listener,
                rule_added=rules.add,
            )
        return self._sessions[key]


class _Rules:
    """The network rules of the files that were named, and those added since."""

    def __init__(self, managed: Managed) -> None:
        self._policy = rules_of(managed)

    def add(self, rule: NetworkRule) -> None:
        self._policy = self._policy.merged(Policy(network=(rule,)))

    def __iter__(self) -> Iterator[SavedRule]:
        return iter(of_policy(self._policy))


def rules_of(managed: Managed) -> Policy:
    """The rules of the named files and the administrator's; raises UsageError, RulesFileError.

    From now on no sandboxed command can write these files.
    """
    paths = [*managed.rules]
    if managed.rules_file is not None:
        private_places.add(managed.rules_file, directory=False, readable=True)
        if os.path.exists(managed.rules_file) and managed.rules_file not in paths:
            paths.append(managed.rules_file)
    for path in managed.rules:
        private_places.add(path, directory=os.path.isdir(path), readable=True)
    return load_rules(paths).policy
