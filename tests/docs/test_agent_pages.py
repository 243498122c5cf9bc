"""The pages for agents are true: every block of Python in them runs, one after the other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
#: Blocks have ``await`` at the top level, as in ``python -m asyncio``.
RUNNER = """
import ast, asyncio, inspect, sys
namespace = {"__name__": "__main__"}
async def main():
    code = compile(sys.stdin.read(), "page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    done = eval(code, namespace)
    if inspect.isawaitable(done):
        await done
asyncio.run(main())
"""


@pytest.mark.parametrize(("page", "least"), [("approvals.md", 4), ("agent-shell.md", 2)])
def test_every_block_runs(page: str, least: int, tmp_path: Path) -> None:
    text = (DOCS / page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= least
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUNNER],
        check=False,
        cwd=tmp_path,
        input="\n".join(blocks),
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert done.returncode == 0, done.stderr
