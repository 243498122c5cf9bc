"""Two servers with workspaces on this machine, for the tests of a module, and a file of tasks."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.tasks.killed_runs import HANDRAIL, hosts


@pytest.fixture(scope="module")
def where() -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory(prefix="fleet-", dir="/var/tmp") as folder:
        with hosts(Path(folder)) as urls:
            yield ["--on", *urls]


def cli(*words: str, timeout: float = 50) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HANDRAIL, "fleet", *words], capture_output=True, text=True, timeout=timeout, check=False
    )


@dataclass
class Tasks:
    """A file of tasks that is run on the servers."""

    folder: Path
    where: list[str]
    options: list[str] = field(default_factory=list)

    def words(self, tasks: list[Mapping[str, Any]], *command: str) -> list[str]:
        lines = "".join(json.dumps(task) + "\n" for task in tasks)
        (self.folder / "tasks.jsonl").write_text(lines)
        needs = ["--cpus", "1", "--memory", "1MiB", "--sandbox", "off"]
        files = ["--tasks", str(self.folder / "tasks.jsonl")]
        words = ["run", *self.where, *files, *needs, *self.options, "--json"]
        return [*words, "--", *command] if command else words

    def run(
        self, tasks: list[Mapping[str, Any]], *command: str
    ) -> tuple[int, dict[str, Any], dict[str, dict[str, Any]]]:
        """The exit code, the summary (or the error), and the results by id."""
        done = cli(*self.words(tasks, *command))
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout.splitlines()[-1]), self.results()

    def results(self) -> dict[str, dict[str, Any]]:
        file = self.folder / "tasks.results.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        found = [json.loads(line) for line in lines]
        assert len({one["id"] for one in found}) == len(found)
        return {one["id"]: one for one in found}


@pytest.fixture
def tasks(tmp_path: Path, where: list[str]) -> Tasks:
    return Tasks(tmp_path, where)
