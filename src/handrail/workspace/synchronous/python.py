"""``PythonSession``: blocking version of ``AsyncPythonSession``."""

from __future__ import annotations

from handrail.workspace.sessions.python import AsyncPythonSession
from handrail.workspace.sessions.python_result import PythonResult
from handrail.workspace.sessions.shell import MAX_OUTPUT
from handrail.workspace.synchronous.blocking import BlockingSession
from handrail.workspace.synchronous.process import Process


class PythonSession(BlockingSession[AsyncPythonSession]):
    """A Python session.  Made by ``Workspace.python``; every call may come from any thread.

    Each piece of code finds the variables, imports and directory of the last.  As a context
    manager it ends the interpreter.
    """

    @property
    def alive(self) -> bool:
        """Whether the interpreter runs; code such as ``os._exit(1)`` ends it."""
        return self._twin.alive

    @property
    def process(self) -> Process:
        """Its process, as ``processes`` of the workspace has it; raises UsageError once closed."""
        return Process(self._twin.process, self._call)

    def run(
        self, code: str, *, timeout: float | None = None, max_output: int | None = MAX_OUTPUT
    ) -> PythonResult:
        """Run code and return its result; ``timeout`` is in seconds.

        See ``AsyncPythonSession.run`` for what is raised.
        """
        found: PythonResult = self._call(
            self._twin.run(code, timeout=timeout, max_output=max_output)
        )
        return found
