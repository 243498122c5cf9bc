"""The text is judged by a small reading of its own rules: the last that matches decides."""

from __future__ import annotations

import os
import re

import pytest

from handrail.errors import SandboxUnavailable
from handrail.sandbox import seatbelt
from handrail.sandbox.seatbelt import glob_regex, platform_refusal, profile, real_path

RULE = re.compile(
    r'^\((allow|deny) ([a-z* -]+) \((subpath|literal|regex) #?"((?:[^"\\]|\\.)*)"\)\)$'
)


def allowed(text: str, operation: str, path: str) -> bool:
    """What the profile says about one operation on one path."""
    answer = False
    for line in text.splitlines():
        match = RULE.match(line)
        if match is None:
            continue
        verb, operations, kind, quoted = match.groups()
        where = quoted
        if kind != "regex":  # those are taken as they stand
            where = quoted.replace('\\"', '"').replace("\\\\", "\\")
        names = operations.split()
        if not any(
            operation == n or (n.endswith("*") and operation.startswith(n[:-1])) for n in names
        ):
            continue
        if kind == "regex":
            hit = re.search(where, path) is not None
        elif kind == "literal":
            hit = path == where
        else:
            hit = path == where or where == "/" or path.startswith(where + "/")
        if hit:
            answer = verb == "allow"
    return answer


def rights(text: str, path: str) -> str:
    read, write = allowed(text, "file-read-data", path), allowed(text, "file-write-data", path)
    return "write" if write and read else "read" if read else "deny"


def test_the_deepest_entry_wins_in_whatever_order_they_come() -> None:
    entries = [
        (b"/w/a/b", "write"),
        (b"/", "read"),
        (b"/w/a", "deny"),
        (b"/w", "write"),
        (b"/w/.git", "read"),
    ]
    for order in (entries, entries[::-1]):
        text = profile(order)
        found = {
            p: rights(text, p) for p in ("/x", "/w", "/w/f", "/w/a/f", "/w/a/b/f", "/w/.git/c")
        }
        assert found == {
            "/x": "read",
            "/w": "write",
            "/w/f": "write",
            "/w/a/f": "deny",
            "/w/a/b/f": "write",
            "/w/.git/c": "read",
        }
        assert "/wide" not in text


def test_at_one_depth_deny_beats_write_beats_read() -> None:
    text = profile([(b"/p", "deny"), (b"/p", "write"), (b"/q", "write"), (b"/q", "read")])
    assert (rights(text, "/p/x"), rights(text, "/q/x"), rights(text, "/other")) == (
        "deny",
        "write",
        "deny",
    )


def test_directories_above_what_is_protected_keep_their_names() -> None:
    text = profile([(b"/w", "write"), (b"/w/a/b/secret", "deny"), (b"/w/c/d", "write")])
    pinned = {
        p
        for p in ("/w", "/w/a", "/w/a/b", "/w/a/b/secret", "/w/c", "/w/c/d")
        if not allowed(text, "file-write-unlink", p)
    }
    assert pinned == {"/w/a", "/w/a/b", "/w/a/b/secret"}


def test_no_network_unless_it_is_open() -> None:
    assert "network" not in profile([(b"/", "read")])
    assert "(allow network*)" in profile([(b"/", "read")], network="enabled")


@pytest.mark.parametrize(
    ("pattern", "hits", "misses"),
    [
        ("/w/**/*.env", ["/w/.env", "/w/a/b/x.env", "/w/x.env/below"], ["/w/x.envy", "/x.env"]),
        ("/w/*.key", ["/w/a.key"], ["/w/a/b.key", "/w/akey"]),
        ("/w/?x[0-9]", ["/w/ax3"], ["/w/ax", "/w//x3", "/w/axa"]),
        ("/w/[!a]b", ["/w/xb"], ["/w/ab"]),
        ("/w/a+(b)", ["/w/a+(b)"], ["/w/aab"]),
        ('/w/a"b\\c^', ['/w/a"b\\c^'], ["/w/b"]),
        ('/w/["]', ['/w/"'], ["/w/ab"]),
        ("/w/**", ["/w/a", "/w/a/b"], ["/v"]),
    ],
)
def test_patterns_hold_for_whatever_appears(
    pattern: str, hits: list[str], misses: list[str]
) -> None:
    text = profile([(b"/", "read"), (b"/w", "write")], [pattern])
    assert {p for p in hits + misses if rights(text, p) == "deny"} == set(hits)
    assert glob_regex(pattern).startswith("^")


def test_a_name_cannot_end_its_string() -> None:
    name = b'/w/a") (allow default) ("\\'
    text = profile([(b"/", "read"), (name, "write")])
    assert rights(text, name.decode() + "/x") == "write"
    assert "\n(allow default)" not in text
    assert text.count("(") - text.count(")") == name.count(b"(") - name.count(b")")


@pytest.mark.parametrize("name", [b"/w/\xff", b"/w/a\nb", b"relative", b"/w/\x7f"])
def test_what_cannot_be_spelt_is_refused(name: bytes) -> None:
    with pytest.raises(SandboxUnavailable, match="nothing was run"):
        profile([(name, "write")])


def test_aliases_are_spelt_out() -> None:
    assert [real_path(p) for p in (b"/tmp", b"/tmp/x", b"/tmpx", b"/var/y", b"/private/tmp")] == [
        "/private/tmp",
        "/private/tmp/x",
        "/tmpx",
        "/private/var/y",
        "/private/tmp",
    ]


def test_without_the_program_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.path.exists(seatbelt.PROGRAM):
        with pytest.raises(SandboxUnavailable, match="sandbox-exec"):
            seatbelt.command("", [b"true"])
    monkeypatch.setattr(seatbelt, "PROGRAM", "/bin/sh")
    assert seatbelt.command("(version 1)", [b"ls", b"-l"]) == (
        b"/bin/sh",
        b"-p",
        b"(version 1)",
        b"--",
        b"ls",
        b"-l",
    )


def test_other_systems_are_refused_with_a_way_out() -> None:
    for platform, name in (("win32", "Windows"), ("freebsd14", "freebsd14"), ("darwin", "macOS")):
        text = platform_refusal(platform)
        assert name in text
        assert "another executor" in text
