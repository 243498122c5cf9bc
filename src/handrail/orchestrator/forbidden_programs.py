"""Hides programs that the rules forbid as a whole in the sandbox of a run.

Policy reads commands, and cannot know what an existing script does or which name it computes.
Mounts need not know: the file of a forbidden program is covered like a denied one, so it can be
neither run nor copied.  Where nothing is forbidden as a whole this costs nothing.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
from dataclasses import dataclass, field, replace

from handrail.errors import HandrailError
from handrail.executor.base import Executor, SpawnRequest
from handrail.orchestrator.sandboxed_files import Cover
from handrail.orchestrator.settings import Settings, native, writable_roots
from handrail.policy.program_files import ProgramFiles, forbidden_whole, search_directories
from handrail.process import env_policy
from handrail.sandbox.profile import Access, Entry

#: Seconds for which an answer of another machine is cached.
_REMEMBERED = 30.0
#: Concurrent calls to it.
_AT_ONCE = 16


@dataclass(slots=True)
class ForbiddenPrograms:
    """The forbidden programs of one session."""

    _files: ProgramFiles = field(default_factory=ProgramFiles)
    _far: tuple[tuple[str, ...], float, tuple[str, ...]] | None = None
    #: Files covered before, by path: a command that replaces the link to one does not uncover it.
    _before: tuple[tuple[str, ...], dict[str, tuple[int, int]]] = ((), {})

    async def around(
        self, request: SpawnRequest, settings: Settings, executor: Executor, *, local: bool
    ) -> SpawnRequest:
        """The request with forbidden programs covered, if it has a sandbox."""
        names = forbidden_whole(settings.policy)
        given = request.sandbox
        if not names or given is None:
            return request
        if local:
            covered = await asyncio.to_thread(self._here, names, request, settings)
        else:
            covered = await self._there(names, request, executor)
        if not covered:
            return request
        denied = tuple(Entry(Access.DENY, path=native(path)) for path in covered)
        return replace(request, sandbox=given._replace(entries=given.entries + denied))

    def cover(self, settings: Settings, executor: Executor) -> Cover:
        """Version of `around` for the helper processes that read and write files."""
        return lambda request: self.around(request, settings, executor, local=True)

    def _here(
        self, names: tuple[str, ...], request: SpawnRequest, settings: Settings
    ) -> tuple[str, ...]:
        env = env_policy.build(request.env_policy, request.env, os.environ)
        # What reads and writes files is started without variables: its PATH is that of commands.
        path, home = (env.get(name) or os.environ.get(name) for name in ("PATH", "HOME"))
        places = search_directories(path, home, request.cwd)
        begins = os.fsdecode(request.argv[0])
        # Visible in any case: the shell that starts the run, and setsid for the sandbox.
        needed = [begins] if "/" in begins else [os.path.join(place, begins) for place in places]
        needed += [f"{place}/setsid" for place in places] if request.tty else []
        roots = writable_roots(settings, os.environ.get("TMPDIR"))
        find = self._files.find(names, places, writable=roots, needed=needed, home=home)
        return self._and_before(names, find.covered)

    def _and_before(self, names: tuple[str, ...], found: tuple[str, ...]) -> tuple[str, ...]:
        """These files, and those that earlier runs under the same rules covered, if still there."""
        before = self._before[1] if self._before[0] == names else {}
        kept = {path: inode for path, inode in before.items() if _inode(path) == inode}
        now = {path: inode for path in found if (inode := _inode(path)) is not None}
        self._before = names, {**kept, **now}
        return tuple(dict.fromkeys((*found, *kept)))

    async def _there(
        self, names: tuple[str, ...], request: SpawnRequest, executor: Executor
    ) -> tuple[str, ...]:
        """Remote version: files with exactly that name; the targets of links cannot be seen."""
        now = asyncio.get_running_loop().time()
        if self._far is not None and self._far[0] == names and now - self._far[1] < _REMEMBERED:
            return self._far[2]
        home = (await executor.place()).home
        places = search_directories(request.env.get("PATH"), home, request.cwd)
        paths = [
            path
            for name in names
            for path in ([name] if "/" in name else [f"{place}/{name}" for place in places])
        ]
        turn = asyncio.Semaphore(_AT_ONCE)
        found = await asyncio.gather(*(_real(executor, path, turn) for path in paths))
        shell = posixpath.basename(os.fsdecode(request.argv[0]))
        same = (
            real
            for path, real in zip(paths, found, strict=True)
            if real is not None
            and posixpath.basename(real) == posixpath.basename(path)
            and posixpath.basename(real) != shell
        )
        self._far = names, now, tuple(dict.fromkeys(same))
        return self._far[2]


def _inode(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino


async def _real(executor: Executor, path: str, turn: asyncio.Semaphore) -> str | None:
    async with turn:
        try:
            return await executor.files.canonical(path)
        except HandrailError:
            return None  # not there
