"""What a process was refused, gathered from records."""

from __future__ import annotations

from handrail.network.managed.denials import MOST, NetworkDenials
from handrail.network.records import Record
from handrail.sandbox.denial import from_network


def record(host: str, decision: str = "deny", **members: object) -> Record:
    values: dict[str, object] = {
        "kind": "decision",
        "process": "1",
        "connection": 1,
        "time": 0.0,
        "decision": decision,
        "source": "baseline_policy",
        "reason": "not_allowed",
        "protocol": "https_connect",
        "op": "connect",
        "host": host,
        "port": 443,
    }
    return Record(**{**values, **members})  # type: ignore[arg-type]


def test_a_host_is_listed_once_and_counted() -> None:
    denials = NetworkDenials()
    for _ in range(3):
        denials.note(record("a.example"))
    denials.note(record("b.example", "allow"))
    (found,) = denials.found
    assert (found.place, found.count, found.source) == ("a.example:443", 3, "proxy")
    assert from_network(found).members() == {
        "kind": "network",
        "op": "connect",
        "path": "a.example:443",
        "source": "proxy",
        "certain": True,
        "host": "a.example",
        "port": 443,
        "protocol": "https_connect",
        "reason": "not_allowed",
        "count": 3,
    }


def test_a_name_that_was_looked_up_has_no_port() -> None:
    denials = NetworkDenials()
    denials.note(record("name.example", op="resolve", protocol="dns", port=0))
    told = from_network(denials.found[0]).members()
    assert (told["op"], told["host"], told["source"]) == ("resolve", "name.example", "resolver")
    assert "port" not in told


def test_beyond_the_limit_hosts_are_only_counted() -> None:
    denials = NetworkDenials()
    for number in range(MOST + 7):
        denials.note(record(f"h{number}.example"))
    assert len(denials.found) == MOST + 1
    assert from_network(denials.found[-1]).members()["omitted"] == 7
