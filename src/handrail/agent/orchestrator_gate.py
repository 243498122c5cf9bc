"""The orchestrator as the gate of unified exec: decides, asks, chooses the sandbox, retries."""

from __future__ import annotations

import os
import posixpath
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace

from handrail.errors import HandrailError
from handrail.executor.base import Denied, ExecSession, Executor, SpawnRequest
from handrail.orchestrator.audit import Outcome
from handrail.orchestrator.call import Call, Request, read_request
from handrail.orchestrator.call_flow import Attempt, CallFlow, RetryRejected
from handrail.orchestrator.narrow_offer import without_hosts
from handrail.orchestrator.patches import PatchAccess, PatchWriter, admit_patch
from handrail.orchestrator.requirement import wants_retry
from handrail.orchestrator.run import Orchestrator
from handrail.patch.io_steps import AsyncFiles
from handrail.process import env_policy
from handrail.unified_exec.gate import Ended, ExecCall, PatchRequest, Started
from handrail.unified_exec.settings import DEFAULT_MODEL_BUDGET
from handrail.unified_exec.tools import ToolFailed
from handrail.unified_exec.truncate import DEFAULT_TOKENS, Budget, effective_budget, formatted

#: Calls with a process that is not known to have ended; more than can be open at once.
_MOST_FLOWS = 1024
LATE = (
    "the sandbox seems to have refused something; to do it without the sandbox, call exec_command"
    " again with sandbox_permissions require_escalated and a justification"
)


class OrchestratorGate:
    """``Gate`` on an orchestrator.

    ``model_budget``: the model's own limit for one answer.
    """

    def __init__(
        self,
        orchestrator: Orchestrator,
        executor: Executor,
        *,
        model_budget: Budget = DEFAULT_MODEL_BUDGET,
    ) -> None:
        self._orchestrator = orchestrator
        self._executor = executor
        self._local = executor.features.local
        self._model_budget = model_budget
        self._flows: OrderedDict[str, tuple[CallFlow, ExecSession]] = OrderedDict()
        #: What the sandbox refused to calls whose answer is being made.
        self._explained: dict[str, str] = {}
        self._host_notes: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._patches = PatchAccess(orchestrator, executor, local=self._local)
        self._writer: dict[str, PatchWriter] = {}

    async def start(self, call: ExecCall) -> Started:
        """Decide about a call and start it, or raise what forbids it."""
        flow = self._orchestrator.flow(self.call_of(call))
        return await self._start(call, flow, await flow.admit())

    async def _start(self, call: ExecCall, flow: CallFlow, attempt: Attempt) -> Started:
        session = await self._orchestrator.start(self._executor, call.spawn, flow, attempt)
        self._remember(call.call_id, flow, session)
        return Started(session, attempt.notes)

    def _remember(self, call_id: str, flow: CallFlow, session: ExecSession) -> None:
        self._flows[call_id] = (flow, session)
        while len(self._flows) > _MOST_FLOWS:
            self._flows.popitem(last=False)

    async def ended(self, call: ExecCall, ended: Ended) -> Started | None:
        """Perhaps start it again, with more permissions."""
        flow, _ = self._flows.pop(call.call_id, (None, None))
        if flow is None:
            return None
        denied = await ended.session.denied()
        self._note_hosts(call.call_id, flow, denied)
        try:
            attempt = await flow.after(denied, ended.output)
        except RetryRejected as rejection:
            wish = call.args.max_output_tokens
            budget = effective_budget(DEFAULT_TOKENS if wish is None else wish, self._model_budget)
            text = _rejected(rejection, ended, budget)
            raise ToolFailed(text, output=ended.output) from rejection
        if attempt is None:
            said = flow.explain(denied, ended.exit.code, ended.output)
            if said is not None:
                self._explained[call.call_id] = said
            return None
        spawn = replace(call.spawn, process_id=f"{call.spawn.process_id}-{attempt.number}")
        try:
            session = await self._orchestrator.start(self._executor, spawn, flow, attempt)
        except HandrailError as error:
            text = f"exec_command failed: it was to be run again, and {error}"
            raise ToolFailed(text, output=ended.output) from error
        self._flows[call.call_id] = (flow, session)
        return Started(session, (_again(attempt),))

    def explained(self, call_id: str) -> str | None:
        """The note for a call that ended within its first answer, if its sandbox refused something.

        It is forgotten then.
        """
        return self._explained.pop(call_id, None)

    async def late(self, call_id: str, code: int, output: bytes) -> str | None:
        """A process ended after its first answer: the note if its sandbox refused something.

        No question is asked then, for the model has gone on since; it can ask by calling again.
        """
        flow, session = self._flows.pop(call_id, (None, None))
        if flow is None or session is None:
            return None
        denied = await session.denied()
        self._note_hosts(call_id, flow, denied)
        flow.check_abort()
        if flow.settings.sandbox.managed is not None:
            denied = without_hosts(denied)
        flow.finished(Outcome.DENIED if denied.likely else Outcome.COMPLETED)
        return flow.explain(denied, code, output) or (LATE if denied.likely else None)

    def _note_hosts(self, call_id: str, flow: CallFlow, denied: Denied) -> None:
        notes = flow.host_notes(denied)
        if notes:
            self._host_notes[call_id] = notes
        while len(self._host_notes) > _MOST_FLOWS:
            self._host_notes.popitem(last=False)

    def host_notes(self, call_id: str) -> tuple[str, ...]:
        """The sentences about refused hosts that follow the output of an ended call; once."""
        return self._host_notes.pop(call_id, ())

    async def patch_reader(self) -> AsyncFiles | None:
        """The files to verify a patch against, in the sandbox of the settings."""
        return await self._patches.reader()

    async def patch(self, request: PatchRequest) -> AsyncFiles | None:
        """The files to write a patch through, in the sandbox of the settings."""
        writer = await admit_patch(
            self._patches, call_id=request.call_id, cwd=request.cwd, changes=request.changes
        )
        self._writer[request.call_id] = writer
        return writer

    async def patched(self, call_id: str) -> None:
        """A patch call is over: close its writer."""
        writer = self._writer.pop(call_id, None)
        if writer is not None:
            await writer.close()

    async def close(self) -> None:
        """End the processes that read and write files for patches."""
        await self._patches.close()

    def _environment(self, spawn: SpawnRequest, request: Request) -> Mapping[str, str]:
        """The environment of the command; of another machine only what is set from here is known.

        It is used to look up programs for rules and for questions about leaving the sandbox.
        """
        settings = self._orchestrator.settings
        looks = settings.policy.rules or request is not Request.USE_DEFAULT
        looks = looks or wants_retry(settings)
        if spawn.env_policy is None or not self._local or not looks:
            return spawn.env
        return env_policy.build(spawn.env_policy, spawn.env, os.environ)

    def call_of(self, call: ExecCall) -> Call:
        """The call as the orchestrator sees it; raises UsageError with a sentence for the model."""
        args, spawn = call.args, call.spawn
        cwd = posixpath.normpath(spawn.cwd)
        request, wants = read_request(
            self._orchestrator.settings,
            cwd,
            args.sandbox_permissions,
            args.justification,
            args.additional_permissions,
        )
        return Call(
            call.call_id,
            tuple(str(word) for word in spawn.argv),
            cwd,
            tty=args.tty,
            request=request,
            justification=args.justification,
            prefix_rule=args.prefix_rule,
            wants=wants,
            environment_id=args.environment_id or "local",
            env=self._environment(spawn, request),
        )


def _again(attempt: Attempt) -> str:
    how = "in the sandbox, with more opened" if attempt.sandboxed else "without the sandbox"
    return (
        f"the sandbox refused the first run, so the whole command was run again {how}; what the"
        " first run did remains"
    )


def _rejected(rejection: HandrailError, ended: Ended, budget: Budget) -> str:
    text = formatted(ended.output.decode("utf-8", "replace"), budget)
    return (
        f"{rejection} (the sandbox refused something and it was not run again)\n"
        f"Process exited with code {ended.exit.code}\nOutput:\n{text}"
    )
