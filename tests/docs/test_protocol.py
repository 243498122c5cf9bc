"""``docs/protocol.md`` says what the method table and the shapes say."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from handrail.protocol import envelope
from handrail.protocol.methods import METHODS

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "scripts" / "protocol_reference")
REFERENCE: dict[str, Any] = runpy.run_path(SCRIPT)
PAGE: str = REFERENCE["render"]()


def test_the_page_is_the_same_in_another_process() -> None:
    printed = subprocess.run(
        [sys.executable, SCRIPT],
        capture_output=True,
        check=True,
        timeout=60,
        env={"PYTHONHASHSEED": "7"},
    )
    assert printed.stdout.decode() == PAGE


@pytest.mark.parametrize("name", [*METHODS, *REFERENCE["NOTIFICATIONS"]])
def test_every_name_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_every_error_code_is_on_the_page() -> None:
    codes = {v for v in vars(envelope).values() if type(v) is int and -33000 < v < -32000}
    listed = re.findall(r"^\| (-\d+) \|", PAGE, re.MULTILINE)
    assert codes == set(map(int, listed))


def test_every_link_leads_somewhere() -> None:
    anchors = [
        re.sub(r"[^a-z0-9_ -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
    ]
    links = set(re.findall(r"\]\(#([^)]*)\)", PAGE))
    assert links
    assert links <= set(anchors)
    assert len(set(anchors)) == len(anchors)


def test_members_have_their_type_need_and_origin() -> None:
    for line in (
        "| `processId` | string | yes | wire | |",
        "| `pipeStdin` | boolean | no (false) | wire | |",
        "| `afterSeq` | integer from 0 or null | no | wire | |",
        "| `rows` | integer 1 to 65535 | yes | handrail | |",
        "| `env` | object of string | yes | wire | |",
        "| `stream` | `pty`, `stderr`, `stdout` | yes | wire | |",
        "| `chunks` | array of [OutputChunk](#outputchunk-object) | yes | wire | |",
    ):
        assert line in PAGE, line
    assert re.search(r"^\| `graceMs` \| .* \| no \| handrail \| .* \|$", PAGE, re.MULTILINE)


def test_every_offered_method_has_its_sentence() -> None:
    offered = {name for name, method in METHODS.items() if method.params is not None}
    assert offered == set(REFERENCE["ABOUT"])
    assert set(REFERENCE["OURS"]) <= offered
