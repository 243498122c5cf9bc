"""The file of tables is well formed, and every section of it is used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from handrail.policy import tables

POLICY = Path(tables.__file__).parent
TEXT = POLICY.joinpath("tables.txt").read_text(encoding="utf-8")
SECTIONS = re.findall(r"^\[(.*)\]$", TEXT, re.MULTILINE)


def test_sections_have_titles_of_their_own() -> None:
    assert len(SECTIONS) == len(set(SECTIONS)) > 20


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_has_words_and_is_used(section: str) -> None:
    assert tables.words(section)
    code = "".join(path.read_text(encoding="utf-8") for path in POLICY.rglob("*.py"))
    assert f'("{section}")' in code


def test_an_entry_has_several_keys_and_goes_on_in_the_next_line() -> None:
    found = tables.entries("running options")
    assert found["fd"] == found["fdfind"] == ("letters=xX", "--exec", "--exec-batch")
    assert found["tar"][-1] == "--new-volume-script"
    assert tables.entries("wrappers")["."] == ()


def test_a_section_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(KeyError):
        tables.names("no such section")
