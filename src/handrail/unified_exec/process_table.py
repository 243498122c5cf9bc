"""The open processes of one agent: their ids, which is pruned, and the ended ones."""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass

from handrail.unified_exec.process import Process
from handrail.unified_exec.prune import Entry, pick
from handrail.unified_exec.settings import Settings

FIRST_ID = 1_000
LAST_ID = 99_999


@dataclass(frozen=True, slots=True)
class Tombstone:
    """An ended session: its exit and, for a while, its output.

    ``pruned``: it was ended to free its slot and may not even have exited yet.
    """

    process: Process
    pruned: bool = False


class OpenProcesses:
    """Open processes by id; ids are reserved before the gate is called, and freed after the end."""

    def __init__(self, settings: Settings, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self._reserved: set[int] = set()
        self._open: dict[int, Process] = {}
        self._ended: OrderedDict[int, Tombstone] = OrderedDict()

    def reserve(self) -> int:
        """A new id."""
        if self._settings.deterministic_ids:
            chosen = max([FIRST_ID - 1, *self._reserved]) + 1
        else:
            chosen = self._rng.randint(FIRST_ID, LAST_ID)
            # An ended session can still be read by its id, so that is not used again soon.
            while chosen in self._reserved or chosen in self._ended:
                chosen = self._rng.randint(FIRST_ID, LAST_ID)
        self._reserved.add(chosen)
        return chosen

    def release(self, process_id: int) -> None:
        self._reserved.discard(process_id)

    def store(self, process: Process) -> Process | None:
        """Store a running process; returns the one to end for it."""
        pruned = None
        if len(self._open) >= self._settings.max_processes:
            chosen = pick(
                [
                    Entry(number, one.last_used, one.exited, one.lock.locked())
                    for number, one in self._open.items()
                ],
                self._settings.protected,
            )
            pruned = None if chosen is None else self._open.pop(chosen)
        self._open[process.origin.process_id] = process
        return pruned

    def get(self, process_id: int) -> Process | None:
        return self._open.get(process_id)

    def remove(self, process: Process) -> bool:
        """Remove an open process; False if another call was faster."""
        number = process.origin.process_id
        if self._open.get(number) is not process:
            return False
        del self._open[number]
        return True

    def bury(self, process: Process, *, pruned: bool = False) -> list[Process]:
        """Note an end; returns the processes that are now forgotten."""
        number = process.origin.process_id
        before = self._ended.get(number)
        if before is not None and before.process is process:
            return []
        self.release(number)
        forgotten = [] if before is None else [before.process]
        self._ended.pop(number, None)
        self._ended[number] = Tombstone(process, pruned)
        while len(self._ended) > self._settings.ended_kept or (
            self._kept_bytes() > self._settings.ended_bytes and len(self._ended) > 1
        ):
            _, oldest = self._ended.popitem(last=False)
            forgotten.append(oldest.process)
        return forgotten

    def ended(self, process_id: int) -> Tombstone | None:
        return self._ended.get(process_id)

    def open(self) -> list[Process]:
        """The open processes, by id."""
        return [self._open[number] for number in sorted(self._open)]

    def all(self) -> list[Process]:
        return [*self._open.values(), *(one.process for one in self._ended.values())]

    def __len__(self) -> int:
        return len(self._open)

    def _kept_bytes(self) -> int:
        return sum(one.process.transcript.size for one in self._ended.values())
