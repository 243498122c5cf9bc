"""Evaluate an agent on 100 small tasks in a fleet, and write a report with a plot.

The agent follows a script: it reads a script with a mistake, patches it, and runs the checks.  Each
task is in a workspace of its own.  Without arguments the fleet is two servers that are started here
on this machine; ``--on ray:auto --name lab`` or ``--on ssh://a ssh://b`` is a fleet of yours.

python examples/fleet_evaluation.py [--out DIRECTORY] [--sandbox off] [--on WHERE... [--name NAME]]
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from handrail import AgentShell
from handrail.fleet import Fleet, FleetWorkspace, Outcome

TASKS = 100
#: A mistake by its kind: the line of the script, its arguments, and what it is to print.
MISTAKES = {
    "operator": ("echo $(($1 - $2))", "2 3", "5"),
    "bound": ("seq $1 $(($2 - 1)) | wc -l", "1 4", "4"),
    "order": ("echo $(($2 / $1))", "8 2", "4"),
    "unseen": ("echo $(($1 % $2))", "7 3", "343"),
}
#: What the agent has learnt: it looks for these in the line that it reads, one after the other.
REPAIRS = (("$1 - $2", "$1 + $2"), ("$(($2 - 1))", "$2"), ("$2 / $1", "$1 / $2"))
CHECK = ["sh", "check.sh"]


@dataclass(frozen=True)
class Score:
    """How one task went."""

    kind: str
    solved: bool
    calls: int


async def evaluate(space: FleetWorkspace, number: int) -> Score:
    """One task: give the agent a script with a mistake, let it work, and grade what it leaves."""
    kind = list(MISTAKES)[number % len(MISTAKES)]
    line, arguments, answer = MISTAKES[kind]
    await space.files.write("solution.sh", f"{line}\n")
    await space.files.write("check.sh", f'[ "$(sh solution.sh {arguments})" = {answer} ]\n')
    async with AgentShell(space, policy="never") as shell:  # leaving it closes the workspace
        calls = await scripted_agent(shell)
        graded = await space.run(CHECK, timeout=60)
    return Score(kind, graded.ok, calls)


async def scripted_agent(shell: AgentShell) -> int:
    """Stands in for a model: reads, patches, checks; returns how many tools it called."""
    seen = await shell.call("exec_command", {"cmd": "cat solution.sh", "yield_time_ms": 10_000})
    calls = 1
    for wrong, right in REPAIRS:
        line = next((one for one in seen.text.splitlines() if wrong in one), None)
        if line is None:
            continue
        hunk = f"@@\n-{line}\n+{line.replace(wrong, right)}\n"
        patch = f"*** Begin Patch\n*** Update File: solution.sh\n{hunk}*** End Patch\n"
        await shell.call("apply_patch", {"patch": patch})
        checking = {"cmd": "sh check.sh && echo passed", "yield_time_ms": 30_000}
        said = await shell.call("exec_command", checking)
        calls += 2
        if "passed" in said.text:
            break
    return calls


# --- the fleet ------------------------------------------------------------------------------------


@asynccontextmanager
async def fleet_of(args: argparse.Namespace) -> AsyncIterator[Fleet]:
    """The fleet that was named, or one of two servers that end with this program."""
    if args.on is not None:
        where = args.on[0] if args.on[0].startswith("ray:") else args.on
        async with Fleet(where, name=args.name) as fleet:
            await fleet.wait(1)
            yield fleet
        return
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder, ExitStack() as stack:
        urls = [server(stack, Path(folder, name)) for name in ("one", "two")]
        async with Fleet(urls) as fleet:
            yield fleet


def server(stack: ExitStack, folder: Path) -> str:
    """Start a server with workspaces; its address."""
    words = ["serve", "--log-level", "error", "--state-dir", f"{folder}-state"]
    words += ["--workspaces", str(folder), "--share", "cpus=8,memory=4GiB", "--min-free", "64MiB"]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "handrail", *words], stdout=subprocess.PIPE, text=True
    )
    stack.enter_context(process)  # waits for its end
    stack.callback(process.terminate)
    assert process.stdout is not None
    return process.stdout.readline().strip()


# --- the report -----------------------------------------------------------------------------------


def report(outcomes: list[Outcome], folder: Path) -> str:
    """Write ``report.md`` and ``report.svg``; the sentence that sums it up."""
    scores: list[Score] = [one.value for one in outcomes if one.ok]
    lost = [one for one in outcomes if not one.ok]
    solved = Counter(score.kind for score in scores if score.solved)
    tried = Counter(score.kind for score in scores)
    summary = f"{len(outcomes)} tasks: {solved.total()} solved, {len(lost)} without an answer"
    nodes = Counter(one.node for one in outcomes)
    slowest = max((one.duration for one in outcomes), default=0.0)
    rows = "".join(
        f"| {kind} | {solved[kind]} of {tried[kind]} |"
        f" {sum(s.calls for s in scores if s.kind == kind) / max(1, tried[kind]):.1f} |\n"
        for kind in MISTAKES
    )
    spread = ", ".join(f"{count} on {node}" for node, count in sorted(nodes.items(), key=str))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.md").write_text(
        f"# Evaluation\n\n{summary}; the slowest took {slowest:.2f} s. Tasks by node: {spread}.\n\n"
        f"| mistake | solved | tool calls |\n|---|---|---|\n{rows}\n![plot](report.svg)\n"
    )
    shares = [(kind, solved[kind] / max(1, tried[kind])) for kind in MISTAKES]
    (folder / "report.svg").write_text(plot(shares, [one.duration for one in outcomes]))
    return summary


def plot(shares: list[tuple[str, float]], seconds: list[float]) -> str:
    """Two diagrams as SVG: the share that was solved by kind, and how long tasks took."""
    parts = [text(20, 24, "solved by kind of mistake", 14)]
    for row, (kind, share) in enumerate(shares):
        y = 44 + 34 * row
        parts += [
            text(20, y + 15, kind),
            f'<rect x="100" y="{y}" width="200" height="20" fill="#e6e9ec"/>',
            f'<rect x="100" y="{y}" width="{200 * share:.0f}" height="20" fill="#2f7d4f"/>',
            text(308, y + 15, f"{share:.0%}"),
        ]
    parts.append(text(380, 24, "seconds a task", 14))
    width = max([*seconds, 0.001]) / 12
    counts = Counter(min(11, int(one / width)) for one in seconds)
    for column in range(12):
        height = round(110 * counts[column] / max(counts.values(), default=1))
        place = f'x="{380 + 20 * column}" y="{160 - height}" width="17" height="{height}"'
        parts.append(f'<rect {place} fill="#3b6ea5"/>')
    parts += [text(380, 178, "0"), text(600, 178, f"{12 * width:.2f}")]
    body = "\n".join(parts)
    size = 'width="660" height="190" viewBox="0 0 660 190"'
    style = 'font-family="sans-serif" fill="#222"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{body}\n</svg>\n'


def text(x: float, y: float, words: str, size: int = 12) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}">{words}</text>'


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("fleet-report"))
    parser.add_argument("--on", nargs="+")
    parser.add_argument("--name")
    parser.add_argument("--sandbox", default="workspace-write", help="or off")
    args = parser.parse_args()
    needs: dict[str, Any] = {
        "cpus": 0.5,
        "memory": "64MiB",
        "timeout": 120,
        "sandbox": args.sandbox,
    }
    async with fleet_of(args) as fleet:
        outcomes = await fleet.gather(
            evaluate, range(TASKS), concurrency=8, idempotent=True, progress=True, **needs
        )
    for outcome in outcomes:
        if not outcome.ok:
            print(f"task {outcome.index} on {outcome.node}: {outcome.error!r}")
    print(report(outcomes, args.out))
    print(f"the report is in {args.out}/report.md, its plot in report.svg")


if __name__ == "__main__":
    asyncio.run(main())
