"""``Shell``: blocking version of ``AsyncShell``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, overload

from handrail.process.exit_status import ExitInfo
from handrail.workspace.result import Output, Result
from handrail.workspace.sessions.shell import MAX_OUTPUT, AsyncShell
from handrail.workspace.synchronous.blocking import BlockingSession
from handrail.workspace.synchronous.callback_thread import CallbackThread

if TYPE_CHECKING:
    from typing import Unpack

    from handrail.workspace.options import SessionRunOptions


class Shell(BlockingSession[AsyncShell]):
    """A shell session.  Made by ``Workspace.shell``; every call may come from any thread.

    Each command is evaluated by the same shell: its directory, variables, functions, options and
    background jobs are there for the next one.  As a context manager it ends the shell.
    """

    @property
    def cwd(self) -> str:
        """The shell's working directory after the last command."""
        return self._twin.cwd

    @property
    def alive(self) -> bool:
        """Whether the shell runs; a command such as ``exit`` or ``exec`` ends it."""
        return self._twin.alive

    @property
    def exit(self) -> ExitInfo | None:
        """How the shell ended; None while it runs."""
        return self._twin.exit

    @overload
    def run(
        self,
        command: str | bytes,
        *,
        text: Literal[True] = True,
        **options: Unpack[SessionRunOptions],
    ) -> Result[str]: ...
    @overload
    def run(
        self, command: str | bytes, *, text: Literal[False], **options: Unpack[SessionRunOptions]
    ) -> Result[bytes]: ...
    def run(
        self,
        command: str | bytes,
        *,
        timeout: float | None = None,
        input: str | bytes | None = None,  # noqa: A002 (the name subprocess has for it)
        check: bool = False,
        text: bool = True,
        on_output: Callable[[Output], object] | None = None,
        max_output: int | None = MAX_OUTPUT,
    ) -> Result[Any]:
        """Evaluate a command in the shell and return its result; see ``AsyncShell.run``.

        ``timeout`` is in seconds.  ``on_output`` is called in a thread of its own and has heard
        everything when this returns.
        """
        listening = None if on_output is None else CallbackThread(on_output)
        try:
            result: Result[Any] = self._call(
                self._twin.run(  # type: ignore[call-overload,misc]
                    command,
                    timeout=timeout,
                    input=input,
                    text=text,
                    on_output=listening,
                    max_output=max_output,
                )
            )
        except BaseException:
            if listening is not None:
                listening.end()
            raise
        if listening is not None:
            listening.finish()
        return result.check() if check else result
