"""A bar on a terminal for tasks of a fleet: done, failed, lost, running, rate, time left, nodes.

``rich`` is imported with the first bar.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Sized
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

#: Seconds over which the rate is measured.
_WINDOW = 30.0
#: Seconds between two drawings, but for the last.
_PAUSE = 0.2


class Rate:
    """Results a second, over the last half minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, now: float, done: int) -> float:
        """The rate, with ``done`` results at ``now``; 0.0 if it is not known yet."""
        seen = self._seen
        seen.append((now, done))
        while seen[-1][0] - seen[0][0] > _WINDOW:
            seen.popleft()
        (began, before), spent = seen[0], now - seen[0][0]
        return (done - before) / spent if now > began else 0.0


def left(remaining: int, rate: float) -> str:
    """The time until the end, such as ``1:02:03`` or ``0:07``; "-" if it is not known."""
    if rate <= 0:
        return "-"
    seconds = round(remaining / rate)
    if seconds >= 3600:
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{seconds // 60}:{seconds % 60:02}"


class ProgressBar:
    """The bar; ``total`` None: it is not known how many there will be."""

    def __init__(self, total: int | None, stream: TextIO | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        console: Console = Console(
            file=stream or sys.stderr,
            force_terminal=True,
            no_color=bool(os.environ.get("NO_COLOR")),
            highlight=False,
        )
        self._total = total
        self._rate = Rate()
        # Drawn by ``show`` alone: no thread.
        self._progress: Progress = Progress(
            BarColumn(bar_width=None, complete_style="green", finished_style="green"),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            console=console,
            auto_refresh=False,
            expand=True,
        )
        self._task = self._progress.add_task("", total=total, text="")
        self._progress.start()

    def show(
        self,
        *,
        ok: int,
        failed: int,
        lost: int,
        running: int,
        skipped: int = 0,
        nodes: int | None = None,
    ) -> None:
        """Draw it anew; ``skipped`` are among the others, and count in no rate."""
        done = ok + failed + lost
        rate = self._rate.add(time.monotonic(), done - skipped)
        words = [f"[green]{ok} ok[/]"]
        words += [f"[yellow]{failed} failed[/]"] if failed else []
        words += [f"[red]{lost} lost[/]"] if lost else []
        words += [f"{running} running", f"{rate:.1f}/s" if rate else "-/s"]
        if self._total is not None:
            words.append(f"{left(self._total - done, rate)} left")
        if nodes is not None:
            words.append(f"{nodes} node" if nodes == 1 else f"{nodes} nodes")
        self._progress.update(self._task, completed=done, text=" · ".join(words))
        self._progress.refresh()

    def stop(self) -> None:
        """Leave it as it is, and the cursor below it."""
        self._progress.stop()


class DrawnCounts:
    """Draws the counts of ``map``, from the first until it is stopped."""

    def __init__(self, total: int | None, stream: TextIO | None = None) -> None:
        self._total = total
        self._stream = stream
        self._bar: ProgressBar | None = None
        self._counts = dict.fromkeys(("ok", "failed", "lost", "running"), 0)
        self._next = 0.0

    def __call__(self, counts: dict[str, int]) -> None:
        """Draw these, unless others were drawn just now."""
        self._counts = {name: counts[name] for name in self._counts}
        if self._bar is None:
            self._bar = ProgressBar(self._total, self._stream)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _PAUSE
            self._bar.show(**self._counts)

    def stop(self) -> None:
        """Draw the last ones, and leave the cursor below them."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.show(**self._counts)
            bar.stop()


def drawn(tasks: Any) -> DrawnCounts | None:
    """What draws the counts of ``map``; None where there is no terminal to draw on."""
    if not sys.stderr.isatty():
        return None
    return DrawnCounts(len(tasks) if isinstance(tasks, Sized) else None)
