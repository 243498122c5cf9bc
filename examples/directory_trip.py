"""A directory goes up, its tests run there, and the results come down.

Here the other machine is a server on this one; elsewhere ``at`` is ``ssh://box`` or ``wss://box:8443``.
``python examples/directory_trip.py`` runs it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from handrail import Workspace

CHECK = """\
#!/bin/sh
mkdir -p results
for case in cases/*; do
    name=$(basename "$case")
    if [ "$(cat "$case")" = good ]; then echo "$name passed"; else echo "$name failed"; fi
done > results/report.txt
! grep -q failed results/report.txt
"""


@contextmanager
def server(state: Path) -> Iterator[str]:
    """The address of a server; its processes end with it."""
    argv = [sys.executable, "-P", "-m", "handrail", "serve", "--state-dir", str(state)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def make_project(project: Path) -> None:
    (project / "cases").mkdir(parents=True)
    for number in range(20):
        (project / "cases" / f"case-{number:02}").write_text("bad" if number == 13 else "good")
    (project / "check.sh").write_text(CHECK)
    os.chmod(project / "check.sh", 0o755)
    (project / "latest").symlink_to("cases/case-19")
    (project / "node_modules").mkdir()
    (project / "node_modules" / "large").write_bytes(b"x" * 1_000_000)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        here, there = Path(directory, "here"), Path(directory, "there")
        there.mkdir()
        make_project(here / "project")
        with server(Path(directory, "state")) as url, Workspace(there, at=url) as ws:
            up = ws.files.upload(here / "project", "project", exclude=["node_modules"])
            print(f"up: {up.files} files, {up.bytes} bytes")
            result = ws.run("./check.sh", cwd="project", timeout=60)  # it may still be executed
            print(f"tests: exit code {result.exit_code}")
            ws.files.download("project/results", here / "results")
            print("link:", ws.run("readlink project/latest").stdout.strip())
        report = (here / "results" / "report.txt").read_text().splitlines()
        print(f"down: {len(report)} lines, {[line for line in report if 'failed' in line]}")


if __name__ == "__main__":
    main()
