"""A command as a sandbox starts it."""

from __future__ import annotations

import os

from handrail.sandbox.light_dataclass import Frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    from handrail.process.spec import ProcessSpec, Waiting
    from handrail.sandbox.bwrap.instance import RunningSandbox
    from handrail.sandbox.loopback import Joining
    from handrail.start_errors import SandboxError

    class AnyCommand(Protocol):
        """What a sandbox has to know of a command: a ``Command`` or a ``ProcessSpec``."""

        @property
        def argv(self) -> tuple[bytes, ...]: ...
        @property
        def cwd(self) -> bytes: ...
        @property
        def env(self) -> Mapping[bytes, bytes]: ...
        @property
        def arg0(self) -> bytes | None: ...
        @property
        def tty(self) -> bool: ...


#: Mechanisms.
NO_SANDBOX, BUBBLEWRAP, LANDLOCK = "none", "bubblewrap", "landlock"


class Command(Frozen):
    """A command of the command line, which imports no ``ProcessSpec``."""

    argv: tuple[bytes, ...]
    cwd: bytes
    env: Mapping[bytes, bytes]
    arg0: bytes | None = None
    tty: bool = False


class SandboxedCommand(Frozen):
    """What to start so that a command runs sandboxed, and the mechanism that enforces it.

    Call ``sent`` once the program that starts it has copies of the descriptors in ``passed``, or
    ``abandon`` when it is not started.
    """

    argv: tuple[bytes, ...]
    cwd: bytes
    env: Mapping[bytes, bytes]
    #: (number in the child, descriptor here).
    passed: tuple[tuple[int, int], ...] = ()
    mechanism: str = NO_SANDBOX
    #: Of bubblewrap: the processes around the command.
    running: RunningSandbox | None = None
    #: Of a sandbox that was made ahead: the command, and the child that waits for it.
    waiting: Waiting | None = None
    #: Descriptors that ``sent`` closes.
    closing: list[int] = []  # noqa: RUF012 (always given where there are any)
    #: Why it is not bubblewrap.
    reason: str = ""
    #: Whether the refusals of the kernel are recorded.
    watched: bool = False
    #: Whether the command may write a real path of the host.
    may_write: Callable[[bytes], bool] | None = None
    #: The network that it shares with others.
    joining: Joining | None = None
    #: Makes another of the same when bubblewrap met a file system that moved; raises the problem
    #: it is given once this was tried too often.
    again: Callable[[SandboxError], SandboxedCommand] | None = None

    def sent(self) -> None:
        """Close the descriptors that were passed."""
        if self.running is not None:
            self.running.sent()
        while self.closing:
            os.close(self.closing.pop())

    def abandon(self) -> None:
        """Release everything: the command is not started."""
        self.sent()
        if self.waiting is not None and self.waiting.discard is not None:
            self.waiting.discard()
        if self.running is not None:
            self.running.abandon()

    def spec(self, asked: ProcessSpec) -> ProcessSpec:
        """The spec to start in place of the one this was made of."""
        from handrail.sandbox.denial import (  # not for a single command on the command line
            judge,
            judge_watched,
        )

        if self.mechanism == NO_SANDBOX:
            return asked
        again, joining = self.again, self.joining
        return asked.changed(
            argv=self.argv,
            cwd=self.cwd,
            env=dict(self.env),
            arg0=None,
            passed=self.passed,
            asked=asked.command,
            running_sandbox=self.running,
            waiting=self.waiting,
            sandboxed=self.running is not None,
            loopback=None if joining is None else (joining.name, joining.key, joining.address),
            judge=judge_watched if self.watched else judge,
            sent=self.sent,
            again=None if again is None else lambda problem: again(problem).spec(asked),
        )
