"""The page and the curves of the benchmark, from figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

BENCH = Path(__file__).parents[2] / "bench"

SCRIPT = """
from curves import Curve, draw
from page import page

meta = {"cores": 2, "kernel": "6.1<", "python": "3.11", "load_before": [1], "load_after": [2],
        "seconds": 9, "quick": False, "versions": {"ours": "1", "codex": "2"}}
spawn = {"codex": {"closed_p50_us": 50.0, "per_s_64": 10.0},
         "ours": {"closed_p50_us": 1.0, "per_s_64": 90.0, "_spread": {"closed_p50_us": [0.5, 1.5]}}}
limits = {"limits": {"c_pipes_p50_us": 0.5}}
print(page(meta, {"spawn": spawn, "limits": limits}))
print("=====")
print(draw("a < b", [Curve("ours", [(10, 1.5), (1000, 2)]), Curve("none", [])]))
"""


def test_page_has_the_figures_and_needs_no_network() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=BENCH, capture_output=True, text=True, check=True
    )
    page, picture = done.stdout.split("=====")
    for part in ("ours: 1", "0.02", "6.1&lt;", 'class="floor"', 'class="good">9.00', "<u style"):
        assert part in page
    assert "http" not in page
    assert "<script" not in page
    root = ET.fromstring(picture.strip())
    assert [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")] == ["a < b"]
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 1
