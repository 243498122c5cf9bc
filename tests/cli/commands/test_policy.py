"""``handrail policy`` as a program: JSON, words, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RULES = """
prefix_rule(["git"])
prefix_rule(["git", "push"], "forbidden", justification="ask first")
prefix_rule(["rm"], "prompt")
"""


def handrail(*words: str, cwd: Path | None, config: Path | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "handrail", *words],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=cwd,
        env=os.environ if config is None else {**os.environ, "XDG_CONFIG_HOME": str(config)},
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.rules").write_text(RULES)
    return tmp_path


def check(folder: Path, *words: str) -> tuple[int, str, str]:
    return handrail("policy", "check", "--rules", "a.rules", *words, cwd=folder)


def test_the_json_is_the_peers(folder: Path) -> None:
    code, out, err = check(folder, "git", "push", "--force")
    assert (code, err) == (0, "")
    assert out == (
        '{"matchedRules":[{"prefixRuleMatch":{"matchedPrefix":["git"],"decision":"allow"}},'
        '{"prefixRuleMatch":{"matchedPrefix":["git","push"],"decision":"forbidden",'
        '"justification":"ask first"}}],"decision":"forbidden"}\n'
    )
    assert check(folder, "ls")[:2] == (0, '{"matchedRules":[]}\n')
    assert check(folder, "--pretty", "--", "ls")[1] == '{\n  "matchedRules": []\n}\n'


def test_a_removed_working_directory_is_no_obstacle(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules, gone = str(folder / "a.rules"), folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for words in (("--resolve-host-executables", "/bin/git"), ("--explain", "git")):
        code, out, err = handrail("policy", "check", "--rules", rules, *words, cwd=None)
        assert (code, err) == (0, "")
        assert "allow" in out
    assert handrail("policy", "lint", rules, cwd=None)[0] == 0


def test_options_behind_the_command_are_the_commands(folder: Path) -> None:
    code, out, _ = check(folder, "git", "--pretty", "--rules", "x")
    assert code == 0
    assert json.loads(out)["decision"] == "allow"


@pytest.mark.parametrize(
    ("command", "code"), [("git status", 0), ("rm x", 3), ("git push", 4), ("ls", 5)]
)
def test_the_decision_can_be_the_exit_code(folder: Path, command: str, code: int) -> None:
    assert check(folder, "--exit-code", *command.split())[0] == code


def test_a_script_is_taken_apart(folder: Path) -> None:
    code, out, _ = check(folder, "--shell", "--exit-code", "A=1 git push > log")
    assert code == 4
    assert json.loads(out)["splittable"] is False
    words = check(folder, "--shell", "bash", "-lc", "git status; ls")
    assert [one["command"] for one in json.loads(words[1])["commands"]] == [
        ["git", "status"],
        ["ls"],
    ]


def test_reasons_come_with_the_line_of_the_file(folder: Path) -> None:
    code, out, _ = check(folder, "--explain", "git", "push")
    assert code == 4
    assert "a.rules:3: forbidden `git push`: ask first" in out
    assert check(folder, "--explain", "--approval", "untrusted", "ls")[0] == 3
    assert check(folder, "--explain", "--approval", "never", "rm", "x")[0] == 4
    for off in ("off", "danger-full-access"):
        assert check(folder, "--explain", "--sandbox", off, "ls")[0] == 0


@pytest.mark.fault
def test_a_command_cannot_forge_its_explanation(folder: Path) -> None:
    hostile = "rm \x1b[2J\x9b\r\u202ex\nallow: ls"
    _, out, _ = check(folder, "--explain", "--shell", hostile)
    assert all(line.isprintable() for line in out.splitlines())
    assert not any(line.startswith("allow: ls") for line in out.splitlines())
    assert "\\x1b[2J" in out
    _, _, said = check(folder, "--approval", "\x1b[2J", "ls")
    assert "\x1b" not in said


def test_files_that_cannot_be_used_and_wrong_usage(folder: Path) -> None:
    (folder / "b.rules").write_text("prefix_rule([])\n")
    code, out, err = handrail("policy", "check", "--rules", "b.rules", "ls", cwd=folder)
    assert (code, out) == (1, "")
    assert err.startswith("b.rules:1: ")
    assert handrail("policy", "check", "--rules", "none.rules", "ls", cwd=folder)[0] == 1
    assert check(folder)[0] == 2


def test_without_a_file_the_users_rules_are_read(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "config"
    words = ("policy", "check", "--exit-code", "git", "push")
    assert handrail(*words, cwd=folder, config=config)[0] == 5
    rules = config / "handrail" / "rules"
    rules.mkdir(parents=True)
    (rules / "a.rules").write_text(RULES)
    assert handrail(*words, cwd=folder, config=config)[0] == 4
    status = ("policy", "check", "--exit-code", "git", "status")
    assert handrail(*status, cwd=folder, config=config)[0] == 0
    (rules / "b.rules").write_text("prefix_rule(['x'], 'forbidden'")
    code, out, err = handrail(*status, cwd=folder, config=config)
    assert (code, json.loads(out)["decision"]) == (3, "allow")
    assert "b.rules:1" in err
    assert "left out" in err
    explained = handrail("policy", "check", "--explain", "ls", cwd=folder, config=config)
    assert explained[0] == 3
    assert "b.rules" in explained[1]


def test_rules_may_be_a_directory(folder: Path) -> None:
    assert handrail("policy", "check", "-r", ".", "--exit-code", "rm", "x", cwd=folder)[0] == 3


def test_lint_looks_through_files_and_folders(folder: Path) -> None:
    code, out, _ = handrail("policy", "lint", ".", cwd=folder)
    assert code == 0
    assert out.splitlines()[-1] == "errors: 0, warnings: 1"
    assert handrail("policy", "lint", "--strict", "a.rules", cwd=folder)[0] == 1
    (folder / "b.rules").write_text("prefix_rule(\n")
    code, out, _ = handrail("policy", "lint", ".", cwd=folder)
    assert code == 1
    assert "b.rules:" in out
