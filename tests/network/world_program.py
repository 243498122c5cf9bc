"""A program that runs in a private world and prints its results, one JSON object a line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.sandbox.arena import as_uid, python_for

HOME = Path(__file__).parents[2]
#: What a world is made with.
TOOLS = ("ip", "unshare", "openssl", "mount", "setpriv", "curl")


def missing_tools() -> str | None:
    """Why no world can be made here."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"a world needs {', '.join(missing)}" if missing else None


class WorldProgram:
    """The program ``python -m MODULE WORD...`` of a user, and what it has printed."""

    def __init__(self, uid: int, module: str, *words: str) -> None:
        argv = [sys.executable, "-m", module, *words]
        env = {**os.environ, "PYTHONPATH": str(HOME)}
        if uid != os.getuid():
            found = python_for(uid)
            assert found is not None
            argv = [*as_uid(uid), found["python"], *argv[1:]]
            path = found["env"]["PYTHONPATH"]
            env = {**found["env"], "PYTHONPATH": f"{HOME}{os.pathsep}{path}"}
        for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
            env.pop(name, None)
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            argv, env=env, cwd=HOME, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self._results: dict[str, dict[str, Any]] = {}

    def result(self, name: str) -> dict[str, Any]:
        """The result of that name, when it has been printed."""
        assert self._process.stdout is not None
        while name not in self._results:
            line = self._process.stdout.readline()
            self._errors.seek(0)
            assert line, self._errors.read().decode(errors="replace")[-2000:]
            found = json.loads(line)
            self._results[found["name"]] = found
        return self._results[name]

    def end(self) -> None:
        """Close its output: the next result, if there is one, ends it."""
        assert self._process.stdout is not None
        self._process.stdout.close()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait()
            self._errors.close()
