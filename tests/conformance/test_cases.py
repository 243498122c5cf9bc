"""Every recorded case holds, and the runner works on files it has never seen."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.run import HERE, MODULES, Case, checker, family, load, main, outcome
from tests.wire.replay import load_cases, replay
from tests.wire.runner import Target

CASES = HERE / "cases"
#: The conversations on the wire are replayed by tests/wire.
RUNNABLE = [
    name
    for name, module in MODULES.items()
    if (HERE / f"{module}.py").exists() and module != "attacks"
]


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(name, case, id=f"{name}-{case_id}")
        for name in RUNNABLE
        for case_id, case in load(CASES / f"{name}.jsonl")
    ],
)
def test_case(name: str, case: Case) -> None:
    assert outcome(checker(name), case) is None


def test_every_file_of_cases_is_known() -> None:
    assert [path.stem for path in CASES.glob("*.jsonl") if not family(path)] == []


def test_a_file_of_the_same_name_elsewhere_is_run(tmp_path: Path) -> None:
    good = {"id": "mine", "op": "exec_yield", "requested_ms": 7, "expect": {"effective_ms": 250}}
    bad = {**good, "id": "wrong", "expect": {"effective_ms": 7}}
    (tmp_path / "unified_exec.jsonl").write_text(json.dumps(good) + "\n" + json.dumps(bad) + "\n")
    done = subprocess.run(
        [sys.executable, HERE / "run.py", *sorted(tmp_path.iterdir())],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=tmp_path,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith("FAILED unified_exec.jsonl wrong: effective_ms: expected 7")
    assert lines[-1] == "1 passed, 1 failed"
    assert done.returncode == 1


def test_a_case_that_breaks_the_code_is_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "head_tail-more.jsonl"
    path.write_text('{"id": "x"}\n')
    assert main([str(path)]) == 1


def test_a_missing_file_is_wrong_usage(tmp_path: Path) -> None:
    assert main([str(tmp_path / "head_tail.jsonl")]) == 2


def test_a_line_ends_at_a_newline_only(tmp_path: Path) -> None:
    path = tmp_path / "unified_exec.jsonl"
    case = {"id": "a\u2028b\u0085c", "op": "exec_yield", "requested_ms": 7}
    case["expect"] = {"effective_ms": 250}
    path.write_text(json.dumps(case, ensure_ascii=False) + "\n", encoding="utf-8")
    assert [name for name, _ in load(path)] == [case["id"]]
    assert main([str(path)]) == 0
    assert [one["id"] for one in load_cases(path)] == [case["id"]]


def test_an_unreadable_line_is_one_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "unified_exec.jsonl"
    path.write_bytes(
        b'{"id":\n[1]\n"\xff"\n\n{"id": "x", "op": "exec_yield", "requested_ms": 7, '
        b'"expect": {"effective_ms": 250}}\n'
    )
    assert main([str(path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 3 failed"
    broken = load_cases(path)[:3]
    assert asyncio.run(replay(broken, Target("http://127.0.0.1:1"), set())) == 3
