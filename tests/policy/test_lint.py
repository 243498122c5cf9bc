from __future__ import annotations

from pathlib import Path

import pytest

from handrail.policy.lint import lint
from handrail.policy.proposals import is_too_broad


def run(folder: Path, **files: str) -> list[str]:
    paths = []
    for name, text in files.items():
        (folder / f"{name}.rules").write_text(text)
        paths.append(str(folder / f"{name}.rules"))
    result = lint(paths)
    return [str(remark).removeprefix(f"{folder}/") for remark in result.remarks]


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ('x = 1\nprefix_rule(["a"]', "2: error: Parse error"),
        ('prefix_rule(["a"], match=["b"])', "1: error: match example"),
        ('prefix_rule(["python3", "-c"])', "1: warning: `python3 -c` allows almost anything"),
        ('prefix_rule(["/bin/bash"])', "1: warning: `/bin/bash` allows almost anything"),
        ('prefix_rule(["./a"])', "1: warning: `./a` is another program"),
        ('prefix_rule(["a", "*.c"])', "1: warning: `a *.c`: words match literally"),
        ('prefix_rule(["a"], sandbox="off")', "1: warning: `a` leaves the sandbox"),
        (
            'prefix_rule(["git", "log"], sandbox="off", justification="j")',
            "1: warning: `git log` leaves the sandbox, and `git` runs what it finds in its working",
        ),
        ('prefix_rule(["a"])\nprefix_rule(["a"])', "2: warning: `a` is there already"),
        (
            'prefix_rule(["a", "b"])\nprefix_rule(["a", ["b", "c"]], "forbidden")',
            "1: warning: `a b` never applies",
        ),
        ('host_executable("a", [])', "1: warning: no rule is about `a`"),
        ('network_rule("x y".replace(" ", ":"), "http", "allow")', "1: warning: `x:y` is no host"),
    ],
)
def test_a_remark_names_its_line(tmp_path: Path, text: str, remark: str) -> None:
    assert any(line.startswith(f"r.rules:{remark}") for line in run(tmp_path, r=text))


def test_a_clean_file_has_no_remarks(tmp_path: Path) -> None:
    text = """
prefix_rule(["git", ["status", "log"]], match=["git log -1"])
prefix_rule(["git", "push"], "prompt", justification="publishes")
host_executable("git", ["/usr/bin/git"])
network_rule("pypi.org", "https", "allow")
network_rule("::1", "http", "deny")
"""
    assert run(tmp_path, a=text, b="") == []


def test_a_rule_on_arguments_is_said_to_be_a_guard(tmp_path: Path) -> None:
    remarks = run(tmp_path, a='prefix_rule(["git", "push"], "forbidden")')
    assert len(remarks) == 1
    assert remarks[0].startswith("a.rules:1: note: `git push` is read from the words of commands")
    assert run(tmp_path, a='prefix_rule(["zap"], "forbidden")') == []


def test_files_are_looked_at_together(tmp_path: Path) -> None:
    remarks = run(tmp_path, a='prefix_rule(["a"])', b='prefix_rule(["a"], "forbidden")')
    assert len(remarks) == 1
    assert remarks[0].startswith("a.rules:1: warning: `a` never applies")


def test_exit_codes_are_fit_for_continuous_integration(tmp_path: Path) -> None:
    path = tmp_path / "r.rules"
    note = 'prefix_rule(["git", "push"], "forbidden")'
    for text, code, strict in [
        ("", 0, 0),
        (note, 0, 0),
        ('prefix_rule(["bash"])', 0, 1),
        ("x(", 1, 1),
    ]:
        path.write_text(text)
        result = lint([str(path)])
        assert (result.exit_code(), result.exit_code(strict=True)) == (code, strict)
    assert result.text().endswith("errors: 1, warnings: 0\n")
    assert lint([str(tmp_path / "missing.rules")]).exit_code() == 1


@pytest.mark.parametrize(
    ("prefix", "broad"),
    [
        (["bash"], True), (["bash", "-lc"], True), (["bash", "-lc", "ls"], False),
        (["/usr/bin/env"], True), (["git"], True), (["git", "pull"], False), (["rm"], True),
        (["npm", "run"], True), (["npm", "run", "test"], False), (["python3", "-m"], True),
        (["python3", "x.py"], False), (["node", "-e"], True), ([], True),
    ],
)  # fmt: skip
def test_prefixes_that_allow_almost_anything(prefix: list[str], broad: bool) -> None:
    assert is_too_broad(prefix) is broad
