"""Makes tool calls and answers each in time.  Knows no MCP; ``server.py`` does.

A call that is not done when the time for its answer is up keeps running under its name, and the
reply says how to get its answer: ``write_stdin`` with that name as session_id.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from handrail.agent.shell import AgentShell
from handrail.agent.tool_answer import ToolAnswer, range_text
from handrail.errors import HandrailError
from handrail.mcp_server.call_approvals import PREFIX, Channel, PendingCall, PendingCalls
from handrail.orchestrator.approvals import Answer, Question
from handrail.unified_exec.tools import read_output_args
from handrail.unified_exec.truncate import DEFAULT_TOKENS

#: Hosts give up after a minute; an answer comes within this many seconds.
ANSWER_WITHIN = 45.0
MOST_ANSWER_WITHIN = 50.0
#: How often a waiting host gets progress.
_BEAT = 1.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What a host gets."""

    text: str
    ok: bool = True
    structured: dict[str, object] | None = None


@dataclass(frozen=True, slots=True)
class InputNeeded:
    """The host has to ask its user and call again with the answer and the state."""

    state: str
    question: Question


class ToolCalls:
    """The tool calls of one shell; any number at a time."""

    def __init__(
        self,
        shell: AgentShell,
        pending: PendingCalls,
        *,
        answer_within: float = ANSWER_WITHIN,
    ) -> None:
        self._shell = shell
        self._pending = pending
        self._within = min(answer_within, MOST_ANSWER_WITHIN)

    async def call(
        self, name: str, arguments: Mapping[str, Any], channel: Channel
    ) -> Reply | InputNeeded:
        """Make one tool call."""
        match name:
            case "list_processes":
                return self._list()
            case "kill":
                return await self._kill(arguments)
            case "read_output":
                return self._read(arguments)
        if name == "write_stdin" and str(arguments.get("session_id", "")).startswith(PREFIX):
            return await self._later(arguments, channel)
        call = self._pending.new()
        given = self._patient(name, arguments)
        call.start(self._shell.call(name, given, call_id=call.name))
        return await self._follow(call, channel)

    async def resume(
        self, state: str, read: Callable[[Question], Answer | None], channel: Channel
    ) -> Reply | InputNeeded:
        """Repeat a call with an answer; ``read`` is the answer to the question of that state."""
        call, question = self._pending.of_state(state)
        if call is None:
            return _unknown(state)
        answer = None if question is None else read(question)
        if question is not None and answer is not None:
            call.answer(answer, question)
        elif call.question is not None:
            # Nothing was said to the open question: it is to be put again.
            call.put = False
        return await self._follow(call, channel)

    async def close(self) -> None:
        """Cancel the waiting calls."""
        await self._pending.close()

    async def _follow(self, call: PendingCall, channel: Channel) -> Reply | InputNeeded:
        start = time.monotonic()
        while True:
            if call.done:
                return self._done(call)
            if call.question is not None and not call.put:
                call.put = True
                if channel.asks_in_reply:
                    return InputNeeded(call.state, call.question)
                self._pending.put(call, call.question, channel)
            left = self._within - (time.monotonic() - start)
            if left <= 0:
                return self._waiting(call)
            await self._change(call, min(left, _BEAT))
            passed = time.monotonic() - start
            await channel.progress(passed, self._within, _state(call))

    async def _change(self, call: PendingCall, seconds: float) -> None:
        call.changed.clear()
        if call.done or (call.question is not None and not call.put):
            return
        try:
            async with asyncio.timeout(seconds):
                await call.changed.wait()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            # The host has cancelled the call, so the shell does; a running process stays.
            if call.task is not None:
                call.task.cancel()
                self._pending.forget(call)
            raise

    def _done(self, call: PendingCall) -> Reply:
        self._pending.forget(call)
        assert call.task is not None  # noqa: S101 (it is done)
        return _reply(call.task.result())

    def _waiting(self, call: PendingCall) -> Reply:
        text = (
            f"{_state(call)}; the call goes on. Get its answer with write_stdin and session_id"
            f' "{call.name}"'
        )
        return Reply(text, structured={"pending": call.name})

    async def _later(self, arguments: Mapping[str, Any], channel: Channel) -> Reply | InputNeeded:
        if arguments.get("chars"):
            return Reply("a call that still waits takes no input: leave `chars` out", ok=False)
        call = self._pending.get(arguments["session_id"])
        if call is None:
            return _unknown(str(arguments["session_id"]))
        return await self._follow(call, channel)

    def _patient(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Limit the wait to the time for an answer, and the text to what fits a model."""
        if name not in ("exec_command", "write_stdin"):
            return arguments
        given = dict(arguments)
        wanted = given.get("yield_time_ms")
        most = int((self._within - 1) * 1000)
        if isinstance(wanted, int) and wanted > most:
            given["yield_time_ms"] = most
        if given.get("max_output_tokens") is None:
            # Without a limit the structured answer would be whole, and hosts show models that one.
            given["max_output_tokens"] = DEFAULT_TOKENS
        return given

    def _list(self) -> Reply:
        found = self._shell.background()
        lines = [f"{one.process_id}  {one.command}  (in {one.cwd})" for one in found]
        entries = [
            {"session_id": one.process_id, "command": one.command, "cwd": one.cwd} for one in found
        ]
        text = "\n".join(lines) or "No process is running."
        return Reply(text, structured={"processes": entries})

    async def _kill(self, arguments: Mapping[str, Any]) -> Reply:
        try:
            number = read_output_args({"session_id": arguments.get("session_id")}).session_id
            ended = await self._shell.terminate(number)
        except HandrailError as error:
            return Reply(str(error), ok=False)
        if ended:
            return Reply(f"Session {number} was ended with everything it started.")
        return Reply(f"Unknown process id {number}: nothing of that id runs.", ok=False)

    def _read(self, arguments: Mapping[str, Any]) -> Reply:
        try:
            args = read_output_args(arguments)
            found = self._shell.read_output(args.session_id, args.offset, args.max_bytes)
        except HandrailError as error:
            return Reply(str(error), ok=False)
        structured: dict[str, object] = {
            "offset": found.offset,
            "next_offset": found.offset + len(found.data),
            "total": found.total,
            "missing": found.missing,
            "output": found.data.decode("utf-8", "replace"),
        }
        return Reply(range_text(found), structured=structured)


def _unknown(name: str) -> Reply:
    return Reply(f"there is no call {name} waiting: make it again", ok=False)


def _state(call: PendingCall) -> str:
    return "Waiting for an approval" if call.question is not None else "Still running"


def _reply(answer: ToolAnswer) -> Reply:
    structured = None if answer.answer is None else answer.answer.structured()
    text = answer.text
    if answer.aborted:
        text += "\nThe user wants this turn to stop: do nothing more and say so."
    return Reply(text, answer.ok, structured)
