"""The order of the tests, and that no other order gives more."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.network import decide
from handrail.network.config import ManagedNetwork
from handrail.network.decide import (
    CONNECT,
    HTTP,
    SOCKS,
    Kind,
    Memory,
    Policy,
    Target,
    Verdict,
    judge,
    judge_addresses,
)
from handrail.network.hosts import canonical
from handrail.network.saved_rules import SavedRule

OK = "11.22.33.44"


def verdict(
    config: ManagedNetwork,
    host: str,
    *found: str,
    port: int = 443,
    protocol: str = CONNECT,
    method: str | None = None,
    rules: tuple[SavedRule, ...] = (),
    memory: Memory | None = None,
    can_ask: bool = False,
    own: tuple[str, ...] = (),
) -> Verdict:
    policy = Policy(config, rules)
    target = Target(protocol, canonical(host), port, method)
    machine = frozenset(map(ip_address, own))
    memory = memory or Memory()
    said = judge(policy, memory, target, can_ask=can_ask, own=machine)
    if said.kind is not Kind.ALLOW:
        return said
    addresses = decide.known_addresses(target.host)
    if addresses is None:
        addresses = tuple(map(ip_address, found))
    return judge_addresses(policy, target, said, addresses, machine)


def said(one: Verdict) -> tuple[str, str, str]:
    return one.kind.value, one.reason, one.source


LISTED = ManagedNetwork(domains={"ok.example": "allow"})
ALL = ManagedNetwork(domains={"*": "allow"})


@pytest.mark.parametrize(
    ("config", "host", "found", "expected"),
    [
        (LISTED, "ok.example", [OK], ("allow", "allow", "baseline_policy")),
        (LISTED, "ok.example", [], ("unreachable", "dns_failed", "proxy_state")),
        (LISTED, "ok.example", [OK, "10.0.0.1"], ("deny", "not_allowed_local", "baseline_policy")),
        (LISTED, "no.example", [OK], ("deny", "not_allowed", "baseline_policy")),
        (ALL, OK, [], ("allow", "allow", "baseline_policy")),
        (ALL, "10.0.0.1", [], ("deny", "not_allowed_local", "baseline_policy")),
        (ALL, "64:ff9b::a00:1", [], ("deny", "not_allowed_local", "baseline_policy")),
        (ALL, "::7f00:1", [], ("deny", "not_allowed_local", "baseline_policy")),
        (ALL, "2002:7f00:1::", [], ("deny", "not_allowed_local", "baseline_policy")),
        (ALL, "localhost", [], ("deny", "not_allowed_local", "baseline_policy")),
        (ALL, "a.localhost", [], ("deny", "not_allowed_local", "baseline_policy")),
        (
            ManagedNetwork(domains={"*": "allow"}, allow_local_binding=True),
            "169.254.169.254",
            [],
            ("deny", "not_allowed_local", "baseline_policy"),
        ),
        (
            ManagedNetwork(domains={"*": "allow", OK: "deny"}),
            "64:ff9b::b16:212c",
            [],
            ("deny", "denied", "baseline_policy"),
        ),
        (
            ManagedNetwork(domains={"*": "allow"}, addresses={"11.22.0.0/16": "deny"}),
            "x.example",
            ["2600:11::44", "64:ff9b::b16:212c"],
            ("deny", "denied", "baseline_policy"),
        ),
        (
            ManagedNetwork(addresses={"10.0.0.0/8": "allow"}),
            "10.1.2.3",
            [],
            ("allow", "allow", "baseline_policy"),
        ),
        (
            ManagedNetwork(addresses={"10.0.0.0/8": "allow", "10.1.0.0/16": "deny"}),
            "10.1.2.3",
            [],
            ("deny", "denied", "baseline_policy"),
        ),
        (
            ManagedNetwork(addresses={"169.254.169.254/32": "allow"}),
            "169.254.169.254",
            [],
            ("allow", "allow", "baseline_policy"),
        ),
        (
            ManagedNetwork(domains={"x.example": "allow", "10.9.8.7:80": "allow"}),
            "x.example",
            ["10.9.8.7"],
            ("deny", "not_allowed_local", "baseline_policy"),
        ),
        (
            ManagedNetwork(domains={"**.localhost": "allow"}),
            "localhost",
            [],
            ("deny", "not_allowed_local", "baseline_policy"),
        ),
        (
            ManagedNetwork(domains={"**.ok.example": "allow"}),
            "ok.example",
            [OK],
            ("allow", "allow", "baseline_policy"),
        ),
        (
            ManagedNetwork(domains={"127.0.0.1": "ask"}),
            "127.0.0.1",
            [],
            ("deny", "not_allowed_local", "baseline_policy"),
        ),
    ],
)
def test_decisions(
    config: ManagedNetwork, host: str, found: list[str], expected: tuple[str, str, str]
) -> None:
    assert said(verdict(config, host, *found, can_ask=host == "127.0.0.1")) == expected


def test_an_address_of_this_machine_is_opened_like_loopback() -> None:
    assert verdict(ALL, OK, own=(OK,)).reason == "not_allowed_local"
    assert verdict(LISTED, "ok.example", OK, own=(OK,)).reason == "not_allowed_local"
    opened = ManagedNetwork(domains={"*": "allow"}, allow_local_binding=True)
    assert verdict(opened, OK, own=(OK,)).kind is Kind.ALLOW


def test_a_remembered_yes_opens_no_local_address() -> None:
    memory = Memory(approved={("loopy.example", 443)})
    found = verdict(LISTED, "loopy.example", "127.0.0.1", memory=memory)
    assert said(found) == ("deny", "not_allowed_local", "baseline_policy")


def test_a_remembered_no_comes_before_the_lists() -> None:
    memory = Memory(denied={("ok.example", 443)}, approved={("ok.example", 443)})
    assert said(verdict(LISTED, "ok.example", OK, memory=memory))[1:] == ("not_allowed", "decider")


def test_a_remembered_yes_answers_an_entry_that_asks() -> None:
    asks = ManagedNetwork(domains={"**.ok.example": "allow", "api.ok.example": "ask"})
    memory = Memory(approved={("api.ok.example", 443)})
    assert verdict(asks, "api.ok.example", OK, can_ask=True).kind is Kind.ASK
    assert said(verdict(asks, "api.ok.example", OK)) == ("deny", "not_allowed", "baseline_policy")
    yes = verdict(asks, "api.ok.example", OK, memory=memory, can_ask=True)
    assert said(yes) == ("allow", "not_allowed", "decider")
    assert yes.override


def test_saved_rules() -> None:
    allow, prompt = SavedRule("h.example", 443, "allow"), SavedRule("h.example", None, "prompt")
    forbidden = SavedRule("h.example", 443, "forbidden")
    none = ManagedNetwork()
    assert verdict(none, "h.example", OK, rules=(allow,)).kind is Kind.ALLOW
    assert verdict(none, "h.example", OK, rules=(allow,), port=80).kind is Kind.DENY
    assert verdict(none, "h.example", OK, rules=(allow, prompt), can_ask=True).kind is Kind.ASK
    assert verdict(none, "h.example", OK, rules=(prompt, allow), can_ask=True).kind is Kind.ALLOW
    assert verdict(none, "h.example", OK, rules=(allow, forbidden)).reason == "denied"
    closed = ManagedNetwork(domains={"*.example": "deny"})
    assert verdict(closed, "h.example", OK, rules=(allow,)).reason == "denied"


def test_unlisted_hosts_may_be_denied_without_a_question() -> None:
    closed = ManagedNetwork(domains={"a.example": "ask"}, unlisted="deny")
    assert verdict(closed, "b.example", OK, can_ask=True).kind is Kind.DENY
    assert verdict(closed, "a.example", OK, can_ask=True).kind is Kind.ASK


@pytest.mark.parametrize(
    ("protocol", "method", "port", "reason"),
    [
        (HTTP, "GET", 80, "allow"),
        (HTTP, "OPTIONS", 80, "allow"),
        (HTTP, "get", 80, "method_not_allowed"),
        (HTTP, "POST", 443, "method_not_allowed"),
        (CONNECT, "CONNECT", 80, "mitm_required"),
        (SOCKS, None, 443, "mitm_required"),
        (SOCKS, None, 80, "method_not_allowed"),
    ],
)
def test_limited_mode(protocol: str, method: str | None, port: int, reason: str) -> None:
    limited = ManagedNetwork(mode="limited", domains={"ok.example": "allow"})
    found = verdict(limited, "ok.example", OK, protocol=protocol, method=method, port=port)
    assert found.reason == reason
    assert found.source == ("baseline_policy" if reason == "allow" else "mode_guard")


def test_the_configuration_may_say_why() -> None:
    told = ManagedNetwork(reasons={"*.example": "use the mirror"})
    assert verdict(told, "a.example", OK).message == "use the mirror"
    assert verdict(told, "a.other", OK).message is None


def test_loopback_leads_inside_unless_it_is_listed() -> None:
    def inside(config: ManagedNetwork, host: str) -> bool:
        return decide.leads_inside(Policy(config), Target(HTTP, canonical(host), 8080, "GET"))

    assert inside(LISTED, "127.0.0.1")
    assert inside(ALL, "localhost")
    assert inside(ManagedNetwork(allow_local_binding=True), "127.0.0.1")
    assert not inside(ManagedNetwork(domains={"127.0.0.1": "allow"}), "127.1")
    assert not inside(ManagedNetwork(domains={"127.0.0.1": "deny"}), "127.0.0.1")
    assert not inside(LISTED, "10.0.0.1")
    assert not inside(LISTED, "ok.example")


_HOSTS = st.sampled_from(
    ["ok.example", "a.ok.example", "127.0.0.1", "localhost", OK, "10.9.8.7", "169.254.169.254"]
)
_DOMAINS = st.dictionaries(
    st.sampled_from(
        ["*", "ok.example", "*.ok.example", "**.ok.example", "127.0.0.1", OK, "*:443", "10.9.8.7"]
    ),
    st.sampled_from(["allow", "ask", "none"]),
)
_FOUND = st.lists(st.sampled_from([OK, "127.0.0.1", "10.9.8.7", "2600:11::44"]), max_size=3)


@given(_HOSTS, _DOMAINS, _FOUND, st.booleans())
def test_a_denial_closes_whatever_else_is_listed(
    host: str, domains: dict[str, str], found: list[str], local: bool
) -> None:
    denied = ManagedNetwork(domains={**domains, host: "deny"}, allow_local_binding=local)
    memory = Memory(approved={(canonical(host).text, 443)})
    assert verdict(denied, host, *found, memory=memory, can_ask=True).reason == "denied"


@given(_HOSTS, _DOMAINS, _FOUND)
def test_what_is_dialled_was_public_or_named(
    host: str, domains: dict[str, str], found: list[str]
) -> None:
    config = ManagedNetwork(domains=domains)
    one = verdict(config, host, *found, can_ask=True)
    for address in one.dial:
        listed = domains.get(str(address)) == "allow" or domains.get(host) == "allow"
        assert not address.is_loopback or listed
        assert str(address) != "10.9.8.7" or domains.get("10.9.8.7") == "allow"


@given(_HOSTS, _DOMAINS, _FOUND)
def test_fewer_entries_never_allow_more(
    host: str, domains: dict[str, str], found: list[str]
) -> None:
    allows = {text: value for text, value in domains.items() if value == "allow"}
    whole = verdict(ManagedNetwork(domains=allows), host, *found)
    for left_out in allows:
        fewer = {text: value for text, value in allows.items() if text != left_out}
        part = verdict(ManagedNetwork(domains=fewer), host, *found)
        assert part.kind is not Kind.ALLOW or whole.kind is Kind.ALLOW
