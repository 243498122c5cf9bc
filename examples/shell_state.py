"""A bash that keeps its state: directory, variables, functions, a background job, a timeout.

python examples/shell_state.py
"""

from __future__ import annotations

import tempfile

from handrail import ShellEnded, Workspace


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, Workspace(directory) as ws, ws.shell() as sh:
        sh.run("mkdir src; cd src; export TARGET=release; build() { echo building $TARGET; }")
        print(sh.run("build").stdout.strip(), "in", sh.cwd.rpartition("/")[2])

        failed = sh.run("ls missing")
        print(f"exit code {failed.exit_code}, stderr apart: {not failed.stdout}")

        late = sh.run("sleep 1000", timeout=0.3)
        print(
            f"timed out: {late.timed_out}; TARGET is still {sh.run('echo $TARGET').stdout.strip()}"
        )

        sh.run("sleep 1000 & job=$!")
        print(f"a job runs on: {sh.run('kill -0 $job').ok}")

        sh.run("exit 3")
        try:
            sh.run("build")
        except ShellEnded:
            sh.restart()
        print(f"a new shell knows nothing: {sh.run('build').exit_code}")


if __name__ == "__main__":
    main()
