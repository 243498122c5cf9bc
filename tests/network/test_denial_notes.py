"""Sentences for a model about refused hosts."""

from __future__ import annotations

from typing import Any

from handrail.network.config import ManagedNetwork
from handrail.network.denial_notes import sentences

PLAIN = ManagedNetwork()


def denial(host: str, port: int | None = 443, **members: Any) -> dict[str, Any]:
    place = host if port is None else f"{host}:{port}"
    found = {"kind": "network", "source": "proxy", "reason": "not_allowed", "path": place}
    return {**found, "host": host, "port": port, **members}


def test_each_host_and_port_once() -> None:
    found = [denial("a.example"), denial("a.example"), denial("a.example", 80)]
    why = "domain is not on the allowlist for the current sandbox mode."
    assert sentences([*found, {"kind": "file", "path": "/x"}], PLAIN, {}) == [
        f'Network access to "a.example:443" was blocked: {why}',
        f'Network access to "a.example:80" was blocked: {why}',
    ]


def test_why_it_was_blocked() -> None:
    config = ManagedNetwork(reasons={"mirror.example": "Use ok.example."})
    found = [
        denial("bad.example", reason="denied"),
        denial("no.example"),
        denial("said.example", reason="ask the owner"),
        denial("mirror.example"),
    ]
    refused = {("no.example", 443): "", ("said.example", 443): "ask the owner"}
    assert [line.partition("blocked: ")[2] for line in sentences(found, config, refused)] == [
        "domain is explicitly denied by policy and cannot be approved from this prompt.",
        "not approved.",
        "not approved: ask the owner.",
        "Use ok.example.",
    ]


def test_five_then_how_many_more() -> None:
    found = [denial(f"h{number}.example") for number in range(7)]
    said = sentences([*found, {"kind": "network", "source": "proxy", "omitted": 3}], PLAIN, {})
    assert len(said) == 6
    assert said[-1] == ".. and 5 more"


def test_programs_that_do_not_use_the_proxy() -> None:
    found = [
        denial("both.example", None, source="resolver"),
        denial("name.example", None, source="resolver"),
        denial("11.22.33.44", 80, source="notify"),
        denial("both.example"),
    ]
    said = sentences(found, PLAIN, {})
    assert len(said) == 3
    assert all("HTTPS_PROXY" in line for line in said[1:])
    assert '"name.example"' in said[1]
    assert '"11.22.33.44:80"' in said[2]


def test_hosts_that_are_not_there_were_not_blocked() -> None:
    assert sentences([denial("nx.example", reason="dns_failed")], PLAIN, {}) == []
