from __future__ import annotations

import os
from pathlib import Path

import pytest

from handrail.policy.language import RulesFileError
from handrail.policy.load import Layer, load_files, load_layers, rules_files

ALLOW = 'prefix_rule(["a"])\n'
FORBID = 'prefix_rule(["a"], "forbidden")\n'


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.rules").write_text(text)
    return folder


def test_layers_and_files_keep_their_order(tmp_path: Path) -> None:
    admin = Layer("admin", str(write(tmp_path / "admin", z=ALLOW)), administrator=True)
    system = Layer("system", str(write(tmp_path / "system", b=ALLOW, a=ALLOW)))
    user = Layer("user", str(write(tmp_path / "user", a=ALLOW)))
    loaded = load_layers([admin, system, user])
    names = [os.path.relpath(rule.source.path, tmp_path) for rule in loaded.policy.rules]
    assert names == ["system/a.rules", "system/b.rules", "user/a.rules", "admin/z.rules"]


def test_a_missing_folder_has_no_rules_and_other_files_are_not_read(tmp_path: Path) -> None:
    folder = write(tmp_path, a=ALLOW)
    (folder / "notes.txt").write_text("x(")
    (folder / "sub.rules").mkdir()
    assert rules_files(str(folder)) == [str(folder / "a.rules")]
    assert load_layers([Layer("none", str(tmp_path / "missing"))]).policy.rules == ()


def test_a_broken_file_is_left_out_alone(tmp_path: Path) -> None:
    folder = write(tmp_path, a=FORBID, b='prefix_rule(["b"]', c="prefix_rule(['c'], 'prompt')\nx(")
    loaded = load_layers([Layer("user", str(folder))])
    assert [rule.first for rule in loaded.policy.rules] == ["a"]
    assert [(Path(p.error.path).name, p.error.line, p.holds_back) for p in loaded.problems] == [
        ("b.rules", 1, False),
        ("c.rules", 2, True),
    ]
    assert [Path(path).name for path in loaded.policy.lost] == ["c.rules"]
    assert "left out" in str(loaded.problems[0])


def test_a_file_whose_example_fails_is_left_out(tmp_path: Path) -> None:
    folder = write(tmp_path, a='prefix_rule(["a"], match=["b"])', b=ALLOW)
    loaded = load_layers([Layer("user", str(folder))])
    assert len(loaded.policy.rules) == len(loaded.problems) == 1


def test_a_broken_administrator_file_is_an_error(tmp_path: Path) -> None:
    folder = write(tmp_path, a="x(")
    with pytest.raises(RulesFileError):
        load_layers([Layer("admin", str(folder), administrator=True)])


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RulesFileError, match="cannot be read"):
        load_layers([Layer("user", str(tmp_path / "file"))])
    with pytest.raises(RulesFileError, match="cannot be read"):
        load_files([str(tmp_path / "missing.rules")])
    (tmp_path / "bad.rules").write_bytes(b"# x\n\xff\n")
    with pytest.raises(RulesFileError, match=r"bad\.rules:2: not UTF-8"):
        load_files([str(tmp_path / "bad.rules")])


def test_host_lists_reach_later_files_and_are_replaced(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        a='host_executable("a", ["/x/a"])',
        b='prefix_rule(["a"], match=["/x/a"], not_match=["/y/a"])',
        c='host_executable("a", ["/y/a"])',
    )
    policy = load_files(rules_files(str(folder)))
    assert policy.hosts["a"].paths == ("/y/a",)
