"""Placing workspaces: what a refusal means, and what is refused without waiting."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from handrail.errors import RpcError
from handrail.fleet import FleetError, FleetUnknown, NoCapacity, NodeUnreachable
from handrail.fleet.engine import Member
from handrail.fleet.node import Node
from handrail.fleet.placing import Placing, Wish, _refusal
from handrail.fleet.settings import Amounts
from handrail.server.workspaces import refusals
from tests.support.eventually import LIMIT

WISH = Wish(amounts=Amounts(2000, 64), tenant="t", lease=1.0)


def engine(**how: Any) -> Any:
    """An engine whose machines may grow in number, as Ray's may."""
    known: dict[str, Any] = {
        "name": "lab",
        "fixed": False,
        "stopping": False,
        "reserve": AsyncMock(),
        "may_grow": Mock(return_value=False),
        "too_small": Mock(return_value=""),
    }
    return Mock(**{**known, **how})


def pending(**amounts: int) -> Node:
    """A node that Ray has not placed, or whose server has not answered."""
    member = Member(id="n", state="pending", **amounts)
    return Node(member, Mock(), Mock(), lambda: None)


async def refused(engine: Any, *nodes: Node) -> BaseException:
    placing = Placing({node.id: node for node in nodes}, engine, Mock(), Mock(), Mock())
    with pytest.raises(FleetError) as told:
        async with asyncio.timeout(LIMIT):
            await placing.place(WISH, 10 * LIMIT)
    assert engine.give_back.called
    return told.value


@pytest.mark.parametrize(
    ("error", "meant"),
    [
        (refusals.stops(), NodeUnreachable),
        (refusals.gone("w"), NodeUnreachable),
        (refusals.not_yours("w"), FleetError),
        (RpcError(-32603, "no"), FleetError),
    ],
)
def test_what_a_refusal_means(error: RpcError, meant: type[FleetError]) -> None:
    """A server that hands over is not the end: the workspace is made elsewhere, or later."""
    assert type(_refusal(error, Mock(id="n"))) is meant


async def test_a_fleet_that_ends_is_not_waited_for() -> None:
    assert isinstance(await refused(engine(stopping=True), pending()), FleetUnknown)


@pytest.mark.parametrize(
    ("amounts", "what"),
    [
        ({"cpu_millis": 1000, "memory_bytes": 64}, "cpus"),
        ({"cpu_millis": 1000, "memory_bytes": 1}, "cpus,memory"),
    ],
)
async def test_what_a_pending_node_cannot_hold_is_refused_at_once(
    amounts: dict[str, int], what: str
) -> None:
    error = await refused(engine(), pending(**amounts))
    assert isinstance(error, NoCapacity)
    assert (error.reason, error.refusals) == (what, {"n": what})


async def test_what_no_share_can_hold_is_refused_while_there_is_none() -> None:
    error = await refused(engine(too_small=Mock(return_value="cpus")))
    assert isinstance(error, NoCapacity)
    assert error.reason == "cpus"
