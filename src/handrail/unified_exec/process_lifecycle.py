"""The life of an agent's processes: kept, listed, ended, readable for a while, forgotten."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from handrail.errors import TerminateFailed
from handrail.unified_exec.process import Process
from handrail.unified_exec.process_table import OpenProcesses
from handrail.unified_exec.settings import Settings

#: How long ending a process may delay the call that needs its slot.
_END_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Background:
    """An open process, for a list of them."""

    call_id: str
    process_id: int
    command: str
    cwd: str


class Processes:
    """The process table, and the work when an entry is added or removed."""

    def __init__(self, settings: Settings, rng: random.Random) -> None:
        self._settings = settings
        self.table = OpenProcesses(settings, rng)
        self._closing: set[asyncio.Task[None]] = set()

    async def keep(self, process: Process) -> list[str]:
        """Put a running process into the table at once; returns the notes for the model."""
        notes: list[str] = []
        pruned = self.table.store(process)
        if pruned is not None:
            notes.append(await self._prune(pruned))
        count = len(self.table)
        if count >= self._settings.warn_at:
            notes.append(
                f"{count} sessions are open and {self._settings.max_processes} may be: end those"
                " you no longer need, or the least recently used will be ended"
            )
        return notes

    async def _prune(self, process: Process) -> str:
        origin = process.origin
        what = f"session {origin.process_id} (`{_short(origin.cmd)}`)"
        if process.exited:
            self.bury(process, pruned=True)
            return f"{what} had ended and was forgotten to make room for this one"
        ending = process.session.terminate()
        self.bury(process, pruned=True)
        try:
            async with asyncio.timeout(_END_SECONDS):
                await ending
        except (TerminateFailed, TimeoutError):
            return f"{what} should have been ended to make room for this one, but still runs"
        return f"{what} was ended to make room for this one: it was the least recently used"

    def bury(self, process: Process, *, pruned: bool = False) -> None:
        """Move a process with a reported end to the readable ones; it is no session any more."""
        process.let_go()
        for forgotten in self.table.bury(process, pruned=pruned):
            self.retire(forgotten)

    def retire(self, process: Process) -> None:
        """Stop listening to a process that can no longer be read."""

        async def retire() -> None:
            await process.close()
            process.transcript.close()

        task = asyncio.get_running_loop().create_task(retire())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def background(self) -> list[Background]:
        """The running processes, by id."""
        return [
            Background(one.origin.call_id, one.origin.process_id, one.origin.cmd, one.origin.cwd)
            for one in self.table.open()
            if not one.exited
        ]

    async def terminate(self, process_id: int) -> bool:
        """End one process; False if there is none of that id.  Raises TerminateFailed."""
        process = self.table.get(process_id)
        if process is None or process.exited:
            return False
        await process.session.terminate()
        if self.table.remove(process):
            self.bury(process)
        return True

    async def clean(self) -> int:
        """End all processes; returns how many there were."""
        found = [one.process_id for one in self.background()]
        return sum(await asyncio.gather(*(self.terminate(number) for number in found)))

    async def close(self) -> None:
        """End every process and forget everything."""
        try:
            await self.clean()
        finally:
            await asyncio.gather(*self._closing, return_exceptions=True)
            for process in self.table.all():
                await process.close()
                process.transcript.close()


def _short(cmd: str) -> str:
    line = " ".join(cmd.split())
    return line if len(line) <= 60 else line[:59] + "…"
