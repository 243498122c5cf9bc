"""The results of a file of tasks, one line each, and the journal beside it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from handrail.errors import UsageError
from handrail.fleet.tasks.durable_lines import DurableLines
from handrail.fleet.tasks.journal import Journal

STATES = ("ok", "failed", "lost")


@dataclass(frozen=True, slots=True)
class Known:
    """What is kept in memory of a result."""

    state: str
    digest: str


class ResultsFile:
    """The results so far, and where the next ones go; raises UsageError while another run has it.

    A file that was removed begins a new run: tasks of the one before count no more.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.known: dict[str, Known] = {}
        fresh = not os.path.exists(path)
        # First the journal: its file stays, while this one is replaced to drop results.
        self.journal = Journal(f"{path}.journal", fresh=fresh)
        try:
            self._lines = DurableLines(path, self._read)
        except BaseException:
            self.journal.close()
            raise

    def _read(self, number: int, line: dict[str, Any]) -> None:
        id_, state, digest = line.get("id"), line.get("state"), line.get("digest")
        if not isinstance(id_, str) or state not in STATES or not isinstance(digest, str):
            raise UsageError(
                f"line {number} of {self.path} is no result of a task; give --results another file"
            )
        self.known[id_] = Known(state, digest)

    def drop(self, ids: list[str]) -> None:
        """Drop the results of these tasks, so that they run again."""
        if not ids:
            return
        self.journal.forget(ids)  # a crash in between leaves the results, which count
        gone = set(ids)
        self._lines.keep(lambda line: line["id"] not in gone)
        for id_ in ids:
            del self.known[id_]

    async def add(self, result: dict[str, Any]) -> None:
        """Append a result; returns when it is on disk.  Raises OSError."""
        await self._lines.add(result)
        self.known[result["id"]] = Known(result["state"], result["digest"])

    def close(self) -> None:
        """Give the lock up."""
        self._lines.close()
        self.journal.close()
