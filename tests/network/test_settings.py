"""What a caller says of the network of its commands."""

from __future__ import annotations

from typing import Any

import pytest

from handrail import Managed, Profile
from handrail.errors import UsageError
from handrail.network import patterns, settings
from handrail.network.presets import presets
from handrail.workspace.profile import find_profile, with_network


def test_lists_become_one_configuration() -> None:
    managed = Managed(
        allow=["ok.example", "both.example"],
        ask=["**.ok.example:22"],
        deny=["both.example"],
        presets=["npm"],
        unlisted="deny",
        mode="limited",
        addresses={"10.1.0.0/16": "allow"},
        reasons={"both.example": "Use ok.example."},
    )
    config = managed.config()
    assert config.domains["ok.example"] == "allow"
    assert config.domains["**.ok.example:22"] == "ask"
    assert config.domains["both.example"] == "deny"
    assert {config.domains[host] for host in presets()["npm"]} == {"allow"}
    assert (config.unlisted, config.mode) == ("deny", "limited")
    assert settings.from_json(managed.to_json()) == managed


def test_every_preset_names_hosts_with_a_port() -> None:
    assert {"pypi", "npm", "debian", "crates", "github"} <= set(presets())
    for hosts in presets().values():
        assert hosts
        for host in hosts:
            found = patterns.parse(host)
            assert found.port in (80, 443)
            assert "*" not in host
    assert Managed().config().domains == {}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"allow": "ok.example"}, "is a list"),
        ({"allow": [1]}, "holds text"),
        ({"deny": ["*"]}, "to deny everything"),
        ({"allow": ["https://ok.example"]}, "https://ok.example"),
        ({"presets": ["none"]}, "there is no preset 'none'"),
        ({"unlisted": "allow"}, "`ask` or `deny`"),
        ({"on_network_denial": "stop"}, "'report' or 'end'"),
        ({"addresses": {"10.0.0.0/33": "allow"}}, "10.0.0.0/33"),
    ],
)
def test_what_cannot_be_used_is_refused_where_it_is_written(
    given: dict[str, Any], text: str
) -> None:
    with pytest.raises(UsageError, match="network"):
        Managed(**given)
    with pytest.raises(UsageError) as caught:
        Managed(**given)
    assert text in str(caught.value)


def test_words_of_a_profile() -> None:
    managed = Managed(allow=["ok.example"])
    assert Profile().online is Profile(network="off").online is False
    assert Profile(network=True).online is Profile(network="open").online is True
    assert Profile(network=managed).managed is managed
    assert not Profile(network=managed).online
    with pytest.raises(UsageError, match="'off', 'open' or Managed"):
        Profile(network="on")  # type: ignore[arg-type]


def test_a_network_without_a_sandbox_is_refused() -> None:
    free = find_profile("off")
    assert with_network(free, "open") is None
    for network in ("off", Managed()):
        with pytest.raises(UsageError, match="needs a sandbox"):
            with_network(free, network)  # type: ignore[arg-type]
    changed = with_network(find_profile("read-only"), "open")
    assert changed is not None
    assert changed.online
    assert changed.write == ()
