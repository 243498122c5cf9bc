"""The shared cases of interception: what an agent's shell call comes to, and what it is told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from handrail.errors import PatchError
from handrail.patch import report
from handrail.patch.apply import Mode, applying, verifying
from handrail.patch.command import LocalFiles
from handrail.patch.grammar import parse
from handrail.patch.intercept import BarePatch, recognise
from handrail.patch.io_steps import run
from handrail.patch.plan import resolve

pytest.importorskip("tree_sitter_bash")

CASES = Path(__file__).parents[1] / "cases" / "apply_patch_intercept.jsonl"


def _load() -> list[dict[str, Any]]:
    return [json.loads(line) for line in CASES.read_text().splitlines()]


def answer_call(script: str, cwd: str) -> tuple[str, str | None]:
    """What an agent's exec_command does with the pieces of this package (approval apart)."""
    found = recognise(["/bin/bash", "-lc", script])
    if found is None:
        return "not_intercepted", None
    if isinstance(found, BarePatch):
        return "verification_error", report.BARE_PATCH
    files = LocalFiles()
    if found.directory is not None:
        cwd = resolve(found.directory, cwd)
    try:
        patch = parse(found.text)
        run(verifying(patch, cwd), files)
    except PatchError as error:
        return "verification_error", report.verification_failure(error)
    if not patch.hunks:
        return "rejected", report.EMPTY_PATCH
    try:
        changes = run(applying(patch, cwd, Mode.ATOMIC), files)
    except PatchError as error:
        return "failed", report.answer(1, 0.0, report.failure(error))
    done = report.answer(0, 0.0, report.summary(changes))
    return "intercepted", f"Wall time: 0.0000 seconds\nOutput:\n{done}"


@pytest.mark.parametrize("case", _load(), ids=lambda case: case["id"])
def test_case(case: dict[str, Any], tmp_path: Path) -> None:
    folder = os.path.realpath(tmp_path)
    for name in case["cwd_setup"]["dirs"]:
        (tmp_path / name).mkdir()
    for name, content in case["cwd_setup"]["files"].items():
        (tmp_path / name).write_text(content)
    kind, response = answer_call(case["script"], folder)
    if response is not None:
        response = response.replace(folder, "{cwd}")
    assert (kind, response) == (case["expect"]["kind"], case["expect"]["response"])


def test_a_plain_cd_decides_where_relative_paths_lie(tmp_path: Path) -> None:
    (tmp_path / "sub dir").mkdir()
    script = (
        "cd 'sub dir' && apply_patch <<'E'\n*** Begin Patch\n*** Add File: f\n+1\n*** End Patch\nE"
    )
    assert answer_call(script, str(tmp_path))[0] == "intercepted"
    assert (tmp_path / "sub dir" / "f").read_text() == "1\n"


def test_a_failure_after_verification_is_an_answer_with_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    script = "apply_patch <<'E'\n*** Begin Patch\n*** Add File: d\n+1\n*** End Patch\nE"
    folder = os.path.realpath(tmp_path)
    assert answer_call(script, folder) == (
        "failed",
        f"Exit code: 1\nWall time: 0 seconds\nOutput:\nFailed to write file {folder}/d\n",
    )
