"""An executor whose sandbox is a word in the script, and approvers that keep what they were asked.

Commands are real processes.  A run with an intent fails as a sandbox would make it fail if its
script says ``guarded``; without one, or with the path granted, it succeeds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from handrail.executor.base import Denied, ExecSession, SpawnRequest
from handrail.executor.local import LocalExecutor
from handrail.filesystem.pool import FilePool
from handrail.orchestrator.approvals import Answer, Choice, Question
from handrail.orchestrator.audit import Event, ToolDecision
from handrail.orchestrator.call import Call
from handrail.orchestrator.run import Orchestrator
from handrail.orchestrator.settings import Settings
from handrail.sandbox.profile import Intent
from handrail.sandboxed_files.mount_view import MountView
from handrail.sandboxed_files.pool import FileHelper

PATH = {"PATH": "/usr/bin:/bin"}
REFUSED = "echo \"touch: cannot touch '/usr/x1': Read-only file system\" >&2; exit 1"


class Trail:
    """A listener that keeps the events, and counts the decisions."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.decisions: Counter[tuple[str, str]] = Counter()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, ToolDecision):
            self.decisions[event.tool, event.choice.value] += 1

    def of(self, call_id: str) -> list[Event]:
        """The events of one call, in order."""
        return [event for event in self.events if event.call_id == call_id]


class Session:
    """A real session that says what its sandbox refused."""

    def __init__(self, inner: ExecSession, denied: Denied) -> None:
        self._inner = inner
        self._denied = denied

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def denied(self) -> Denied:
        return self._denied


class ScriptedExecutor(LocalExecutor):
    """Pretends to sandbox: ``guarded`` scripts fail under an intent that does not open /usr."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[SpawnRequest] = []
        #: The intents of file calls, each once, in order.
        self.file_intents: dict[Intent, None] = {}
        #: What in an intent lets a guarded script through.
        self.opens = "b'/usr'"

    async def file_helper(self, pool: FilePool, intent: Intent, *, writes: bool) -> FileHelper:
        self.file_intents[intent] = None
        return await super().file_helper(pool, intent, writes=writes)

    async def file_view(
        self, pool: FilePool, intent: Intent, *, writes: bool
    ) -> tuple[MountView | None, FileHelper | None]:
        self.file_intents[intent] = None
        return await super().file_view(pool, intent, writes=writes)

    async def spawn(self, request: SpawnRequest) -> Any:
        self.requests.append(request)
        free = request.sandbox is None
        opened = self.opens in str(request.sandbox)
        bare = replace(request, sandbox=None)
        refused = not free and not opened and "guarded" in str(request.argv[-1])
        if refused:
            bare = replace(bare, argv=("/bin/sh", "-c", REFUSED))
        return Session(await super().spawn(bare), Denied(likely=refused))


class Scribe:
    """An approver with prepared answers; the last one is given again and again."""

    def __init__(self, *answers: Answer | Choice) -> None:
        self.questions: list[Question] = []
        self._answers = list(answers)

    async def ask(self, question: Question) -> Answer:
        self.questions.append(question)
        await asyncio.sleep(0)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return Answer(answer) if isinstance(answer, Choice) else answer


class Room:
    """An orchestrator, its executor, its approver and its trail."""

    def __init__(self, settings: Settings, *answers: Answer | Choice, **more: Any) -> None:
        self.executor = ScriptedExecutor()
        self.scribe = Scribe(*answers or (Choice.DENY,))
        self.trail = Trail()
        more.setdefault("listener", self.trail)
        self.orchestrator = Orchestrator(settings, self.scribe, **more)


def sh(script: str, call_id: str = "c1", **more: Any) -> Call:
    """A call of a script."""
    return Call(call_id, ("/bin/bash", "-c", script), more.pop("cwd", "/"), **more)


def played(room: Room, main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run ``main`` and put the executor away."""

    async def whole() -> Any:
        try:
            return await main()
        finally:
            await room.executor.close()

    return asyncio.run(whole())
