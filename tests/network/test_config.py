"""Configurations are read strictly, in the names of the wire and in ours."""

from __future__ import annotations

from typing import Any

import pytest

from handrail.network.config import (
    WIRE_MEMBERS,
    ConfigError,
    ManagedNetwork,
    from_json,
    from_profile,
    from_wire,
)

WIRE: dict[str, Any] = {
    "enabled": True,
    "mode": "full",
    "domains": {"ok.example": "allow", "x.example": "none"},
    "allowLocalBinding": False,
    "allowUpstreamProxy": True,
    "enableSocks5": True,
    "enableSocks5Udp": False,
    "unixSockets": None,
    "dangerouslyAllowAllUnixSockets": False,
}


def test_the_wire() -> None:
    found = from_wire({**WIRE, "unknown": 1})
    assert found.domains == WIRE["domains"]
    assert found.allow_upstream_proxy
    assert from_wire({**WIRE, "domains": None}).domains == {}


@pytest.mark.parametrize("member", WIRE_MEMBERS)
def test_all_members_of_the_wire_are_required(member: str) -> None:
    given = {name: value for name, value in WIRE.items() if name != member}
    with pytest.raises(ConfigError, match=f"^missing field `{member}`$"):
        from_wire(given)


@pytest.mark.parametrize(
    "change",
    [
        {"enabled": False},
        {"enabled": 1},
        {"mode": "read"},
        {"mode": None},
        {"domains": []},
        {"domains": {"ok.example": "ask"}},
        {"domains": {"ok.example": "maybe"}},
        {"domains": {"ok.example": None}},
        {"domains": {"*": "deny"}},
        {"domains": {"": "allow"}},
        {"domains": {f"h{number}.example": "allow" for number in range(4097)}},
        {"allowLocalBinding": "yes"},
        {"unixSockets": {"run/x": "allow"}},
        {"unixSockets": {"/run/x": "maybe"}},
        {"dangerouslyAllowAllUnixSockets": None},
    ],
)
def test_what_the_wire_may_not_say(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        from_wire({**WIRE, **change})


def test_a_disabled_proxy_has_the_sentence_of_the_peer() -> None:
    with pytest.raises(ConfigError, match="launch requires an enabled proxy"):
        from_wire({**WIRE, "enabled": False})


def test_a_profile_goes_there_and_back() -> None:
    found = from_profile(
        {
            "domains": {"ok.example": "ask"},
            "addresses": {"10.0.0.0/8": "allow", "fd00::/8": "deny"},
            "reasons": {"*.example": "use the mirror"},
            "unlisted": "deny",
        }
    )
    assert from_json(found.to_json()) == found
    assert from_json(ManagedNetwork().to_json()) == ManagedNetwork()


@pytest.mark.parametrize(
    "profile",
    [
        {"unknown": 1},
        {"addresses": {"10.0.0.1/8": "allow"}},
        {"addresses": {"ok.example": "allow"}},
        {"addresses": {"10.0.0.0/8": "ask"}},
        {"reasons": {"*.example": ""}},
        {"reasons": {"*.example": "a\nb"}},
        {"reasons": {"*.example": "a" * 401}},
        {"reasons": {"http://x": "a"}},
        {"unlisted": "allow"},
        {"domains": {"*": "deny"}},
    ],
)
def test_what_a_profile_may_not_say(profile: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        from_profile(profile)
