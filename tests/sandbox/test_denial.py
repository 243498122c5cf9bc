from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from handrail.sandbox.denial import PHRASES, Denial, from_text, likely_denied, merge

CASES = Path(__file__).parent.parent / "cases" / "denial_heuristic.jsonl"


def cases() -> list[Any]:
    rows = [json.loads(line) for line in CASES.read_text().splitlines()]
    return [pytest.param(row, id=row["id"]) for row in rows]


@pytest.mark.parametrize("case", cases())
def test_verified_case(case: dict[str, Any]) -> None:
    found = likely_denied(case["sandbox"], case["exit_code"], case["output"])
    assert found is case["expect"]["likely_denied"]


@pytest.mark.parametrize("phrase", PHRASES)
@pytest.mark.parametrize("code", [1, 2, 101, 126, 127, 159])
def test_a_phrase_beats_every_code_but_zero(phrase: str, code: int) -> None:
    text = f"xx{phrase.upper()}yy".encode()
    assert likely_denied("linuxSeccomp", code, b"", text)
    assert not likely_denied("linuxSeccomp", 0, text)
    assert not likely_denied("none", code, text)
    assert not likely_denied("linuxSeccomp", None, text)


def test_death_by_system_call_counts_on_linux_alone() -> None:
    assert likely_denied("linuxSeccomp", 159, b"")
    assert likely_denied("linux_seccomp", 159)
    assert not likely_denied("macosSeatbelt", 159)
    assert not likely_denied("linuxSeccomp", 158)


def test_bytes_that_are_no_text_do_not_hide_a_phrase() -> None:
    assert likely_denied("linuxSeccomp", 1, b"\xff\xfePermission Denied\xff")


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("bash: /etc/x: Read-only file system", "/etc/x"),
        ("touch: cannot touch '/etc/a b': Permission denied", "/etc/a b"),
        (
            "fatal: Unable to create '/w/.git/index.lock': Read-only file system",
            "/w/.git/index.lock",
        ),
        ("PermissionError: [Errno 13] Permission denied: '/srv/x'", "/srv/x"),
        ("Error: EROFS: read-only file system, open '/srv/y'", "/srv/y"),
        ("mkdir: cannot create directory ‘/srv/z’: Operation not permitted", "/srv/z"),
        ("sh: 1: cannot create ../x: Permission denied", "../x"),
        ("touch: Permission denied", None),
        ("all sandbox tests of '/srv/x' failed", None),
        ("Permission denied for '/srv/x' by my own rule", None),
    ],
)
def test_a_path_is_fished_from_a_line(line: str, path: str | None) -> None:
    expected = [] if path is None else [Denial("file", None, path, "text", certain=False)]
    assert from_text("before\n" + line + "\nafter") == expected


def test_records_of_text_are_bounded_and_said_once() -> None:
    lines = [f"sh: /x/{n}: Permission denied" for n in range(100)] * 2
    found = from_text("\n".join(lines).encode())
    assert len(found) == len(set(found)) == 32


def test_evidence_takes_the_place_of_a_guess() -> None:
    guess = Denial("file", None, "/x", "text", certain=False)
    other = Denial("file", None, "/y", "text", certain=False)
    proof = Denial("file", "openat", "/x", "notify", certain=True)
    assert merge([guess, other], [proof]) == [proof, other]
    assert merge([proof], [guess, other]) == [proof, other]
