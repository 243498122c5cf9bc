"""``handrail network check`` says what the proxy would decide."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from handrail.cli.app import main

PROFILE = json.dumps({"domains": {"127.0.0.1:8080": "allow", "*.bad.example": "deny"}})


@pytest.mark.parametrize(
    ("target", "code", "text"),
    [
        ("http://127.0.0.1:8080/x", 0, "allow (allow) 127.0.0.1:8080"),
        ("127.1:8080", 0, "rule: 127.0.0.1:8080"),
        ("127.0.0.1:80", 1, "deny (not_allowed_local)"),
        ("https://a.bad.example", 1, "rule: *.bad.example"),
        ("https://new.example/x?y", 2, "ask (not_allowed) new.example:443"),
        ("new.example", 3, "bad (bad_host)"),
        ("https://a@b", 3, "bad (bad_host)"),
        ("ftp://new.example/", 3, "is no scheme that goes through the proxy"),
    ],
)
def test_verdicts(capsys: pytest.CaptureFixture[str], target: str, code: int, text: str) -> None:
    assert main(["network", "check", target, "--profile", PROFILE]) == code
    assert text in capsys.readouterr().out


def test_json_profile_file_and_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile, rules = tmp_path / "p.json", tmp_path / "x.rules"
    profile.write_text(json.dumps({"network": {"unlisted": "deny", "reasons": {"*": "ask us"}}}))
    rules.write_text(
        'network_rule(host="10.0.0.1", protocol="https", decision="allow", port=443)\n'
    )
    words = ["network", "check", "--json", "--profile", f"@{profile}", "-r", str(rules)]
    assert main([*words, "10.0.0.1:443"]) == 0
    assert json.loads(capsys.readouterr().out)["dial"] == ["10.0.0.1"]
    assert main([*words, "10.0.0.1:80"]) == 1
    assert json.loads(capsys.readouterr().out)["message"] == "ask us"


@pytest.mark.parametrize("profile", ["{", "[]", '{"mode":"x"}', "@/nonexistent", '{"a_b": 1}'])
def test_a_profile_that_cannot_be_used(capsys: pytest.CaptureFixture[str], profile: str) -> None:
    assert main(["network", "check", "a.example:1", "--profile", profile]) == 4
    assert "handrail" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("profile", "hint"),
    [
        ('{"domans": {}}', "`domans`, which is not known; did you mean `domains`?"),
        ('{"network": {"allowLocalBindng": true}}', "did you mean `allowLocalBinding`?"),
        ('{"domains": {}, "xyzzy": 1}', "`xyzzy`, which is not known; there are addresses, "),
    ],
)
def test_a_member_that_would_not_count_is_refused(
    capsys: pytest.CaptureFixture[str], profile: str, hint: str
) -> None:
    assert main(["network", "check", "a.example:1", "--profile", profile]) == 4
    assert hint in capsys.readouterr().err
