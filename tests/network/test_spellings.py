"""Other spellings of closed addresses, bad hosts and wrong ports: none of them is allowed."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.cli.user import HANDRAIL

#: Closed although every public host is allowed.
CLOSED = [
    "127.0.0.1",
    "127.1",
    "0x7f.1",
    "0177.0.0.1",
    "2130706433",
    "0x7f000001",
    "017700000001",
    "127.0.0.1.",
    "0",
    "0.0.0.0",
    "localhost",
    "LOCALHOST.",
    "a.localhost",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[0:0:0:0:0:ffff:7f00:1]",
    "[::127.0.0.1]",
    "[::ffff:0:127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b::10.0.0.1]",
    "[64:ff9b:1::7f00:1]",
    "[2002:7f00:1::]",
    "[2002:a00:1::1]",
    "169.254.169.254",
    "0xa9fea9fe",
    "[fd00:ec2::254]",
    "[fe80::1]",
    "[fec0::1]",
    "100.64.0.1",
    "192.0.0.192",
    "168.63.129.16",
    "100.100.100.200",
    "224.0.0.1",
    "255.255.255.255",
    "[ff02::1]",
    "[2001:db8::1]",
    "[2001::1]",
    "[100::1]",
    "198.18.0.1",
    "[::ffff:55.66.77.88]",
    "0x37424d58",
]
#: No form of a host that is allowed, or of any.
BAD = [
    "ok.example%00.evil", "ok.example\0", "ok.example#", "ok.example@evil", "evil@ok.example",
    "ok.example/", "ok.example:81", "ok\u3002example", "\uff4fk.example", "-ok.example",
    "ok..example", "ok.example..", "%6fk.example", "ok.example ", "[ok.example]", "[127.0.0.1]",
    "[::1%25lo]", "[::1%lo]", "1.2.3.4.5", "256.1.1.1", "0x.example.0x", "a" * 64 + ".example",
]  # fmt: skip
#: One of the addresses that an allowed name leads to.
NAMED = [
    "127.0.0.1",
    "10.0.0.1",
    "::1",
    "::ffff:10.0.0.1",
    "169.254.169.254",
    "64:ff9b::a00:1",
    "fe80::1",
    "0.0.0.0",
    "2002:a00:1::",
    "55.66.77.88",
]
PUBLIC = "11.22.33.44"


def _case(host: str, port: int = 80, *more: str, **members: Any) -> dict[str, Any]:
    domains = members.pop("domains", {"ok.example": "allow"})
    return {
        "config": {"mode": "full", "domains": domains},
        "resolve": {"ok.example": [PUBLIC, *more], "a.b.ok.example": [PUBLIC], "new": [PUBLIC]},
        "request": {"protocol": "http", "host": host, "port": port, "method": "GET"},
        "own": ["55.66.77.88"],
        **members,
    }


def test_none_is_allowed() -> None:
    every, saved = {"*": "allow"}, {"approved": [["new", 80]], "denied": []}
    rule = 'network_rule(host="new", protocol="http", decision="allow", port=80)'
    denied = {**every, PUBLIC: "deny", "Ok.Example.": "deny"}
    cases = [
        *(_case(host, domains=every) for host in CLOSED),
        *(_case(host) for host in BAD),
        *(_case("ok.example", 80, address) for address in NAMED),
        *(_case(host, domains=denied) for host in ("OK.EXAMPLE", "ok.example.", "0x0b16212c")),
        _case(f"[::ffff:{PUBLIC}]", domains=denied),
        _case("ok.example", 8080, domains={"ok.example:80": "allow"}),
        _case("a.b.ok.example", domains={"*.ok.example:443": "allow"}),
        _case("a.b.ok.example", domains={"a*.ok.example": "allow"}),
        _case("a.b.ok.example", domains={"**.ok.example": "allow", "a*ok.example": "deny"}),
        _case("new", 8080, session=saved),
        _case("new", 8080, rules=[rule]),
    ]
    right = [_case("OK.Example."), _case("new", 80, session=saved), _case("new", 80, rules=[rule])]
    ran = subprocess.run(
        [*HANDRAIL, "network", "check", "--jsonl"],
        input="".join(json.dumps(case) + "\n" for case in cases + right),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    verdicts = [json.loads(line)["verdict"] for line in ran.stdout.splitlines()]
    wrong = [case for case, verdict in zip(cases, verdicts, strict=False) if verdict == "allow"]
    assert wrong == []
    assert verdicts[len(cases) :] == ["allow"] * len(right)
