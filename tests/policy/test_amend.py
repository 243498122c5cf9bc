from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.errors import PolicyError, UsageError
from handrail.policy import amend
from handrail.policy.amend import append_line, prefix_rule_line
from handrail.policy.load import load_files, parse_rules
from handrail.policy.rules import Decision, Sandbox, strictest


def append_rule(path: str, prefix: list[str], *more: Decision, **named: Any) -> bool:
    return append_line(path, prefix_rule_line(prefix, *more, **named))


def test_a_line_the_peer_can_read_is_added(tmp_path: Path) -> None:
    path = tmp_path / "rules" / "default.rules"
    assert append_rule(str(path), ["touch", "./a b"])
    assert append_rule(str(path), ["ls"], Decision.PROMPT, justification="é")
    assert path.read_text() == (
        'prefix_rule(pattern=["touch", "./a b"], decision="allow")\n'
        'prefix_rule(pattern=["ls"], decision="prompt", justification="é")\n'
    )
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_same_line_is_added_once(tmp_path: Path) -> None:
    path = tmp_path / "default.rules"
    path.write_text("# mine")
    assert append_rule(str(path), ["ls"])
    assert not append_rule(str(path), ["ls"])
    assert append_rule(str(path), ["ls"], sandbox=Sandbox.OFF)
    assert path.read_text().splitlines() == [
        "# mine",
        'prefix_rule(pattern=["ls"], decision="allow")',
        'prefix_rule(pattern=["ls"], decision="allow", sandbox="off")',
    ]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """A command could have left it, to have another file written to."""
    target = tmp_path / "dotfiles.rules"
    target.write_text("")
    link = tmp_path / "default.rules"
    link.symlink_to(target)
    with pytest.raises(PolicyError, match="symbolic link; name the file it leads to"):
        append_rule(str(link), ["ls"])
    assert link.is_symlink()
    assert target.read_text() == ""


@settings(deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1, max_size=4)
)
def test_what_is_written_matches_what_was_approved(prefix: list[str]) -> None:
    line = prefix_rule_line(prefix)
    assert "\n" not in line
    assert strictest(parse_rules(line, "r").matches([*prefix, "more"])) is Decision.ALLOW


def test_what_a_file_cannot_hold_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "default.rules")
    with pytest.raises(UsageError):
        append_rule(path, [])
    with pytest.raises(UsageError):
        append_rule(path, ["\udcff"])
    with pytest.raises(UsageError):
        append_line(path, "a\nb")
    with pytest.raises(PolicyError, match="cannot add a rule"):
        append_rule(str(tmp_path), ["ls"])
    assert not os.path.exists(path)


def test_an_interrupted_write_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "default.rules"
    path.write_text("# mine\n")
    whole = os.write
    monkeypatch.setattr(amend.os, "write", lambda fd, data: whole(fd, data[:5]))
    with pytest.raises(PolicyError, match="in part"):
        append_rule(str(path), ["ls"])
    assert path.read_text() == "# mine\n"


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "default.rules")
    threads = [
        threading.Thread(target=append_rule, args=(path, ["tool", str(at % 10)]))
        for at in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    rules = load_files([path]).rules
    assert sorted(str(rule) for rule in rules) == [f"tool {at}" for at in range(10)]
