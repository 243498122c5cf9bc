"""The files that a forbidden name leads to, and those that are more than that program."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from handrail.policy.lint import lint
from handrail.policy.load import parse_rules
from handrail.policy.program_files import ProgramFiles, forbidden_whole, search_directories


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """A directory of the machine, and one that commands may write in."""
    for name in ("bin", "work"):
        (tmp_path / name).mkdir()
    return tmp_path / "bin", tmp_path / "work"


def program(path: Path) -> str:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def covered(*places: Path, names: tuple[str, ...] = ("zap",), **more: object) -> set[str]:
    found = ProgramFiles().find(names, [str(place) for place in places], **more)  # type: ignore[arg-type]
    return set(found.covered)


def test_only_rules_without_arguments_forbid_a_whole_program() -> None:
    rules = parse_rules(
        'prefix_rule(["zap"], decision="forbidden")\n'
        'prefix_rule([["a", "b"]], decision="forbidden")\n'
        'prefix_rule(["git", "push"], decision="forbidden")\n'
        'prefix_rule(["rm"], decision="prompt")\n'
        'prefix_rule(["ls"])\n',
        "r",
    )
    assert forbidden_whole(rules) == ("zap", "a", "b")


def test_the_directories_are_the_path_s_and_the_usual_ones() -> None:
    found = search_directories("/a:b:", "/home/me", "/cwd")
    assert found[:3] == ("/a", "/cwd/b", "/cwd/")
    assert {"/usr/bin", "/usr/local/bin", "/home/me/bin"} <= set(found)


def test_every_file_of_the_name_is_covered(places: tuple[Path, Path], tmp_path: Path) -> None:
    bin_, work = places
    first, second = program(bin_ / "zap"), program(work / "zap")
    assert covered(bin_, work) == {first, second}
    assert covered(tmp_path) == set()
    assert covered(names=(first,)) == {first}
    assert covered(bin_, needed=[first]) == set()


def test_a_link_is_covered_where_it_leads(places: tuple[Path, Path], tmp_path: Path) -> None:
    bin_, _ = places
    real = program(tmp_path / "zap-1.2")
    (bin_ / "zap").symlink_to(real)
    assert covered(bin_) == {real}


def test_a_link_is_covered_where_its_target_is_a_program_beside_it(
    places: tuple[Path, Path],
) -> None:
    bin_, _ = places
    real = program(bin_ / "zap.real")
    (bin_ / "zap").symlink_to("zap.real")
    assert covered(bin_) == {real}
    (bin_ / "zop").symlink_to("zap.real")
    assert covered(bin_) == set(), "zop is not forbidden"
    assert covered(bin_, names=("zap", "zop")) == {real}
    program(bin_ / "busybox")
    (bin_ / "vi").symlink_to("busybox")
    assert covered(bin_, names=("vi",)) == set()


def test_hard_links_are_found_beside_its_directory_and_in_the_home(
    places: tuple[Path, Path], tmp_path: Path
) -> None:
    bin_, _ = places
    real = program(bin_ / "zap")
    links = [tmp_path / "opt" / "q", tmp_path / "home" / "deep" / "q"]
    for link in links:
        link.parent.mkdir(parents=True)
        os.link(real, link)
    found = covered(bin_, home=str(tmp_path / "home"))
    assert found == {real, *(str(link) for link in links)}


def test_hard_links_and_aliases_are_covered_with_it(places: tuple[Path, Path]) -> None:
    bin_, work = places
    real = program(bin_ / "zap")
    (bin_ / "alias").symlink_to("zap")
    (work / "deep").mkdir()
    for link in (bin_ / "again", work / "deep" / "copy"):
        os.link(real, link)
    found = covered(bin_, writable=[str(work)])
    assert found == {real, str(bin_ / "again"), str(work / "deep" / "copy")}


def test_a_file_that_is_another_program_too_is_left_alone(places: tuple[Path, Path]) -> None:
    bin_, _ = places
    program(bin_ / "many")
    for name in ("zap", "other"):
        (bin_ / name).symlink_to("many")
    found = ProgramFiles().find(["zap"], [str(bin_)])
    assert (found.covered, found.shared) == ((), ((str(bin_ / "zap"), "many"),))
    assert covered(bin_, names=("zap", "other", "many")) == {str(bin_ / "many")}


def test_a_file_with_many_names_is_left_alone(places: tuple[Path, Path]) -> None:
    bin_, _ = places
    program(bin_ / "zap")
    for number in range(20):
        os.link(bin_ / "zap", bin_ / f"applet{number}")
    assert covered(bin_) == set()
    program(bin_ / "shell")
    (bin_ / "sh").symlink_to("shell")
    assert covered(bin_, names=("shell",)) == set()


def test_a_command_cannot_uncover_a_program_by_more_names(places: tuple[Path, Path]) -> None:
    bin_, work = places
    real = program(bin_ / "zap")
    for number in range(20):
        (work / f"name{number}").symlink_to(real)
    (work / "sh").symlink_to(real)
    assert covered(bin_, work, writable=[str(work)]) == {real}


def test_what_appears_later_is_found(places: tuple[Path, Path]) -> None:
    bin_, work = places
    files = ProgramFiles()
    assert files.find(["zap"], [str(bin_)]).covered == ()
    real = program(bin_ / "zap")
    assert files.find(["zap"], [str(bin_)]).covered == (real,)
    (bin_ / "zap").unlink()
    program(bin_ / "many")
    for name in ("zap", "other"):
        (bin_ / name).symlink_to("many")
    assert files.find(["zap"], [str(bin_)]).covered == ()
    assert work.is_dir()


def test_lint_names_a_program_that_cannot_be_covered(
    places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin_, _ = places
    program(bin_ / "many")
    for name in ("zap", "other"):
        (bin_ / name).symlink_to("many")
    program(bin_ / "alone")
    monkeypatch.setenv("PATH", str(bin_))
    rules = tmp_path / "r.rules"
    rules.write_text(
        'prefix_rule(["alone"], decision="forbidden")\nprefix_rule(["zap"], decision="forbidden")\n'
    )
    (remark,) = lint([str(rules)]).remarks
    assert remark.source.line == 2
    assert "is also the program `many`" in remark.text
