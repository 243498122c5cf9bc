"""Covers programs that the rules forbid as a whole in the sandbox of a run.

The guard of the rules reads commands, and no reader knows what a script does that was there before
or a name that is computed.  The mounts do not have to know: the file of a forbidden program is
covered like one that is denied, so it can be neither run nor copied.  Where nothing is forbidden as
a whole this costs nothing.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
from dataclasses import dataclass, field, replace

from handrail.errors import HandrailError
from handrail.executor.base import Executor, SpawnRequest
from handrail.orchestrator.settings import Settings, native, writable_roots
from handrail.policy.program_files import ProgramFiles, forbidden_whole, search_directories
from handrail.process import env_policy
from handrail.sandbox.profile import Access, Entry

#: Seconds for which an answer of another machine is used again.
_REMEMBERED = 30.0
#: Questions to it that are on their way at the same time.
_AT_ONCE = 16


@dataclass(slots=True)
class ForbiddenPrograms:
    """The covers of one session."""

    _files: ProgramFiles = field(default_factory=ProgramFiles)
    _far: tuple[tuple[str, ...], float, tuple[str, ...]] | None = None

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

    def _here(
        self, names: tuple[str, ...], request: SpawnRequest, settings: Settings
    ) -> tuple[str, ...]:
        env = env_policy.build(request.env_policy, request.env, os.environ)
        places = search_directories(env.get("PATH"), env.get("HOME"), request.cwd)
        begins = os.fsdecode(request.argv[0])
        # What starts the run is no program that the command has chosen: its shell.
        needed = [begins] if "/" in begins else [os.path.join(place, begins) for place in places]
        needed += [f"{place}/setsid" for place in places] if request.tty else []  # of the sandbox
        roots = writable_roots(settings, os.environ.get("TMPDIR"))
        return self._files.find(names, places, writable=roots, needed=needed).covered

    async def _there(
        self, names: tuple[str, ...], request: SpawnRequest, executor: Executor
    ) -> tuple[str, ...]:
        """On another machine: files of that very name; what its links are cannot be seen."""
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


async def _real(executor: Executor, path: str, turn: asyncio.Semaphore) -> str | None:
    async with turn:
        try:
            return await executor.files.canonical(path)
        except HandrailError:
            return None  # not there
