"""One running child, its signals, and its parts.

Callers use the parts directly: ``output`` (``output/child_output.py``, the terminal too), ``stdin``
(``stdin/child_stdin.py``) and ``ending`` (``child_end.py``).
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Any, Protocol

from handrail.futures import set_done
from handrail.keeper import messages
from handrail.process.child_end import ChildEnd
from handrail.process.exit_status import ExitInfo
from handrail.process.keeper_client.answers import Spawned
from handrail.process.keeper_client.spawn_children import Launcher
from handrail.process.output.child_output import ChildOutput
from handrail.process.output.output_log import Chunk
from handrail.process.spec import ProcessSpec, SandboxHandle
from handrail.process.stdin.child_stdin import ChildStdin

#: How long a signal waits for a sandbox that is being set up, and how often it looks.
_SETUP_SECONDS = 20.0
_SETUP_PAUSE = 0.005


class Sink(Protocol):
    """A client or caller that wants to know what a child does, as it happens."""

    @property
    def ready(self) -> bool:
        """Whether output is wanted now; if not, ``child.output.resume`` is called later."""

    def output(self, child: Child, chunk: Chunk) -> None: ...
    def exited(self, child: Child, seq: int) -> None: ...
    def closed(self, child: Child, seq: int) -> None: ...
    def blocked(self, child: Child) -> None:
        """The child has output that was left in its pipe because ``ready`` was false."""

    def question(self, child: Child, question: Any) -> None:
        """A host that the child wants to reach is on no list; its network takes the answer."""

    def withdrawn(self, child: Child, number: int) -> None:
        """An answer to that question is not waited for any more."""

    def decided(self, child: Child, record: Any) -> None:
        """The proxy of the child has decided about a connection."""


class Child:
    """A process from its start until it is forgotten."""

    __slots__ = (
        "_started",
        "_waiters",
        "ending",
        "key",
        "launcher",
        "loop",
        "number",
        "on_closed",
        "on_exit",
        "output",
        "output_tag",
        "pid",
        "sink",
        "spec",
        "started_at",
        "stdin",
    )

    def __init__(
        self,
        key: str,
        spec: ProcessSpec,
        spawned: Spawned,
        launcher: Launcher,
        loop: asyncio.AbstractEventLoop,
        sink: Sink | None,
    ) -> None:
        self.key = key
        self.spec = spec
        self.number = spawned.child
        self.pid = spawned.pid
        self.launcher = launcher
        self.loop = loop
        self.sink = sink
        self.started_at, self._started = time.time(), time.monotonic()
        self.on_exit: Callable[[Child], None] | None = None
        self.on_closed: Callable[[Child], None] | None = None
        #: The beginning of each message about its output, as the server's notifier formats it.
        self.output_tag: bytes | None = None
        self._waiters: list[asyncio.Future[None]] | None = None
        self.output = ChildOutput(self, spec, spawned.fds)
        wanted = spec.tty or spec.pipe_stdin
        fd = spawned.fds[0 if spec.tty else 2] if wanted else -1
        self.stdin = ChildStdin(self, fd, tty=spec.tty, wanted=wanted)
        self.ending = ChildEnd(self, spawned.pidfd)

    def begin(self) -> None:
        """Start to read its output and to watch for its exit."""
        if self.ending.pidfd < 0:
            return  # discarded meanwhile
        known = self.launcher.take_exit(self.number)
        if known is None:
            self.go_on()
        else:  # told together with its start
            self.ending.exited(*known)  # takes what is in its pipes, most often all there is
            self.output.read()

    def go_on(self) -> None:
        """Version of `begin` for a child recovered from a previous server; it may have exited."""
        self.output.read()
        if self.ending.exit is not None:
            self.ending.maybe_closed()
            self.ending.drain_later()
            return
        self.launcher.watch(self.number, self.ending.exited)
        self.ending.go_on()

    # --- state ---------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self.ending.exit is None

    @property
    def closed(self) -> bool:
        return self.output.log.closed_seq is not None

    @property
    def exit(self) -> ExitInfo | None:
        """How it ended; None while it runs."""
        return self.ending.exit

    @property
    def mark(self) -> int | None:
        """The tag that its whole tree has inherited, as far as that is known."""
        return self.launcher.marks.get(self.number)

    @property
    def started(self) -> tuple[float, float]:
        """When it was started, by the clock on the wall and the monotonic one."""
        return self.started_at, self._started

    @started.setter
    def started(self, at: tuple[float, float]) -> None:
        self.started_at, self._started = at

    @property
    def age(self) -> float:
        """Seconds since the start; for a recovered child that had exited, its total run time."""
        until = self.ending.ended_at
        return max(0.0, (time.monotonic() if until is None else until) - self._started)

    async def changed(self, timeout: float) -> None:
        """Return when anything happens to this child, or after ``timeout`` seconds."""
        future: asyncio.Future[None] = self.loop.create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(future)
        timer = self.loop.call_later(timeout, set_done, future)
        try:
            await future
        finally:
            timer.cancel()
            if self._waiters is not None and future in self._waiters:
                self._waiters.remove(future)

    # --- signals -----------------------------------------------------------------------------

    async def signal(self, number: int, *, tree: bool = False) -> int:
        """Signal the process group, or every descendant; how many were reached."""
        if not self.running and not tree:
            return 0
        sandbox = self.spec.running_sandbox
        if sandbox is not None and self.running and number != signal.SIGKILL:
            return await self._signal_sandboxed(sandbox, number, tree)
        scope = messages.SCOPE_TREE if tree else messages.SCOPE_GROUP
        answer = await self.launcher.signal(self.number, number, scope)
        return messages.Count.unpack(answer.fields).number

    async def _signal_sandboxed(self, sandbox: SandboxHandle, number: int, tree: bool) -> int:
        """Signal the processes in the sandbox: bwrap would die of the signal, and they with it."""
        deadline = self.loop.time() + _SETUP_SECONDS
        while self.running:
            reached = sandbox.signal(number, tree=tree)
            if reached or self.loop.time() > deadline:
                return reached
            await self.changed(_SETUP_PAUSE)  # it is being set up
        return 0

    async def end(self, seconds: float) -> None:
        """Ask it to end, with grace; returns when all have ended or the KILL is sent."""
        if seconds > 0:
            self.ending.ask(seconds)
            await self.see_out(seconds)
        else:
            await self.ending.kill()

    async def see_out(self, seconds: float) -> None:
        """Wait for a child that was asked to end, and kill it when its grace is over."""
        await self.ending.see_out(seconds)
        await self.ending.kill()

    # --- what its parts tell -------------------------------------------------------------------

    def keep(self, name: bytes, fd: int) -> None:
        """Have the keeper hold a copy of a descriptor; raises OSError when it is too busy."""
        self.launcher.keep(self.number, name, fd)

    def wake(self) -> None:
        """Wake the callers of ``changed``: something has happened."""
        if self._waiters is not None:
            waiters, self._waiters = self._waiters, None
            for future in waiters:
                set_done(future)

    def told_exit(self) -> None:
        """Tell the sink of the exit, once."""
        if self.on_exit is not None:
            on_exit, self.on_exit = self.on_exit, None
            on_exit(self)

    def told_closed(self) -> None:
        """Tell the sink of the close, once."""
        if self.on_closed is not None:
            on_closed, self.on_closed = self.on_closed, None
            on_closed(self)

    def shrink(self) -> None:
        """Keep only what late readers may ask for, after the close; there may be very many."""
        self.spec = self.spec.without_env()
        if not self.output.is_behind:
            self.output_tag = None
        self.pid = 0
        self._started = 0.0
        self.stdin.shrink()
        self.output.shrink()

    def discard(self, *, forget: bool = True) -> None:
        """Release everything, retained output too.  The child must have ended or been killed.

        Without ``forget`` the keeper goes on knowing its family, so that it can be ended.
        """
        self.ending.discard()
        self.output.discard()
        self.stdin.close()
        if forget:
            self.launcher.forget(self.number)
        self.sink = None
        self.told_exit()  # discarded before its exit was known
        self.wake()
