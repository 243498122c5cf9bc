"""Generated pages say what the code says, and nothing of the site is fetched when it is viewed."""

from __future__ import annotations

import html
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from handrail.cli.app import COMMANDS
from handrail.telemetry.names import ALL

HOME = Path(__file__).parents[2]
PICTURES = sorted((HOME / "docs" / "pictures").glob("*.svg"))


@pytest.mark.parametrize("name", ["api", "cli", "protocol"])
def test_a_generated_page_is_up_to_date(name: str) -> None:
    made = runpy.run_path(str(HOME / "scripts" / f"{name}_reference"))["render"]()
    page = "cli-reference" if name == "cli" else name
    assert (HOME / "docs" / f"{page}.md").read_text(encoding="utf-8") == made, "make reference"


def test_every_command_has_its_options() -> None:
    page = (HOME / "docs" / "cli-reference.md").read_text()
    for name in COMMANDS:
        assert f"## `handrail {name}`" in page


def test_every_metric_is_on_its_page() -> None:
    page = (HOME / "docs" / "metrics.md").read_text()
    for metric in ALL:
        labels = ", ".join(f"`{label.name}`" for label in metric.labels)
        line = f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.help} |"
        assert line in page, line


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_a_picture_fetches_nothing_and_names_no_directory_of_its_maker(picture: Path) -> None:
    text = picture.read_text()
    assert "url(http" not in text
    assert "@font-face" not in text
    # Text has a space as &#160;, so a path is a run of other characters.
    paths = re.findall(r"(?<![\w.…:/])/(?:root|home|work|srv|Users)/[^<&]*", text)
    assert not paths


def rows(picture: str) -> list[str]:
    """The lines of text in a picture."""
    found: dict[float, str] = {}
    text = (HOME / "docs" / "pictures" / f"{picture}.svg").read_text()
    for place, piece in re.findall(
        r'<text class="[^"]*-r\d+" .*?y="([\d.]+)".*?>(.*?)</text>', text
    ):
        found[float(place)] = found.get(float(place), "") + html.unescape(piece)
    return [found[place].replace("\xa0", " ").rstrip() for place in sorted(found)]


def test_the_pictures_show_what_is_printed(tmp_path: Path) -> None:
    """Those that are the same on every machine; a refusal and its reason elsewhere."""
    printed = []
    for row in rows("policy"):
        if row.startswith("$ "):
            env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
            command = ["sh", "-c", row[2:]]
            done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
            printed += [row, *done.stdout.splitlines()]
    assert rows("policy") == printed
    assert any(row.startswith("handrail: refused by the sandbox: ") for row in rows("run"))
    assert len(rows("demo")) == 1 + 20


def test_there_are_pictures() -> None:
    assert {path.stem for path in PICTURES} >= {"demo", "doctor", "policy", "run"}
