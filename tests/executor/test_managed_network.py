"""A managed network near and far: the same request, the same questions, the same denials."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from handrail.errors import ExecutorSpawnFailed
from handrail.executor.base import Executor, SpawnRequest
from handrail.network.config import ManagedNetwork
from handrail.network.managed.start import NetworkAnswer, NetworkQuestion, NetworkRequest
from handrail.sandbox.profile import Intent, workspace_write
from tests.executor.places import ENV, collect, local, websocket
from tests.support.coroutines import run

#: Asks the proxy for each address that is named, and prints its answers.
ASK = """
import os, sys, urllib.parse, urllib.request
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=20).read().decode(), flush=True)
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode(), flush=True)
"""

Kind = Callable[[Path], AbstractAsyncContextManager[Executor]]


@pytest.fixture(params=[local, websocket], ids=["near", "far"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def request(ws: Path, network: NetworkRequest, *urls: str, sandboxed: bool = True) -> SpawnRequest:
    intent: Intent | None = workspace_write((str(ws).encode(),)) if sandboxed else None
    words = (sys.executable, "-I", "-c", ASK, *urls)
    return SpawnRequest("p", words, str(ws), ENV, sandbox=intent, network=network)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nORIGIN")
    await writer.drain()
    writer.close()


@pytest.mark.parametrize("sandboxed", [True, False], ids=["sandboxed", "without sandbox"])
def test_allowed_and_denied(ws: Path, tmp_path: Path, kind: Kind, sandboxed: bool) -> None:
    async def main() -> None:
        origin = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = origin.sockets[0].getsockname()[1]
        network = NetworkRequest(
            ManagedNetwork(
                domains={f"127.0.0.1:{port}": "allow", "bad.example": "deny"},
                reasons={"bad.example": "Use the mirror."},
            )
        )
        urls = (f"http://127.0.0.1:{port}/", "http://bad.example/")
        async with origin, kind(tmp_path) as executor:
            assert executor.features.network
            session = await executor.spawn(request(ws, network, *urls, sandboxed=sandboxed))
            out, _ = await collect(session)
            await session.wait_closed()
            found = (await session.denied()).evidence
        assert b"ORIGIN" in out
        assert b"Use the mirror." in out
        (denial,) = found
        assert (denial["host"], denial["port"], denial["reason"]) == ("bad.example", 80, "denied")

    run(main())


def test_the_caller_is_asked(ws: Path, tmp_path: Path, kind: Kind) -> None:
    asked: list[NetworkQuestion] = []

    async def ask(question: NetworkQuestion) -> NetworkAnswer:
        asked.append(question)
        if question.port == 9:
            raise RuntimeError("no answer is no")
        return NetworkAnswer(allow=True, lasts="process")

    async def main() -> None:
        origin = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = origin.sockets[0].getsockname()[1]
        # Local addresses are exempt from the proxy by the variables, but not for this name.
        config = ManagedNetwork(allow_local_binding=True, domains={"ok.example": "allow"})
        network = NetworkRequest(config, ask)
        urls = (f"http://127.0.0.2:{port}/", f"http://127.0.0.2:{port}/", "http://127.0.0.2:9/")
        async with origin, kind(tmp_path) as executor:
            session = await executor.spawn(request(ws, network, *urls))
            out, _ = await collect(session)
            await session.wait_closed()
        # A yes for the process is not asked for again; its address is not where we listen.
        assert [(q.host, q.port) for q in asked] == [("127.0.0.2", port), ("127.0.0.2", 9)]
        assert b'"reason":"not_allowed"' in out

    run(main())


def test_a_server_without_it_is_not_sent_one(ws: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with websocket(tmp_path) as executor:
            executor.client.carries_networks = False  # type: ignore[attr-defined]
            assert not executor.features.network
            with pytest.raises(ExecutorSpawnFailed, match="offers no managed network"):
                await executor.spawn(request(ws, NetworkRequest(ManagedNetwork())))
            plain = replace(request(ws, NetworkRequest(ManagedNetwork())), network=None)
            await collect(await executor.spawn(plain))

    run(main())


def test_what_only_our_servers_know_travels_beside_the_rest() -> None:
    config = ManagedNetwork(
        domains={"a.example": "allow", "b.example": "ask"},
        addresses={"10.0.0.0/8": "allow"},
        unlisted="deny",
    )
    wire = NetworkRequest(config, approved=(("c.example", 443),)).to_wire()
    proxy = wire["proxy"]
    assert isinstance(proxy, dict)
    assert proxy["domains"] == {"a.example": "allow"}
    assert (proxy["enabled"], proxy["mode"], proxy["enableSocks5"]) == (True, "full", True)
    assert wire["handrail"] == {
        "domains": {"a.example": "allow", "b.example": "ask"},
        "addresses": {"10.0.0.0/8": "allow"},
        "unlisted": "deny",
        "approved": [["c.example", 443]],
    }
    assert "policyDecisionTimeoutMs" not in wire
