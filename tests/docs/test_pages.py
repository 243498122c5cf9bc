"""The pages are true: every block of Python in them runs, one after the other.

A block that cannot be run anywhere is marked ``python no-run``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = {
    page.stem: blocks
    for page in (HOME / "README.md", *sorted((HOME / "docs").glob("*.md")))
    if (blocks := BLOCK.findall(page.read_text()))
}
#: Every block of these stands alone.
ALONE = {"cookbook"}
#: Runs the blocks of stdin, which NUL separates; ``await`` may stand at the top level of one.
RUNNER = """
import ast, asyncio, inspect, sys
namespace = {"__name__": "__main__"}
alone = sys.argv[1:] == ["alone"]
def run(number, block):
    code = compile(block, f"block {number}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    done = eval(code, {"__name__": "__main__"} if alone else namespace)
    if inspect.isawaitable(done):
        runner.run(done)
with asyncio.Runner() as runner:
    for number, block in enumerate(sys.stdin.read().split("\\0"), 1):
        run(number, block)
"""


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs(page: str, tmp_path: Path) -> None:
    blocks = PAGES[page]
    joined = blocks if page in ALONE else ["\n".join(blocks)]
    work = tmp_path / "work"
    repo = work / "repo"
    repo.mkdir(parents=True)
    if page == "README":
        (repo / "src").mkdir()
        (work / "data").mkdir()
        (repo / "Makefile").write_text("all:\n\techo made\n")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUNNER, "alone" if page in ALONE else "together"],
        check=False,
        cwd=work,
        env={
            **os.environ,
            "XDG_STATE_HOME": str(tmp_path / "state"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # of the pytest that README.md runs
        },
        input="\0".join(joined),
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert done.returncode == 0, done.stderr
    assert not (work / "outside").exists()


def test_the_pages_for_beginners_have_their_blocks() -> None:
    """A changed fence must not take a page out of the test."""
    least = {
        "README": 1,
        "quickstart": 7,
        "approvals": 4,
        "processes": 4,
        "agent-shell": 2,
        "cookbook": 20,
    }
    assert {
        page: len(PAGES.get(page, [])) >= count for page, count in least.items()
    } == dict.fromkeys(least, True)
