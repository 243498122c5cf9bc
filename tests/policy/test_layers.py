"""Which rules are in force: the default layers, or those that are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from handrail.errors import UsageError
from handrail.policy import layers
from handrail.policy.language import RulesFileError
from handrail.policy.layers import load_rules, user_folder
from handrail.policy.load import parse_rules
from tests.policy.test_load import write

FORBID = 'prefix_rule(["{}"], "forbidden")\n'


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The directories of the user and of the system, for this test."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(layers, "SYSTEM_FOLDER", str(tmp_path / "system"))
    return Path(user_folder()), tmp_path / "system"


def names(rules: Any = None) -> list[str]:
    return [rule.first for rule in load_rules(rules).policy.rules]


def test_without_a_name_the_users_and_the_systems(folders: tuple[Path, Path]) -> None:
    assert names() == []
    user, system = folders
    write(user, a=FORBID.format("mine"))
    write(system, a=FORBID.format("everyones"))
    assert names() == ["mine", "everyones"]


def test_named_rules_replace_the_users_and_not_the_systems(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    user, system = folders
    write(user, a=FORBID.format("mine"))
    write(system, a=FORBID.format("everyones"))
    project = write(tmp_path / "project", b=FORBID.format("b"), a=FORBID.format("a"))
    file = write(tmp_path, one=FORBID.format("one")) / "one.rules"
    assert names(project) == ["a", "b", "everyones"]
    assert names(str(file)) == ["one", "everyones"]
    assert names([file, project]) == ["one", "a", "b", "everyones"]
    assert names(parse_rules(FORBID.format("x"), "x")) == ["x", "everyones"]
    assert names([]) == ["everyones"]


def test_a_broken_file_is_left_out_of_a_directory_and_an_error_by_itself(tmp_path: Path) -> None:
    project = write(tmp_path / "p", a="prefix_rule(['x'], 'forbidden'", b=FORBID.format("b"))
    loaded = load_rules(project)
    assert [rule.first for rule in loaded.policy.rules] == ["b"]
    assert [Path(path).name for path in loaded.policy.lost] == ["a.rules"]
    assert len(loaded.problems) == 1
    with pytest.raises(RulesFileError, match=r"a\.rules:1"):
        load_rules([project / "a.rules"])
    with pytest.raises(RulesFileError, match="cannot be read"):
        load_rules(tmp_path / "missing")


def test_a_broken_file_of_the_system_is_an_error_whatever_is_named(
    folders: tuple[Path, Path],
) -> None:
    write(folders[1], a="x(")
    for rules in (None, [], parse_rules("", "x")):
        with pytest.raises(RulesFileError):
            load_rules(rules)


@pytest.mark.parametrize("rules", [3, [3], {"a": 1}.items()])
def test_something_else_is_refused(rules: Any) -> None:
    with pytest.raises(UsageError, match="rules are files"):
        load_rules(rules)


def test_host_lists_reach_files_that_are_named_later(tmp_path: Path) -> None:
    write(tmp_path, a='host_executable("a", ["/x/a"])')
    project = write(tmp_path / "p", b='prefix_rule(["a"], match=["/x/a"], not_match=["/y/a"])')
    assert names([tmp_path / "a.rules", project]) == ["a"]
