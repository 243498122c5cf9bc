"""The pure parts of a fleet: quotas, members, settings, metrics."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from handrail.errors import ExecutorTransportFailed, UsageError
from handrail.fleet import (
    FleetError,
    NoCapacity,
    NodeLost,
    NodeUnreachable,
    QuotaExceeded,
    TemplateError,
    VersionMismatch,
    WorkspaceGone,
    settings,
)
from handrail.fleet.metrics import labelled
from handrail.fleet.shares import membership, tokens
from handrail.fleet.shares.membership import Membership, Share
from handrail.fleet.shares.quota_ledger import CHUNK, QuotaLedger


def counts(workspaces: float, cpus: float = 0.0) -> dict[str, float]:
    return {"workspaces": workspaces, "cpus": cpus, "memory": 0.0}


def test_a_quota_is_given_in_chunks_while_there_is_plenty() -> None:
    ledger = QuotaLedger({"t": {"workspaces": 1000.0}})
    granted, refused = ledger.grant("a", "oa", "t", counts(1))
    assert (granted, refused) == (counts(1 + CHUNK), None)
    granted, _ = ledger.grant("b", "ob", "t", counts(900))
    assert granted == counts(900)  # exactly, near the limit
    assert ledger.grant("c", "oc", "t", counts(90))[1] == ("workspaces", 1000.0, 917.0)
    ledger.gone("b")
    assert ledger.grant("c", "oc", "t", counts(90))[1] is None


def test_what_owners_without_a_driver_hold_counts_too() -> None:
    ledger = QuotaLedger({"t": {"workspaces": 3.0, "cpus": 10.0}})
    assert ledger.grant("a", "oa", "t", counts(2, 2))[0] == counts(2, 2)
    ledger.told({"t": {"oa": counts(2, 2), "dead": counts(1, 1)}})
    assert ledger.grant("b", "ob", "t", counts(1, 1))[1] == ("workspaces", 3.0, 3.0)
    assert ledger.grant("a", "oa", "t", counts(1, 20))[1] == ("cpus", 10.0, 3.0)
    assert ledger.grant("x", "ox", "other", counts(99))[1] is None
    # One more than it was granted: it has adopted it.
    ledger.told({"t": {"oa": counts(3, 3)}})
    assert ledger.grant("b", "ob", "t", counts(1, 1))[1] == ("workspaces", 3.0, 3.0)
    ledger.gone("a")
    ledger.told({"t": {"oa": counts(2, 2)}})
    assert ledger.grant("b", "ob", "t", counts(1, 1))[1] is None


def test_drivers_get_what_changed_and_all_of_another_registrar() -> None:
    members = Membership()
    one, two = Share(id="1"), Share(id="2")
    assert members.changed(one)
    assert members.changed(two)
    whole, found = members.since("", -1)
    assert (whole, [m["id"] for m in found]) == (True, ["1", "2"])
    step = members.step
    assert not members.changed(one, state="pending")
    assert members.changed(one, state="ready", url="ws://x")
    whole, found = members.since(members.epoch, step)
    assert (whole, [(m["id"], m["state"]) for m in found]) == (False, [("1", "ready")])
    members.changed(two, state="lost")
    assert [share.id for share in members.living()] == ["1"]


def test_the_head_is_a_member_only_if_it_is_alone() -> None:
    head = {"NodeID": "h", "Alive": True, "Resources": {"node:__internal_head__": 1.0}}
    other: dict[str, Any] = {
        "NodeID": "o",
        "Alive": True,
        "Resources": {},
        "Labels": {"a": "b", "c": "d"},
    }
    dead = {**other, "NodeID": "d", "Alive": False}
    assert list(membership.eligible([head, dead], {})) == ["h"]
    assert list(membership.eligible([head, other, dead], {"a": "b"})) == ["o"]
    assert list(membership.eligible([head, other], {"a": "x"})) == []


def test_a_new_registrar_finds_the_machines_of_its_shares() -> None:
    def group(name: str, state: str) -> dict[str, Any]:
        return {"name": name, "state": state, "bundles_to_node_id": {0: "m"}}

    names = ("f/a", "CREATED"), ("f/b", "PENDING"), ("f/c", "REMOVED"), ("ff/d", "CREATED")
    found = membership.of_groups([group(*one) for one in names], "f/")
    assert [(share.id, share.engine_id, state) for share, state in found] == [
        ("a", "m", "CREATED"),
        ("b", "", "PENDING"),
    ]


def test_an_empty_share_beyond_the_least_is_given_back() -> None:
    empty, used = Share(id="e", empty_since=0.0), Share(id="u")
    assert membership.to_give_back([empty, used], 1, 1.0) is empty
    assert membership.to_give_back([empty, used], 2, 1.0) is None
    assert membership.to_give_back([empty, used], 1, -1.0) is None
    assert membership.to_give_back([used, used], 1, 1.0) is None


def test_a_key_opens_one_share_alone() -> None:
    secret = tokens.new_secret()
    assert tokens.share_key(secret, "a") == tokens.share_key(secret, "a")
    assert tokens.share_key(secret, "a") != tokens.share_key(secret, "b")
    assert secret not in tokens.sign(tokens.share_key(secret, "a"), "a", "tenant", 60)


def test_errors_travel_and_those_of_nodes_are_transport_failures() -> None:
    errors: list[FleetError] = [
        NoCapacity("m", reason="cpus", refusals={"n": "cpus"}),
        QuotaExceeded("t", "cpus", 2.0, 1.0),
        TemplateError("m", "corrupt"),
        VersionMismatch("n", "1.0", "2.0"),
        NodeLost("n", "why"),
        NodeUnreachable("n"),
        WorkspaceGone("m"),
    ]
    for error in errors:
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
    for error in errors[-3:-1]:
        assert isinstance(error, ExecutorTransportFailed)
        assert type(error.again("before: ")) is type(error)


def test_arguments_of_a_fleet_are_checked() -> None:
    assert settings.parse_shares("nodes") is None
    assert settings.parse_shares(3) == (3, 3)
    assert settings.parse_share({"cpus": 1.5, "memory": "1KiB"}) == (1500, 1024)
    assert settings.parse_quotas({"t": {"memory": "1PiB"}}) == {"t": {"memory": float(2**50)}}
    for wrong in (
        lambda: settings.parse_shares((3, 2)),
        lambda: settings.parse_share({"disk": 1}),
        lambda: settings.parse_quotas({"t": {"disks": 1}}),
        lambda: settings.check_name("Big"),
        lambda: settings.size(-1, "memory"),
        lambda: settings.millis(-1),
    ):
        with pytest.raises(UsageError):
            wrong()


def test_a_sample_gets_the_label_of_its_node() -> None:
    assert labelled("a_total 1", "n") == 'a_total{node="n"} 1'
    assert labelled('a{b="c"} 1', "n") == 'a{node="n",b="c"} 1'
