"""The journal beside a file of results: which tasks have begun, in which workspaces.

Lines, in order: ``run`` (its id: those before belong to a file of results that was removed),
``owner`` of each driver that worked on it, ``begin`` of a task (before its command starts), and
``again``: tasks that may begin anew, because nothing of them was started or their result was
dropped.  What is done with each when a run is resumed is decided in ``resume.py``.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from handrail.errors import UsageError
from handrail.fleet.tasks.durable_lines import DurableLines
from handrail.fleet.tasks.task_file import Task


@dataclass(slots=True)
class Begun:
    """A task that has begun: ``workspaces`` are (node, id), the last one at the end."""

    digest: str
    workspaces: list[tuple[str, str]] = field(default_factory=list)


class Journal:
    """The journal of a run; the lock on it keeps other runs out."""

    def __init__(self, path: str, *, fresh: bool) -> None:
        self.path = path
        self.run = ""
        #: Runs whose results were removed: what is left of them is swept.
        self.earlier: list[str] = []
        #: Drivers of these runs, all dead by the lock.
        self.owners: list[str] = []
        self.begun: dict[str, Begun] = {}
        self._lines = DurableLines(path, self._read)
        if fresh or not self.run:
            self._start_run(secrets.token_hex(8))
            self._lines.add_now({"run": self.run})
        self.owner = f"run-{self.run}-{len(self.owners)}"
        self._lines.add_now({"owner": self.owner})

    def _read(self, number: int, line: dict[str, Any]) -> None:
        try:
            if "run" in line:
                self._start_run(str(line["run"]))
            elif "owner" in line:
                self.owners.append(str(line["owner"]))
            elif "begin" in line:
                self._begin(line["begin"], line["digest"], line["node"], line["workspace"])
            elif "again" in line:
                for id_ in line["again"]:
                    self.begun.pop(id_, None)
        except (KeyError, TypeError) as error:
            raise UsageError(
                f"line {number} of {self.path} is none of a journal ({error!r}); remove the"
                " file, and tasks that had begun run again"
            ) from None

    def _start_run(self, run: str) -> None:
        if self.run:
            self.earlier.append(self.run)
        self.run = run
        self.begun.clear()

    def _begin(self, id_: str, digest: str, node: str, workspace: str) -> int:
        begun = self.begun.setdefault(id_, Begun(digest))
        begun.workspaces.append((node, workspace))
        return len(begun.workspaces)

    async def begin(self, task: Task, node: str, workspace: str) -> int:
        """Note that a task begins there; returns how often it has begun.  Raises OSError."""
        line = {"begin": task.id, "digest": task.digest, "node": node, "workspace": workspace}
        attempts = self._begin(task.id, task.digest, node, workspace)
        await self._lines.add(line)
        return attempts

    async def again(self, task: Task) -> None:
        """Note that nothing of a task was started after all."""
        self.begun.pop(task.id, None)
        await self._lines.add({"again": [task.id]})

    def forget(self, ids: list[str]) -> None:
        """Let these tasks begin anew; their results are about to be dropped."""
        for id_ in ids:
            self.begun.pop(id_, None)
        self._lines.add_now({"again": ids})

    def close(self) -> None:
        """Give the lock up."""
        self._lines.close()
