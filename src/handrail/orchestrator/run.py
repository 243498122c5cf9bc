"""Runs one call: decide -> ask -> sandbox -> run -> refused? -> ask -> run again.

The loop is here, its steps (``admit``, ``after``) are in ``call_flow.py``.  An ``Orchestrator``
holds what a session has: settings, reviewers, approval cache.  Calls run side by side; each keeps
the settings it started with.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from handrail.errors import ExecutorSpawnFailed, SandboxUnavailable
from handrail.executor.base import Denied, ExecSession, Executor, SpawnRequest
from handrail.network.policy_rules import of_policy
from handrail.network.saved_rules import SavedRule
from handrail.network.settings import NOT_CARRIED
from handrail.orchestrator.approval_cache import ApprovalCache, Extent, Key, SeedKey, command_key
from handrail.orchestrator.approvals import Approver, Hook, Reviewers
from handrail.orchestrator.audit import Listener, guarded, no_listener
from handrail.orchestrator.call import Call
from handrail.orchestrator.call_flow import Attempt, CallFlow
from handrail.orchestrator.forbidden_programs import ForbiddenPrograms
from handrail.orchestrator.narrow_offer import ancestors
from handrail.orchestrator.network_call import NetworkApprovals
from handrail.orchestrator.requirement import command_requirement
from handrail.orchestrator.save_rule import add_rule
from handrail.orchestrator.settings import Settings, Table
from handrail.policy.rules import NetworkRule, Policy, Sandbox

T = TypeVar("T")
#: Scripts look for these to learn that there is no network.
_OFFLINE = {"HANDRAIL_SANDBOX_NETWORK_DISABLED": "1", "CODEX_SANDBOX_NETWORK_DISABLED": "1"}


@dataclass(frozen=True, slots=True)
class Ran(Generic[T]):
    """A run that is over: its result, and whether the sandbox refused something."""

    result: T
    denied: Denied = field(default_factory=lambda: Denied(likely=False))
    output: bytes = field(default=b"", repr=False)


class Orchestrator:
    """The settings, the reviewers and the approvals of one session."""

    def __init__(
        self,
        settings: Settings,
        approver: Approver | None = None,
        *,
        hooks: Sequence[Hook] = (),
        listener: Listener = no_listener,
        approval_cache: ApprovalCache | None = None,
        exists: Callable[[str], Awaitable[bool]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        local: bool = True,
    ) -> None:
        self.settings = settings
        self.reviewers = Reviewers(approver, tuple(hooks))
        self.listener = guarded(listener)
        self.approval_cache = ApprovalCache() if approval_cache is None else approval_cache
        #: What was decided about hosts.
        self.hosts = NetworkApprovals(
            None if approver is None and not hooks else self.reviewers,
            timeout=settings.approval_timeout,
            rules=self._network_rules,
            rules_file=settings.rules_file,
            listener=self.listener,
            rule_added=self._network_rule_added,
        )
        #: Whether a path is there on the executor's machine; only for what is offered.
        self._exists = exists or _exists_here
        self.clock = clock
        #: Covers what the rules forbid as a whole.
        self.wall = ForbiddenPrograms()
        #: Commands run on this machine: where a name leads to can be looked up.
        self.local = local
        #: Until an executor that offers it could not do it.
        self._can_watch = True
        self._turns: WeakValueDictionary[tuple[Key, ...], asyncio.Lock] = WeakValueDictionary()

    def update_environment(self, *, policy: Policy | None = None, cwd: str | None = None) -> None:
        """Use new settings for later runs; running ones keep theirs."""
        self.settings = self.settings.moved(policy=policy, cwd=cwd)

    def flow(self, call: Call) -> CallFlow:
        """Make the flow of one command, with the current settings."""
        settings = self.settings
        keys: tuple[Key, ...] = (command_key(call),)
        if settings.table is Table.SEED:
            keys = (SeedKey(call.argv),)
        approved = self.approval_cache.knows(keys, Extent(outside=True))
        requirement = command_requirement(call, settings, approved=approved, local=self.local)
        return CallFlow(self, call, requirement, settings, keys)

    async def run(self, call: Call, runner: Callable[[Attempt], Awaitable[Ran[T]]]) -> T:
        """Run one command through all steps; returns the result of the last run.

        The runner's errors (a timeout among them) are not retried.
        """
        return await self.go(self.flow(call), runner)

    async def go(self, flow: CallFlow, runner: Callable[[Attempt], Awaitable[Ran[T]]]) -> T:
        """Version of `run` for a flow that was made before."""
        attempt: Attempt | None = await flow.admit()
        while attempt is not None:
            ran = await runner(attempt)
            attempt = await flow.after(ran.denied, ran.output)
        return ran.result

    async def start(
        self, executor: Executor, request: SpawnRequest, flow: CallFlow, attempt: Attempt
    ) -> ExecSession:
        """Start one run of a call as its attempt says.

        Raises ExecutorSpawnFailed, and SandboxUnavailable where its network cannot be managed.
        """
        features = executor.features
        env = {**request.env, **attempt.env, **({} if attempt.network else _OFFLINE)}
        request = replace(request, sandbox=attempt.sandbox, env=env)
        hosts = flow.network(attempt)
        if hosts is not None:
            if not features.network:
                raise SandboxUnavailable(NOT_CARRIED)
            request = replace(request, network=hosts.request())
        request = await self.wall.around(request, flow.settings, executor, local=features.local)
        session = await self._spawn(executor, request, attempt)
        if hosts is not None:
            hosts.started(session)
        return session

    async def _spawn(
        self, executor: Executor, request: SpawnRequest, attempt: Attempt
    ) -> ExecSession:
        features = executor.features
        if not (attempt.watch and features.watch_denials and self._can_watch):
            return await executor.spawn(request)
        try:
            return await executor.spawn(replace(request, watch_denials=True))
        except ExecutorSpawnFailed as error:
            if error.unsure:
                raise
        # A machine without seccomp notifications refuses that; what it says then is a guess.
        session = await executor.spawn(request)
        self._can_watch = False
        return session

    async def nearest(self, path: str) -> str | None:
        """The path itself or its nearest existing parent; None: only the root exists."""
        for candidate in ancestors(path):
            if await self._exists(candidate):
                return candidate
        return None

    def amend(self, call_id: str, prefix: tuple[str, ...], *, free: bool) -> None:
        """Add a rule for all commands that start like this."""
        settings = self.settings
        sandbox = Sandbox.OFF if free else None
        if not free and settings.unset_sandbox is Sandbox.OFF:
            sandbox = Sandbox.KEEP
        rule, event, notice = add_rule(call_id, prefix, settings.rules_file, sandbox=sandbox)
        if rule is not None:
            extended = self.settings.policy.extended([rule])
            self.settings = replace(self.settings, policy=extended)
        if event is not None:
            self.listener(event)
        if notice is not None:
            self.listener(notice)

    def _network_rules(self) -> list[SavedRule]:
        return of_policy(self.settings.policy)

    def _network_rule_added(self, rule: NetworkRule) -> None:
        added = self.settings.policy.merged(Policy(network=(rule,)))
        self.settings = replace(self.settings, policy=added)

    def turn_of(self, keys: tuple[Key, ...]) -> asyncio.Lock:
        """A lock for equal questions: the first answer may be for the session."""
        lock = self._turns.get(keys)
        if lock is None:
            lock = self._turns[keys] = asyncio.Lock()
        return lock


async def _exists_here(path: str) -> bool:
    return await asyncio.to_thread(os.path.lexists, path)
