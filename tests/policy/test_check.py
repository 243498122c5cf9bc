from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from handrail.policy.check import check
from handrail.policy.context import Approval, Situation
from tests.policy import cases


def rules_files(folder: Path, texts: list[str]) -> list[str]:
    paths = []
    for at, text in enumerate(texts):
        path = folder / f"r{at}.rules"
        path.write_text(text, encoding="utf-8")
        paths.append(str(path))
    return paths


@pytest.mark.parametrize("case", cases("execpolicy_check.jsonl"))
def test_verified_case(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = check(
        rules_files(tmp_path, case["rules_files"]),
        case["command"],
        cwd=str(tmp_path),
        home="/home/me",
        resolve_host_executables="--resolve-host-executables" in case["flags"],
        pretty="--pretty" in case["flags"],
    )
    expected = case["expect"]
    assert result.exit_code == expected["exit_code"]
    if "json" in expected:
        text = json.dumps(expected["json"], ensure_ascii=False, separators=(",", ":"))
        assert result.output == text.replace("{cwd}", str(tmp_path)) + "\n"
        assert not result.error
    else:
        assert result.error
        assert not result.output


def run(folder: Path, rules: str, *command: str, **options: Any) -> tuple[int, str]:
    paths = rules_files(folder, [rules])
    result = check(paths, command, cwd="/w", home="/home/me", **options)
    return result.exit_code, result.output


def test_pretty_output_has_the_same_content(tmp_path: Path) -> None:
    code, text = run(tmp_path, 'prefix_rule(["a"], justification="é")', "a", pretty=True)
    assert code == 0
    assert text.startswith('{\n  "matchedRules": [\n    {\n      "prefixRuleMatch": {\n')
    assert '"justification": "é"' in text
    _, nothing = run(tmp_path, "", "a", pretty=True)
    assert nothing == '{\n  "matchedRules": []\n}\n'


def test_a_broken_file_names_file_and_line(tmp_path: Path) -> None:
    paths = rules_files(tmp_path, ["", '\n\nprefix_rule(["a"], match=["b"])'])
    result = check(paths, ["a"], cwd="/", home="/")
    assert result.exit_code == 1
    assert result.error.startswith(f"{paths[1]}:3: match example `b`")


def test_shell_shows_every_command_of_a_script(tmp_path: Path) -> None:
    rules = 'prefix_rule(["git"])\nprefix_rule(["rm"], "prompt")'
    _, text = run(tmp_path, rules, "bash", "-lc", "git status && ls", shell=True)
    report = json.loads(text)
    assert report["splittable"] is True
    assert [one["command"] for one in report["commands"]] == [["git", "status"], ["ls"]]
    assert report["commands"][0]["decision"] == "allow"
    assert "decision" not in report
    _, text = run(tmp_path, rules, "bash", "-lc", "git status; sudo rm x > y", shell=True)
    report = json.loads(text)
    assert report["splittable"] is False
    assert ["rm", "x"] in report["mayRun"]
    assert report["decision"] == "prompt"
    _, text = run(tmp_path, rules, "bash", "-lc", "git status; git log", shell=True)
    assert json.loads(text)["decision"] == "allow"
    rules += '\nprefix_rule(["bash"], "forbidden")'
    for script, decision in {"git log": "allow", "bash -c 'git log'": "forbidden"}.items():
        _, text = run(tmp_path, rules, "bash", "-lc", script, shell=True)
        assert json.loads(text)["decision"] == decision


@pytest.mark.parametrize(
    ("command", "code", "word"),
    [("git status", 0, "allow"), ("ls", 3, "ask"), ("git push > x", 4, "forbid")],
)
def test_explain_gives_reasons_and_an_exit_code(
    tmp_path: Path, command: str, code: int, word: str
) -> None:
    rules = 'prefix_rule(["git"])\nprefix_rule(["git", "push"], "forbidden", justification="why")'
    situation = Situation(approval=Approval.UNTRUSTED)
    found, text = run(tmp_path, rules, "bash", "-c", command, explain=situation)
    assert (found, text.split(":")[0]) == (code, word)
    if word == "forbid":
        assert "r0.rules:2: forbidden `git push`: why" in text
    if word == "ask":
        assert "rule to offer: ls" in text


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("rm x > y", 4),
        ("sudo rm x", 4),
        ("python3 -c 'import os; os.system(\"rm x\")'", 3),
        ("$SUDO rm x", 3),
        ("command " * 40 + "rm x", 3),
        ("ls", 5),
    ],
)
def test_the_exit_code_for_a_script_is_that_of_the_decision(
    tmp_path: Path, script: str, code: int
) -> None:
    rules = 'prefix_rule(["rm"], "forbidden")'
    found, _ = run(tmp_path, rules, "bash", "-c", script, shell=True, exit_code=True)
    assert found == code
    if code != 5:
        decided, _ = run(tmp_path, rules, "bash", "-c", script, explain=Situation())
        assert decided == code
