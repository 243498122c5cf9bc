"""The sandboxed file helpers of one owner: one warm process for each plan in use.

The owner is a connection of a server, or a local executor.

How it works.  A helper is a child of the keeper like any other, started in the sandbox that a
command with the same profile would get, and called over a socket that only its owner holds:
when the connection ends, or the owner dies, the helper reads end-of-file and exits.  A plan that
changed (a new repository, a root that was swapped) is another plan and gets another helper.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import OrderedDict
from collections.abc import Collection, Hashable
from dataclasses import replace
from typing import Any

import handrail.sandboxed_files
from handrail.errors import FilesError, SandboxUnavailable
from handrail.filesystem.pool import DEADLINE
from handrail.futures import retrieve_exception, set_done
from handrail.process.keeper_client.answers import Spawned
from handrail.process.keeper_client.spawn_children import Launcher
from handrail.process.spawning import spawn
from handrail.process.spec import ProcessSpec, SandboxHandle
from handrail.sandboxed_files.client import FileHelperClient, Reply
from handrail.sandboxed_files.frames import path_text
from handrail.sandboxed_files.mount_view import MountView
from handrail.sandboxed_files.plan import FileSandbox, interpreter
from handrail.sandboxed_files.program import THREADS

#: Helpers that an owner keeps warm; the least recently used one is closed.
MOST_HELPERS = 8
#: The fd under which a helper finds its socket, above those that a plan needs.
SOCKET_FD = 300
#: The fd of the program that it begins with.
_STUB_FD = 301
_PROGRAM = os.path.realpath(
    os.path.join(os.path.dirname(handrail.sandboxed_files.__file__), "program.py")
)
#: Seconds for a helper to exit by itself after its owner hung up.
GRACE = 1.0


def helper_command(*, greets: bool) -> ProcessSpec:
    """The helper as a plain command: it contains nothing of any request."""
    argv = [interpreter(), "-I", "-S", "-B", _PROGRAM, str(SOCKET_FD)]
    if greets:
        argv.append("greet")
    env = {name: os.environ[name] for name in ("TMPDIR", "TMP", "TEMP") if name in os.environ}
    env["PATH"] = "/usr/bin:/bin"
    return ProcessSpec(
        argv=tuple(os.fsencode(word) for word in argv),
        cwd=os.fsencode(os.path.dirname(_PROGRAM)),  # readable in every plan of a helper
        env={os.fsencode(k): os.fsencode(v) for k, v in env.items()},
    )


class FileHelper:
    """One helper, from its start to its end."""

    def __init__(
        self, launcher: Launcher, loop: asyncio.AbstractEventLoop, ending: set[FileHelper]
    ) -> None:
        self._launcher = launcher
        self._loop = loop
        self._ending = ending
        self._spawned: Spawned | None = None
        self._inside: SandboxHandle | None = None
        self.link: FileHelperClient | None = None
        #: Its mounts, which this process can look at; None: not now.
        self.view: MountView | None = None
        #: Done when it is known whether there is one.
        self.seen: asyncio.Future[None] = loop.create_future()
        self._shows = False
        self._refused: tuple[bytes, ...] = ()
        #: Handles the client has open in this helper.
        self.handles: set[str] = set()
        self.words = ""
        self._stderr = -1
        self._timer: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()
        self._told: set[asyncio.Task[None]] = set()

    async def start(
        self,
        spec: ProcessSpec,
        refused: tuple[bytes, ...],
        *,
        shows: bool = False,
        begun: ProcessSpec | None = None,
    ) -> bool:
        """Start it and wait until it answers; False when its sandbox was not set up.

        Then nothing of it is left, and ``words`` says why.  It never makes a name of ``refused``.
        ``shows``: its mounts are all that keeps it from reading.  ``begun``: the command that
        the stub in the sandbox becomes, else there is none.  Raises FilesError.
        """
        self._shows = shows
        self._refused = refused
        ours, theirs = socket.socketpair()
        program = -1
        try:
            if begun is not None:
                program = _stub()
                spec = _with_stub(spec, begun, program)
            self._inside = inside = spec.running_sandbox
            self._spawned = await self._spawn(_with_socket(spec, theirs.fileno()))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            if program >= 0:
                os.close(program)
        stdout, self._stderr = self._spawned.fds
        os.close(stdout)
        os.close(self._spawned.pidfd)
        self._launcher.watch(self._spawned.child, self._exited)
        self.link = FileHelperClient(ours, self._loop, self._hung_up, self._greeted)
        if inside is not None and not await inside.set_up(self._loop):
            await self._end()
            return False
        try:
            names = [path_text(path) for path in refused]
            (await self.link.call("refuse", names, deadline=DEADLINE)).result()
        except FilesError:
            await self._end()
            raise FilesError(
                "the sandbox for file calls could not be entered, so nothing was done: "
                + (self.words or "it gave no reason")
            ) from None
        return True

    def _greeted(self, passed: list[int]) -> None:
        """Look at its mounts from now on, if that is all there is to it."""
        if self._shows and not self.seen.done():
            self.view = MountView.of(passed, self._refused)
        else:
            for fd in passed:
                os.close(fd)
        self._look_away(keep=True)

    def _look_away(self, *, keep: bool = False) -> None:
        """Have its mounts be used no more, or as they are known now."""
        if self.view is not None and not keep:
            self.view.close()
            self.view = None
        set_done(self.seen)

    async def _end(self) -> None:
        """See it gone, with what it said; it may hang rather than have ended."""
        self._hung_up()
        try:
            async with asyncio.timeout(DEADLINE):
                await self._gone.wait()
        except TimeoutError:  # no keeper is there that could tell of its end
            self._close_stderr()

    async def _spawn(self, spec: ProcessSpec) -> Spawned:
        try:
            return await spawn(self._launcher, spec)
        except BaseException:
            self._settle()
            raise

    @property
    def usable(self) -> bool:
        """Whether it may be given another call."""
        return self.link is not None and self.link.alive and self.link.hung < THREADS

    @property
    def busy(self) -> bool:
        """Whether closing it now would break a call or a handle."""
        return bool(self.handles) or (self.link is not None and self.link.busy)

    async def ended(self) -> None:
        """Return when nothing of it is left."""
        await self._gone.wait()

    async def call(self, op: str, *arguments: Any, body: bytes | memoryview = b"") -> Reply:
        """Run one operation in the helper."""
        if self.link is None:
            raise FilesError("the sandboxed file helper has not been started")
        return await self.link.call(op, list(arguments), body, deadline=DEADLINE)

    def tell(self, op: str, *arguments: Any) -> None:
        """Start an operation that nothing waits for, and that may fail."""
        task = self._loop.create_task(self._try(op, *arguments))
        self._told.add(task)
        task.add_done_callback(self._told.discard)

    async def _try(self, op: str, *arguments: Any) -> None:
        try:
            await self.call(op, *arguments)
        except FilesError:
            pass  # the helper is gone, and what it had open with it

    def close(self) -> None:
        """Hang up, and end it if it does not exit by itself."""
        self._look_away()
        if self.link is not None:
            self.link.close()
        self._close_stderr()
        self._hung_up()

    def _hung_up(self) -> None:
        """Wait until the helper exits after the hang-up, and kill it if it does not."""
        self._look_away()
        if self._spawned is not None and self._timer is None:
            self._ending.add(self)
            self._timer = self._loop.call_later(GRACE, self._launcher.kill, self._spawned.child)

    def _exited(self, *_: int) -> None:
        if self._spawned is not None:
            self._launcher.kill(self._spawned.child)  # whatever descendants are left
            self._launcher.forget(self._spawned.child)
            self.lost()

    def lost(self) -> None:
        """Give the helper up: its keeper is gone, and with it the helper, now or soon."""
        self._spawned = None
        self._look_away()
        if self._timer is not None:
            self._timer.cancel()
        self._close_stderr()
        if self.link is not None:
            self.link.close()
        self._settle()
        self._ending.discard(self)
        self._gone.set()

    def _close_stderr(self) -> None:
        fd, self._stderr = self._stderr, -1
        if fd >= 0:
            self.words = _last_words(fd)
            os.close(fd)

    def _settle(self) -> None:
        """Remove the placeholders of the plan when its sandbox is empty."""
        inside, self._inside = self._inside, None
        if inside is not None:
            inside.settle(self._loop, _nothing)


class FileHelpers:
    """The helpers of one owner, by plan."""

    def __init__(
        self, launcher: Launcher, loop: asyncio.AbstractEventLoop, ending: set[FileHelper]
    ) -> None:
        """``ending`` has those that are shutting down, for the owner's end."""
        self._launcher = launcher
        self._loop = loop
        self._ending = ending
        self._helpers: OrderedDict[Hashable, asyncio.Task[FileHelper]] = OrderedDict()
        #: Those that have begun, by plan: they show their mounts before they answer.
        self._begun: dict[Hashable, FileHelper] = {}
        self._starting: set[asyncio.Task[FileHelper]] = set()
        self._handles: dict[str, FileHelper] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._helpers)

    @property
    def handles(self) -> dict[str, FileHelper]:
        """Which helper has which of the client's handles."""
        return self._handles

    async def view(self, sandbox: FileSandbox) -> MountView | None:
        """The mounts of this plan's helper, which is started if need be; None: ask the helper."""
        view = self.known_view(sandbox)
        if view is None:
            task = self._task(sandbox)
            while not task.done():
                begun = self._begun[sandbox.key]  # a second try has another
                if begun.seen.done():
                    break
                either: set[asyncio.Future[Any]] = {task, begun.seen}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            view = self.known_view(sandbox)
        return view

    def known_view(self, sandbox: FileSandbox) -> MountView | None:
        """The same if it is there already."""
        begun = self._begun.get(sandbox.key)
        if begun is None or begun.view is None:
            return None
        self._helpers.move_to_end(sandbox.key)
        return begun.view

    def begun(self, sandbox: FileSandbox) -> FileHelper | None:
        """The helper of this plan, which may not answer yet."""
        return self._begun.get(sandbox.key)

    async def get(self, sandbox: FileSandbox) -> FileHelper:
        """The warm helper of this plan, or a new one."""
        task = self._task(sandbox)
        return task.result() if task.done() else await asyncio.shield(task)

    def _task(self, sandbox: FileSandbox) -> asyncio.Task[FileHelper]:
        key = sandbox.key
        task = self._helpers.get(key)
        if task is None or (task.done() and not _usable(task)):
            if self._closed:
                raise FilesError("the connection or executor is closed; open another")
            if task is not None:
                self._drop(key)
            self._make_room()
            first = self._begun[key] = FileHelper(self._launcher, self._loop, self._ending)
            task = self._loop.create_task(self._start(sandbox, first))
            task.add_done_callback(retrieve_exception)
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)
            self._helpers[key] = task
        self._helpers.move_to_end(key)
        return task

    async def _start(self, sandbox: FileSandbox, helper: FileHelper) -> FileHelper:
        # Without a plan it is Landlock that restricts, and only the helper itself.
        shows = sandbox.plan is not None
        stubbed = sandbox.has_proc and _has_stub()
        command = helper_command(greets=not stubbed)
        spec = sandbox.sandboxed(command)
        while True:
            try:
                begun = command if stubbed else None
                stands = await helper.start(spec, sandbox.refused, shows=shows, begun=begun)
            except BaseException:
                helper.close()
                raise
            if stands:
                break
            spec = _another(spec, helper.words)
            helper = FileHelper(self._launcher, self._loop, self._ending)
            if sandbox.key in self._begun:
                self._begun[sandbox.key] = helper
        if self._closed:
            helper.close()
        return helper

    async def release(self, used: Collection[FileHelper]) -> None:
        """End those that do nothing now; returns when they are gone."""
        for key, task in list(self._helpers.items()):
            if not task.done() and self._begun[key] in used:
                await asyncio.wait({task})  # its mounts were used before it has started
            if _usable(task) and task.result() in used and not task.result().busy:
                self._drop(key)
                await task.result().ended()

    def lost(self) -> None:
        """The keeper is gone, and the helpers with it."""
        running = set(self._begun.values())
        self.close()
        for helper in running | self._ending:
            helper.lost()

    async def started(self) -> None:
        """Wait for those that are being started; after ``close`` they end with that."""
        if self._starting:
            await asyncio.wait(self._starting)

    def close(self) -> None:
        """Close all helpers; the owner has ended."""
        self._closed = True
        for key in list(self._helpers):
            self._drop(key)
        self._handles.clear()

    def _make_room(self) -> None:
        for key, task in list(self._helpers.items()):
            if len(self._helpers) < MOST_HELPERS:
                return
            if task.done() and not (_usable(task) and task.result().busy):
                self._drop(key)

    def _drop(self, key: Hashable) -> None:
        task = self._helpers.pop(key)
        self._begun.pop(key, None)
        if not task.done():
            return  # it closes itself when it has started
        if not task.cancelled() and task.exception() is None:
            helper = task.result()
            for handle in helper.handles:
                self._handles.pop(handle, None)
            helper.close()


def _another(spec: ProcessSpec, said: str) -> ProcessSpec:
    """The next try of a sandbox that was not set up; raises SandboxError."""
    problem = SandboxUnavailable(said or "it gave no reason")
    if spec.again is None:
        raise problem
    return spec.again(problem)


def _usable(task: asyncio.Task[FileHelper]) -> bool:
    if not task.done() or task.cancelled() or task.exception() is not None:
        return False
    return task.result().usable


def _nothing() -> None:
    """Ignore output; nothing reads it."""


def _with_socket(spec: ProcessSpec, fd: int) -> ProcessSpec:
    return replace(spec, passed=(*spec.passed, (SOCKET_FD, fd)))


def _with_stub(spec: ProcessSpec, command: ProcessSpec, program: int) -> ProcessSpec:
    """The sandboxed command with this program before it, which becomes it."""
    at = len(spec.argv) - len(command.argv)
    argv = (*spec.argv[:at], b"/proc/self/fd/%d" % _STUB_FD, *command.argv)
    return replace(spec, argv=argv, passed=(*spec.passed, (_STUB_FD, program)))


# What the stub needs is imported with the first helper.


def _has_stub() -> bool:
    """Whether helpers can begin with the stub on this machine."""
    from handrail.keeper.seccomp import spawn as seccomp_spawn
    from handrail.sandboxed_files import view_stub

    return os.uname().machine in view_stub.MACHINES and seccomp_spawn.startable()


def _stub() -> int:
    """The program that a helper begins with; raises OSError."""
    from handrail.sandbox.warm import programs
    from handrail.sandboxed_files import view_stub

    return programs.sealed("handrail-view", view_stub.elf(SOCKET_FD, _STUB_FD))


def _last_words(fd: int) -> str:
    """What a helper printed on stderr: why the sandbox could not be entered."""
    try:
        said = os.read(fd, 4096)
    except OSError:
        return ""
    lines = said.decode("utf-8", "replace").strip().splitlines()
    # The mounter, which has said why, ends bwrap by a reset (``bwrap/mounter_stub.py``).
    if len(lines) > 1 and lines[-1].endswith(os.strerror(errno.ECONNRESET)):
        lines.pop()
    return lines[-1][:400] if lines else ""
