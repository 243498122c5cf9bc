"""The bar of a run: its words, its rate, and the time that is left."""

from __future__ import annotations

import io
import re

import pytest

from handrail.fleet.progress_bar import DrawnCounts, ProgressBar, Rate, left


def test_the_rate_is_that_of_the_last_half_minute() -> None:
    rate = Rate()
    assert rate.add(100.0, 50) == 0.0
    assert rate.add(110.0, 70) == 2.0
    assert rate.add(130.0, 70) == pytest.approx(20 / 30)
    assert rate.add(141.0, 70) == 0.0


@pytest.mark.parametrize(
    ("remaining", "rate", "said"),
    [(10, 0.0, "-"), (14, 2.0, "0:07"), (600, 1.0, "10:00"), (3723, 1.0, "1:02:03")],
)
def test_the_time_that_is_left(remaining: int, rate: float, said: str) -> None:
    assert left(remaining, rate) == said


def test_the_words_of_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    stream = io.StringIO()
    bar = ProgressBar(40, stream)
    bar.show(ok=15, failed=1, lost=0, running=8, skipped=10, nodes=4)
    bar.show(ok=37, failed=1, lost=2, running=0, skipped=10, nodes=1)
    bar.stop()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "16/40 15 ok · 1 failed · 8 running · -/s · - left · 4 nodes" in shown
    assert re.search(
        r"40/40 37 ok · 1 failed · 2 lost · 0 running · .*/s · 0:00 left · 1 node\b", shown
    )


def test_the_counts_of_a_map_are_drawn_to_the_last_and_the_cursor_comes_back() -> None:
    stream = io.StringIO()
    drawn = DrawnCounts(None, stream)
    drawn.stop()
    assert stream.getvalue() == ""  # nothing was begun
    counts = {"taken": 0, "running": 0, "ok": 0, "failed": 0, "lost": 0, "retried": 0}
    drawn(counts)
    drawn({**counts, "ok": 3})
    drawn.stop()
    shown = stream.getvalue()
    assert "3 ok" in shown
    assert shown.rindex("\x1b[?25h") > shown.index("\x1b[?25l")
