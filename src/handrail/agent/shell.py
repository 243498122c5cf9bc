"""``AgentShell``: commands, input and patches of an agent, under policy and sandbox.

    async with AgentShell(Workspace("."), approver=ask, policy="on-request") as shell:
        answer = await shell.exec_command("pytest -q")
        print(answer.text)

``call`` takes a tool call as a model makes it and always has a text for it.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

from handrail import private_places
from handrail.agent.masked_records import masked_listener, masked_record
from handrail.agent.orchestrator_gate import OrchestratorGate
from handrail.agent.schemas import agent_tools
from handrail.agent.shell_session import SessionGate
from handrail.agent.target import (
    Target,
    Where,
    check_where,
    exists_on,
    networked,
    sandbox_mode,
    take,
)
from handrail.agent.tool_answer import ToolAnswer, range_text, with_hosts, with_note
from handrail.errors import ApprovalRejected, HandrailError, UsageError
from handrail.executor.base import Executor
from handrail.name_hints import NamesChecked
from handrail.network.settings import Network, checked
from handrail.orchestrator import settings as orchestration
from handrail.orchestrator.approvals import Answer, Approver, Hook, Question
from handrail.orchestrator.approvers import AnyApprover, as_approver
from handrail.orchestrator.audit import Listener as AuditListener
from handrail.orchestrator.audit import Notice, guarded, no_listener
from handrail.orchestrator.call_flow import TurnAborted
from handrail.orchestrator.one_shot import DEFAULT_TIMEOUT, Command, OnOutput, run_command
from handrail.orchestrator.result import ExecOutput, normalise
from handrail.orchestrator.run import Orchestrator
from handrail.orchestrator.settings import SandboxMode, read_approval, read_mode
from handrail.policy.context import Approval
from handrail.policy.layers import Rules, load_rules, rule_paths
from handrail.policy.rules import Policy, normal_path
from handrail.unified_exec import settings as unified
from handrail.unified_exec.events import Event, Listener
from handrail.unified_exec.gate import ExecCall
from handrail.unified_exec.manager import Background, UnifiedExec
from handrail.unified_exec.patch_command import intercepted
from handrail.unified_exec.spawn_request import spawn_request
from handrail.unified_exec.tools import (
    ExecAnswer,
    ExecCommandArgs,
    OutputRange,
    ToolFailed,
    WriteStdinArgs,
    check_fields,
    exec_command_args,
    read_arguments,
    read_output_args,
    write_stdin_args,
)
from handrail.workspace.arguments import check_callable, seconds, to_bytes, to_path
from handrail.workspace.profile import Profile

log = logging.getLogger(__name__)


class AgentShell(NamesChecked):
    """The shell of one agent; use it in ``async with``.

    ``where``: a workspace, whose variables commands get and whose secrets no answer shows, a
    directory of this machine, or an executor with ``cwd``.
    ``approver`` answers questions (None: every question is a no); a function is one too.
    ``policy`` says when it is asked: ``untrusted``, ``on-failure``, ``on-request``, ``never`` or a
    granular table; or it is a whole ``orchestrator.settings.Settings``, with its rules.
    ``approval_timeout``: seconds until a question without an answer is a no (None: no limit).
    ``sandbox`` is a name, a ``Profile`` or a ``SandboxMode``; without it the workspace's own.
    ``network`` is that of sandboxed commands: ``off``, ``open`` or ``Managed``, with the approver
    asked about hosts on no list; without it as ``sandbox`` or the workspace says.
    ``rules`` are rules files and directories of them, instead of the user's; those of the system
    are always in force.  ``rules_file`` is where «yes, always» goes.  ``login``: whether shells may
    read login profiles.  ``watch_denials``: whether a run that may be offered again outside of its
    sandbox records for certain what that refuses, where the executor can; otherwise that is guessed
    from its output.  Each change to a file takes longer then.  ``shell_session``: exec_command runs
    its commands in one bash, so that each finds the directory, variables and functions of the last.
    Raises UsageError, and when it is opened RulesFileError.
    """

    def __init__(
        self,
        where: Where,
        *,
        cwd: str | None = None,
        approver: AnyApprover | None = None,
        policy: str | Approval | Mapping[str, object] | orchestration.Settings = "on-request",
        approval_timeout: float | None = 300.0,
        sandbox: SandboxMode | Profile | str | None = None,
        network: Network | None = None,
        rules: Rules = None,
        rules_file: str | None = None,
        hooks: Sequence[Hook] = (),
        on_event: Listener | None = None,
        on_audit: AuditListener = no_listener,
        login: bool = False,
        watch_denials: bool = False,
        shell_session: bool = False,
        exec_settings: unified.Settings | None = None,
    ) -> None:
        check_where(where)
        if not isinstance(policy, Approval | orchestration.Settings):
            read_approval(policy)
        for name, given in (("on_event", on_event), ("on_audit", on_audit)):
            check_callable(given, name)
        if not isinstance(hooks, Sequence) or not all(map(callable, hooks)):
            raise UsageError(f"hooks are a list of coroutine functions, not {hooks!r}")
        self._where = where
        self._cwd = cwd
        self._approver = as_approver(approver)
        self._policy = policy
        self._approval_timeout = seconds(approval_timeout, "approval_timeout")
        if isinstance(sandbox, str):
            read_mode(sandbox)
        self._sandbox = sandbox
        self._network = None if network is None else checked(network)
        named = rule_paths(rules)
        self._rules = rules if named is None else named
        self._rules_file = None if rules_file is None else to_path(rules_file)
        for path in (*(named or ()), *(() if rules_file is None else (rules_file,))):
            private_places.add(path, directory=os.path.isdir(path), readable=True)
        self._hooks = tuple(hooks)
        self._on_event = on_event
        self._on_audit = on_audit
        self._login = login
        self._watch_denials = watch_denials
        self._shell_session = shell_session
        self._exec_settings = exec_settings
        self._open: _Open | None = None

    async def __aenter__(self) -> Self:
        hands = await take(self._where, self._cwd)
        hidden = hands.variables.secrets
        heard = None if self._on_event is None else masked_listener(self._on_event, hidden)
        try:
            if isinstance(self._sandbox, Profile | None):
                await hands.check_writable(self._sandbox)
            settings = self._settings(hands, (await hands.executor.place()).shell)
            settings = await _with_private_tmp(settings, hands)
            orchestrator = Orchestrator(
                settings,
                None if self._approver is None else _Pausing(self._approver, self),
                hooks=self._hooks,
                listener=masked_listener(self._on_audit, hidden),
                exists=None if hands.local else exists_on(hands.executor),
                local=hands.local,
            )
            executor = hands.executor
            variables = hands.variables.environment()
            exec_settings = self._exec_settings or unified.Settings(
                settings.cwd,
                allow_login=self._login,
                remote=not hands.local,
                env_policy=variables.policy,
            )
            env, inherits = {**variables.overlay, **exec_settings.env}, exec_settings.env_policy
            if inherits == unified.DEFAULT_ENV_POLICY:  # the caller has not chosen another
                inherits = variables.policy
            exec_settings = replace(exec_settings, env=env, env_policy=inherits)
            kind = SessionGate if self._shell_session else OrchestratorGate
            gate = kind(orchestrator, executor, model_budget=exec_settings.model_budget)
            manager = UnifiedExec(executor, settings=exec_settings, gate=gate, listener=heard)
        except BaseException:
            await hands.release()
            raise
        self._open = _Open(hands, executor, orchestrator, gate, manager, heard)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End every process of this shell; raises nothing of its own."""
        opened, self._open = self._open, None
        if opened is not None:
            try:
                await opened.manager.close()
                await opened.gate.close()
            finally:
                await opened.hands.release()

    # --- the tools -------------------------------------------------------------------------------

    async def exec_command(
        self, cmd: str, *, call_id: str | None = None, **more: Any
    ) -> ExecAnswer:
        """Run a shell command; ``more`` are the other arguments of the tool.

        Raises ToolFailed with a sentence for the model, TurnAborted, UsageError.
        """
        check_fields(more, ExecCommandArgs)
        return await self._executed(exec_command_args({"cmd": cmd, **more}), call_id)

    async def _executed(self, args: ExecCommandArgs, call_id: str | None) -> ExecAnswer:
        call_id = call_id or _new_id()
        with self._aborting():
            gate = self._now.gate
            try:
                answer = await self._now.manager.exec_command(args, call_id=call_id)
            finally:
                note = gate.explained(call_id)
                await gate.patched(call_id)
        answer = answer if note is None else with_note(answer, note)
        return with_hosts(answer, gate.host_notes(call_id))

    async def run(
        self,
        cmd: str,
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        stdin: str | bytes | None = None,
        on_output: OnOutput | None = None,
        check: bool = True,
        call_id: str | None = None,
        **more: Any,
    ) -> ExecOutput:
        """Run a shell command to its end under the same rules; the output as bytes.

        ``timeout`` is seconds (None: no limit), ``stdin`` its whole standard input; ``more`` are
        arguments of ``exec_command``.  Raises CommandTimedOut and KilledBySignal, both with the
        output so far, ApprovalRejected or Forbidden when it was not run, and UsageError.  With
        ``check=False`` such an end is an output too, with the error's text in ``stderr``.
        """
        timeout = seconds(timeout, "timeout")
        check_callable(on_output, "on_output")
        stdin = None if stdin is None else to_bytes(stdin)
        check_fields(more, ExecCommandArgs)
        try:
            return await self._run(cmd, timeout, stdin, on_output, call_id or _new_id(), more)
        except HandrailError as error:
            if check or isinstance(error, TurnAborted):
                raise
            return normalise(error)

    async def _run(
        self,
        cmd: str,
        timeout: float | None,
        stdin: bytes | None,
        on_output: OnOutput | None,
        call_id: str,
        more: Mapping[str, Any],
    ) -> ExecOutput:
        now = self._now
        args = exec_command_args({"cmd": cmd, **more})
        if args.tty:
            raise UsageError("`run` has no terminal; use exec_command with `tty`")
        spawn = await spawn_request(args, now.manager.settings, now.executor, 0)
        call = now.gate.call_of(ExecCall(call_id, 0, args, spawn))
        command = Command(call, spawn.env, timeout, on_output, stdin, spawn.env_policy)
        return await run_command(now.orchestrator, now.executor, command)

    async def write_stdin(self, session_id: int, chars: str = "", **more: Any) -> ExecAnswer:
        """Write to a session, or wait for it; raises UnknownProcess, ToolFailed, UsageError."""
        check_fields(more, WriteStdinArgs)
        args = write_stdin_args({"session_id": session_id, "chars": chars, **more})
        return await self._written(args)

    async def apply_patch(
        self, patch: str, *, workdir: str | None = None, call_id: str | None = None
    ) -> ExecAnswer:
        """Apply a patch; raises ToolFailed with the sentences models know, TurnAborted."""
        now = self._now
        call_id = call_id or _new_id()
        with self._aborting():
            try:
                answer = await intercepted(
                    ("apply_patch", patch),
                    normal_path(workdir or "", now.orchestrator.settings.cwd),
                    call_id,
                    files=now.executor.files,
                    gate=now.gate,
                    listener=self._tell,
                )
            finally:
                await now.gate.patched(call_id)
        assert answer is not None  # noqa: S101 (these words are always a patch)
        return answer

    def read_output(self, session_id: int, offset: int = 0, max_bytes: int = 32768) -> OutputRange:
        """A range of everything a session printed; raises UnknownProcess."""
        given = {"session_id": session_id, "offset": offset, "max_bytes": max_bytes}
        return self._now.manager.read_output(read_output_args(given))

    def background(self) -> list[Background]:
        """The running processes; raises UsageError outside of ``async with``."""
        return self._now.manager.background()

    async def terminate(self, session_id: int) -> bool:
        """End one; False if there is none of that id.  Raises TerminateFailed, or UsageError."""
        return await self._now.manager.terminate(session_id)

    async def clean(self) -> int:
        """End them all; returns how many.  Raises TerminateFailed, or UsageError."""
        return await self._now.manager.clean()

    def tools(self, form: str = "openai") -> list[dict[str, object]]:
        """The tools as an API wants them in a request; raises UsageError for another form.

        ``openai`` (Responses), ``openai-chat`` (Chat Completions), ``anthropic`` or ``mcp``.
        """
        given, policy = self._exec_settings, self._policy
        return agent_tools(
            form,
            login=self._login if given is None else given.allow_login,
            additional=isinstance(policy, orchestration.Settings) and policy.additional_permissions,
        )

    async def call(
        self, name: str, arguments: Mapping[str, Any] | str, *, call_id: str | None = None
    ) -> ToolAnswer:
        """Make one tool call of a model; an error becomes a text for it and is never raised.

        ``arguments`` are an object or its JSON text, as the API gives them.
        """
        try:
            arguments = read_arguments(arguments)
            match name:
                case "exec_command":
                    answer = await self._executed(exec_command_args(arguments), call_id)
                case "write_stdin":
                    answer = await self._written(write_stdin_args(arguments))
                case "apply_patch":
                    patch = arguments.get("patch", arguments.get("input"))
                    if not isinstance(patch, str):
                        raise UsageError("`patch` is missing: give the text of the patch")
                    workdir = arguments.get("workdir")
                    if not isinstance(workdir, str | None):
                        raise UsageError("`workdir` has to be a string")
                    answer = await self.apply_patch(patch, workdir=workdir, call_id=call_id)
                case "read_output":
                    found = self._now.manager.read_output(read_output_args(arguments))
                    return ToolAnswer(range_text(found))
                case _:
                    names = ", ".join(str(tool["name"]) for tool in self.tools())
                    raise UsageError(f"there is no tool {name!r}; there are {names}")
        except TurnAborted as error:
            return self._shown(ToolAnswer(str(error), ok=False, aborted=True))
        except HandrailError as error:
            return self._shown(ToolAnswer(str(error), ok=False))
        return self._shown(ToolAnswer(answer.text, answer=answer))

    def _shown(self, answer: ToolAnswer) -> ToolAnswer:
        if self._open is None:
            return answer
        return masked_record(answer, self._open.hands.variables.secrets)

    # --- internals -------------------------------------------------------------------------------

    @property
    def orchestrator(self) -> Orchestrator:
        """The orchestrator; ``update_environment`` changes later runs."""
        return self._now.orchestrator

    @property
    def _now(self) -> _Open:
        if self._open is None:
            raise UsageError("the shell is not open: use it in `async with`")
        return self._open

    async def _written(self, args: WriteStdinArgs) -> ExecAnswer:
        answer = await self._now.manager.write_stdin(args)
        if answer.exit_code is None:
            return answer
        note = await self._now.gate.late(answer.call_id, answer.exit_code, answer.raw)
        answer = answer if note is None else with_note(answer, note)
        return with_hosts(answer, self._now.gate.host_notes(answer.call_id))

    @contextmanager
    def asking(self, call_id: str) -> Iterator[None]:
        """Stop the waiting time of one call while a question about it is open; raises UsageError.

        Other calls are answered meanwhile.  An answer that comes after ``close`` starts nothing.
        """
        opened = self._now
        with opened.manager.asking(call_id):
            yield
        if self._open is not opened:
            raise UsageError("the shell has been closed meanwhile")

    @contextmanager
    def _aborting(self) -> Iterator[None]:
        """Find an abort in the chain of an error: it is for the program, not for the model."""
        try:
            yield
        except ToolFailed as error:
            if isinstance(error.__cause__, TurnAborted):
                raise error.__cause__ from None
            raise
        except ApprovalRejected as error:
            if isinstance(error, TurnAborted):
                raise
            raise ToolFailed(str(error)) from error

    def _settings(self, hands: Target, shell: str) -> orchestration.Settings:
        if isinstance(self._policy, orchestration.Settings):
            given = self._policy.policy if self._rules is None else self._rules
            return replace(self._policy, policy=self._load(given))
        if isinstance(self._policy, Approval):
            approval, granular = self._policy, None
        else:
            approval, granular = read_approval(self._policy)
        return orchestration.Settings(
            hands.cwd,
            approval,
            granular,
            networked(sandbox_mode(self._sandbox, hands), self._network),
            self._load(self._rules),
            self._rules_file,
            shell=shell,
            approval_timeout=self._approval_timeout,
            watch_denials=self._watch_denials,
        )

    def _load(self, rules: Rules) -> Policy:
        """The rules in force; files that are left out are told to the log and the listener."""
        loaded = load_rules(rules)
        for problem in loaded.problems:
            log.warning("%s", problem)
            guarded(self._on_audit)(Notice("", str(problem)))
        return loaded.policy

    def _tell(self, event: Event) -> None:
        if (heard := self._now.heard) is not None:
            guarded(heard)(event)


async def _with_private_tmp(
    settings: orchestration.Settings, hands: Target
) -> orchestration.Settings:
    mode = settings.sandbox
    wanted = mode.restricted and not (mode.exclude_slash_tmp and mode.exclude_tmpdir)
    if not wanted or hands.private_tmp is None or settings.private_tmp is not None:
        return settings
    return replace(settings, private_tmp=await hands.private_tmp())


@dataclass(frozen=True, slots=True)
class _Open:
    hands: Target
    executor: Executor
    orchestrator: Orchestrator
    gate: OrchestratorGate
    manager: UnifiedExec
    #: ``on_event``.
    heard: Listener | None


class _Pausing:
    """An approver with questions that stop the waiting time of their call."""

    def __init__(self, approver: Approver, shell: AgentShell) -> None:
        self._approver = approver
        self._shell = shell

    async def ask(self, question: Question) -> Answer:
        with self._shell.asking(question.call_id):
            return await self._approver.ask(question)


def _new_id() -> str:
    return f"call_{secrets.token_hex(8)}"
