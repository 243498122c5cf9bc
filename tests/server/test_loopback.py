"""``loopback`` of a start and ``loopback/*`` on the wire: what is refused, and what is carried."""

from __future__ import annotations

import base64
import threading
from pathlib import Path
from typing import Any

import pytest

from handrail.sandbox.loopback import LoopbackNetwork
from handrail.server.methods import loopback
from tests.support.clients import MemoryClient
from tests.support.servers import serving
from tests.system.permissions import sandbox
from tests.workspace.inner_server import echo


def start(client: MemoryClient, ws: Path, **members: Any) -> dict[str, Any]:
    return client.start_params("p", *echo("127.0.0.1", 8123), cwd=ws.as_uri(), **members)


def chunk(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def test_what_is_refused(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback, "MOST", 1)
    async with serving() as served:
        client = await served.client()
        for members, text in (
            ({"loopback": "x"}, "needs a `sandbox`"),
            ({"loopback": "", "sandbox": sandbox(ws)}, "1 to 4096 characters"),
            ({"loopback": "x" * 4097, "sandbox": sandbox(ws)}, "1 to 4096 characters"),
        ):
            refused = await client.refused("process/start", start(client, ws, **members))
            assert refused[0] == -32602
            assert text in refused[1]
        there = {"loopback": "x", "port": 8123, "connectionId": "c"}
        assert (await client.refused("loopback/connect", there))[0] == -32600
        await client.call("process/start", start(client, ws, loopback="x", sandbox=sandbox(ws)))
        await client.until_output("p", b"ready")
        for odd in (
            {**there, "port": 0},
            {**there, "port": 65_536},
            {**there, "connectionId": ""},
            {**there, "port": 8124},
            {**there, "loopback": "other"},
        ):
            assert (await client.refused("loopback/connect", odd))[0] in (-32600, -32602)
        await client.call("loopback/connect", there)
        again = await client.refused("loopback/connect", there)
        assert "already exists" in again[1]
        more = await client.refused("loopback/connect", {**there, "connectionId": "d"})
        assert "close one first" in more[1]
        for method in ("loopback/read", "loopback/write"):
            unknown = await client.refused(method, {"connectionId": "nothing"})
            assert "no connection" in unknown[1]
        bad = {"connectionId": "c", "chunk": "?"}
        assert (await client.refused("loopback/write", bad))[0] == -32602
        for _ in range(2):
            await client.call("loopback/close", {"connectionId": "c"})
        assert "no connection" in (await client.refused("loopback/read", {"connectionId": "c"}))[1]


async def test_a_network_is_made_beside_the_loop(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program is started and waited for: no other client has to wait with it."""
    make = LoopbackNetwork.make
    makers: list[threading.Thread] = []

    def noted() -> LoopbackNetwork:
        makers.append(threading.current_thread())
        return make()

    monkeypatch.setattr(LoopbackNetwork, "make", noted)
    async with serving() as served:
        client = await served.client()
        await client.call("process/start", start(client, ws, loopback="x", sandbox=sandbox(ws)))
        await client.until_output("p", b"ready")
    assert len(makers) == 1
    assert makers[0] is not threading.main_thread()


async def test_bytes_both_ways(ws: Path) -> None:
    """A read that waits keeps no other request out, and ends with its connection."""
    async with serving() as served:
        client = await served.client()
        await client.call("process/start", start(client, ws, loopback="x", sandbox=sandbox(ws)))
        await client.until_output("p", b"ready")
        for name in ("a", "b"):
            there = {"loopback": "x", "port": 8123, "connectionId": name}
            await client.call("loopback/connect", there)
            found = await client.call("loopback/read", {"connectionId": name})
            assert found == {"chunk": chunk(b"hello "), "end": False}
        waiting = client.post("loopback/read", {"connectionId": "a"})
        sent = {"connectionId": "b", "chunk": chunk(b"x"), "end": True}
        await client.call("loopback/write", sent)
        said = [await client.call("loopback/read", {"connectionId": "b"}) for _ in range(2)]
        assert said == [{"chunk": chunk(b"x"), "end": False}, {"chunk": "", "end": True}]
        await client.call("loopback/close", {"connectionId": "a"})
        assert await waiting == {"chunk": "", "end": True}
