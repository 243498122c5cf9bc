"""Names, limits and upstream proxies of a porter that runs on the loop of the test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address

import pytest

from handrail.network import link, machine
from handrail.network.config import ManagedNetwork
from handrail.network.hosts import Address
from handrail.network.porter import connection, forwarding, http_proxy, service
from handrail.network.porter.service import Porter
from handrail.network.records import Ring
from tests.support.eventually import spin

#: The loop of the test, and that of the program.
pytestmark = pytest.mark.both_loops


class Running:
    """A porter, and the server's end of its link."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.ring = Ring.create()
        self.link, theirs = link.pair()
        self.link.setblocking(False)
        theirs.setblocking(False)
        self._theirs = theirs
        self.porter = Porter(theirs, self.ring, environment)
        self.task = asyncio.get_running_loop().create_task(self.porter.run())

    async def add(self, config: ManagedNetwork) -> tuple[str, int]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            fields = {"process": "p", "config": config.to_json(), "fds": [link.LISTENER]}
            link.send(self.link, link.ADD, fields, 1, [listener.fileno()])
            await asyncio.get_running_loop().sock_recv(self.link, 65536)
            address: tuple[str, int] = listener.getsockname()
            return address

    async def end(self) -> None:
        link.send(self.link, link.STOP, {})
        await self.task
        self.porter.threads.shutdown()
        self.porter.makers.shutdown()
        for one in (self.link, self._theirs):
            one.close()
        self.ring.close()


@asynccontextmanager
async def porter(**environment: str) -> AsyncIterator[Running]:
    running = Running(environment)
    try:
        yield running
    finally:
        await running.end()


@asynccontextmanager
async def origin(answer: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    """An origin on loopback that answers every head, and the heads it has got."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], heads


async def ask(address: tuple[str, int], raw: str) -> bytes:
    """What comes back until the end."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(raw.encode())
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, list[str]]], list[str]]:
    """Sets what names lead to; gives the list of names that were looked up."""

    def use(known: dict[str, list[str]]) -> list[str]:
        asked: list[str] = []

        def look_up(name: str) -> list[Address]:
            asked.append(name)
            return [ip_address(text) for text in known.get(name, [])]

        monkeypatch.setattr(machine, "look_up", look_up)
        return asked

    return use


Names = Callable[[dict[str, list[str]]], list[str]]
CLOSING = "HTTP/1.1\r\nConnection: close\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def test_a_name_is_looked_up_once_and_that_address_is_dialled(names: Names) -> None:
    asked = names({"ok.example": ["127.0.0.1"]})
    async with porter() as running, origin(OK) as (port, heads):
        config = ManagedNetwork(domains={"ok.example": "allow", f"127.0.0.1:{port}": "allow"})
        address = await running.add(config)
        got = await ask(address, f"GET http://OK.example:{port}/ {CLOSING}")
        assert got.endswith(b"\r\n\r\nok")
        assert asked == ["ok.example"]
        assert heads[0].startswith(b"GET / HTTP/1.1\r\nhost: ok.example:%d\r\n" % port)
        decision = running.ring.read(0)[0][1]
        assert (decision.host, decision.address) == ("ok.example", "127.0.0.1")


async def test_a_name_that_is_not_allowed_reaches_no_resolver(names: Names) -> None:
    asked = names({})
    async with porter() as running:
        config = ManagedNetwork(domains={"ok.example": "allow", "*.bad.example": "deny"})
        address = await running.add(config)
        for host in ("secret.bad.example", "no.example", "a.localhost", "ok.example.no.example"):
            got = await ask(address, f"CONNECT {host}:443 {CLOSING}")
            assert got.startswith(b"HTTP/1.1 403")
        assert asked == []


async def test_a_name_that_leads_to_a_local_address_is_closed(names: Names) -> None:
    names({"ok.example": ["11.22.33.44", "127.0.0.1"], "v6.example": ["64:ff9b::7f00:1"]})
    async with porter() as running:
        address = await running.add(ManagedNetwork(domains={"*": "allow"}))
        for host in ("ok.example", "v6.example"):
            got = await ask(address, f"GET http://{host}/ {CLOSING}")
            assert b'"reason":"not_allowed_local"' in got


async def test_a_name_that_does_not_exist_is_no_matter_of_policy(names: Names) -> None:
    names({})
    async with porter() as running:
        address = await running.add(ManagedNetwork(domains={"ok.example": "allow"}))
        got = await ask(address, f"GET http://ok.example/ {CLOSING}")
        assert got.startswith(b"HTTP/1.1 502")
        assert b"upstream failure: the name does not exist" in got
        assert running.ring.read(0)[0][1].reason == "dns_failed"


async def test_an_own_address_of_this_machine_is_closed(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    names({"ok.example": ["11.22.33.44"]})
    own = frozenset((ip_address("11.22.33.44"),))
    monkeypatch.setattr(machine, "own_addresses", lambda: own)
    async with porter() as running:
        address = await running.add(ManagedNetwork(domains={"*": "allow"}))
        got = await ask(address, f"GET http://ok.example/ {CLOSING}")
        assert b'"reason":"not_allowed_local"' in got


async def test_a_silent_client_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_BYTE_SECONDS", 0.05)
    monkeypatch.setattr(http_proxy, "HEAD_SECONDS", 0.05)
    async with porter() as running:
        address = await running.add(ManagedNetwork())
        assert await ask(address, "GET http://ok.example/ HTTP/1.1\r\nX: ") == b""


async def test_a_client_that_has_gone_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "GONE_SECONDS", 0.01)
    silent: list[asyncio.StreamReader] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        silent.append(reader)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with porter() as running, server:
        port = server.sockets[0].getsockname()[1]
        address = await running.add(ManagedNetwork(domains={f"127.0.0.1:{port}": "allow"}))
        _, writer = await asyncio.open_connection(*address)
        writer.write(f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n".encode())
        await spin(lambda: bool(silent))
        assert running.porter.connections == 1
        writer.close()
        await spin(lambda: running.porter.connections == 0)


async def test_more_connections_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST_OF_PROCESS", 1)
    async with porter() as running:
        address = await running.add(ManagedNetwork())
        _, writer = await asyncio.open_connection(*address)
        writer.write(b"GET ")
        await spin(lambda: running.porter.connections == 1)
        refused = await ask(address, "GET ")
        assert refused[:12] in (b"", b"HTTP/1.1 503")  # closed, perhaps with an answer before
        writer.close()
        await spin(lambda: running.porter.connections == 0)
        got = await ask(address, f"GET http://ok.example/ {CLOSING}")
        assert got.startswith(b"HTTP/1.1 403")


async def test_an_upstream_proxy(names: Names) -> None:
    asked = names({"local.example": ["10.0.0.1"], "direct.example": ["127.0.0.1"]})
    async with origin(OK) as (port, heads):
        proxy = f"http://us%40er:pw@127.0.0.1:{port}"
        async with porter(
            HTTP_PROXY=proxy, HTTPS_PROXY=proxy, NO_PROXY=".direct.example,x.example"
        ) as running:
            config = ManagedNetwork(
                domains={"*": "allow", "no.example": "deny", f"127.0.0.1:{port}": "allow"},
                allow_upstream_proxy=True,
            )
            address = await running.add(config)
            # Our resolver does not know it; the proxy may.
            await ask(address, f"GET http://far.example/x {CLOSING}")
            assert heads[-1].startswith(
                b"GET http://far.example/x HTTP/1.1\r\nhost: far.example\r\n"
            )
            assert b"proxy-authorization: Basic dXNAZXI6cHc=\r\n" in heads[-1]
            await ask(address, f"CONNECT far.example:443 {CLOSING}")
            assert heads[-1].startswith(b"CONNECT far.example:443 HTTP/1.1\r\n")
            count = len(heads)
            for host, reason in (("no.example", b"denied"), ("local.example", b"local")):
                got = await ask(address, f"GET http://{host}/ {CLOSING}")
                assert reason in got
            assert len(heads) == count
            await ask(address, f"GET http://direct.example:{port}/ {CLOSING}")
            assert heads[-1].startswith(b"GET / HTTP/1.1\r\nhost: direct.example:")
            assert "far.example" in asked


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:1", "socks5://127.0.0.1:1", "http://u@:/"])
async def test_an_upstream_proxy_that_fails_is_not_passed_by(names: Names, proxy: str) -> None:
    names({"ok.example": ["127.0.0.1"]})
    async with porter(ALL_PROXY=proxy) as running, origin(OK) as (port, heads):
        config = ManagedNetwork(
            domains={"ok.example": "allow", f"127.0.0.1:{port}": "allow"},
            allow_upstream_proxy=True,
        )
        address = await running.add(config)
        for line in (f"GET http://ok.example:{port}/", f"CONNECT ok.example:{port}"):
            assert (await ask(address, f"{line} {CLOSING}")).startswith(b"HTTP/1.1 502")
        assert heads == []


async def test_without_permission_an_upstream_proxy_is_not_used(names: Names) -> None:
    names({"ok.example": ["127.0.0.1"]})
    async with porter(ALL_PROXY="http://127.0.0.1:1") as running, origin(OK) as (port, heads):
        config = ManagedNetwork(domains={"ok.example": "allow", f"127.0.0.1:{port}": "allow"})
        address = await running.add(config)
        await ask(address, f"GET http://ok.example:{port}/ {CLOSING}")
        assert len(heads) == 1


async def test_look_ups_of_one_process_leave_threads_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import threading

    release = threading.Event()

    def look_up(name: str) -> list[Address]:
        if name != "quick.example":
            release.wait(30)
        return []

    monkeypatch.setattr(machine, "look_up", look_up)
    async with porter() as running:
        address = await running.add(ManagedNetwork(domains={"*": "allow"}))
        slow = [
            asyncio.create_task(ask(address, f"GET http://s{number}.example/ {CLOSING}"))
            for number in range(40)
        ]
        await spin(lambda: running.porter.connections == 40)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = ManagedNetwork(domains={"*": "allow"}).to_json()
            fields = {"process": "q", "config": config, "fds": [link.LISTENER]}
            link.send(running.link, link.ADD, fields, 2, [listener.fileno()])
            got = await ask(listener.getsockname(), f"GET http://quick.example/ {CLOSING}")
        assert got.startswith(b"HTTP/1.1 502")
        assert not any(task.done() for task in slow)
        release.set()
        await asyncio.gather(*slow)
