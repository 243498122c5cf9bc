"""Who comes through to a listener on loopback, on both loops, before a byte is read."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from handrail import listeners
from handrail.server.auth.loopback_users import loopback_gate
from handrail.transport.http_head import HttpRequest, HttpResponse
from handrail.transport.websocket import WebSocketListener, listen
from tests.support.eventually import LIMIT
from tests.transport.local_client import STRANGER, LocalClient
from tests.transport.transport_kit import Recorder

READY = "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Route:
    """Answers, and knows how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, request: HttpRequest) -> HttpResponse | Recorder:
        self.asked += 1
        return HttpResponse(200)


async def visit(listener: WebSocketListener, host: str, uid: int, what: str = "read") -> str:
    port = listener.sockname[1]  # type: ignore[index]

    def go() -> str:
        with LocalClient(host, port, uid=uid, text=READY) as client:
            return client.tell(what)

    return await asyncio.wait_for(asyncio.to_thread(go), LIMIT)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.both_loops
async def test_our_user_and_root_come_in(host: str) -> None:
    route = Route()
    listener = await listen(host, 0, route, gate=loopback_gate(any_user=False))
    for uid in {os.getuid(), 0} if os.getuid() == 0 else {os.getuid()}:
        assert await visit(listener, host, uid) == "b'HTTP/1.1 200'"
    assert route.asked >= 1
    listener.abort()
    await asyncio.wait_for(listener.wait_closed(), LIMIT)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.both_loops
async def test_another_user_gets_no_answer(host: str, caplog: pytest.LogCaptureFixture) -> None:
    route = Route()
    listener = await listen(host, 0, route, gate=loopback_gate(any_user=False))
    assert await visit(listener, host, STRANGER) == "b''"
    for _ in range(5):
        # It has sent everything and is gone when it is looked at.
        assert await visit(listener, host, STRANGER, "close") == "done"
    assert await visit(listener, host, STRANGER) == "b''"
    assert not listener._admission._opening
    assert await visit(listener, host, os.getuid()) == "b'HTTP/1.1 200'"
    assert route.asked == 1
    listener.abort()
    await asyncio.wait_for(listener.wait_closed(), LIMIT)

    assert "--any-user" in caplog.text


@pytest.mark.both_loops
async def test_every_user_comes_in_where_that_was_asked_for() -> None:
    listener = await listen("127.0.0.1", 0, Route(), gate=loopback_gate(any_user=True))
    assert await visit(listener, "127.0.0.1", STRANGER) == "b'HTTP/1.1 200'"
    listener.abort()
    await asyncio.wait_for(listener.wait_closed(), LIMIT)


@pytest.mark.both_loops
async def test_a_listener_is_in_the_registry_as_long_as_it_listens() -> None:
    listener = await listen("127.0.0.1", 0, Route())
    port = listener.sockname[1]  # type: ignore[index]
    assert listeners.has(port)
    listener.close()
    assert not listeners.has(port)
    listener.close()
    handed_over = await listen("127.0.0.1", 0, Route())
    port = handed_over.sockname[1]  # type: ignore[index]
    handed_over.leave()
    assert listeners.has(port)
    listeners.leave(port)


#: A machine with an address besides loopback, and a client that calls itself by it.
_OTHER_ADDRESS = """
import asyncio, subprocess, sys
sys.path.insert(0, sys.argv[1])
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["ip", "addr", "add", "192.0.2.7/32", "dev", "lo"], check=True)
from tests.transport.local_client import STRANGER, LocalClient
from handrail.server.auth.loopback_users import loopback_gate
from handrail.transport.http_head import HttpResponse
from handrail.transport.websocket import listen
TEXT = "GET /readyz HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n"
def visit(target, port, source, uid):
    with LocalClient(target, port, source=source, uid=uid, text=TEXT) as client:
        return client.tell("read")
async def main():
    for host, target, source in (
        ("127.0.0.1", "127.0.0.1", "192.0.2.7"),
        ("0.0.0.0", "192.0.2.7", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1", ""),
        ("0.0.0.0", "192.0.2.7", ""),
    ):
        gate = loopback_gate(any_user=False)
        listener = await listen(host, 0, lambda request: HttpResponse(200), gate=gate)
        for uid in (0, STRANGER):
            print(await asyncio.to_thread(visit, target, listener.sockname[1], source, uid))
        listener.abort()
asyncio.run(main())
"""


def test_an_address_besides_loopback_does_not_help(tmp_path: Path) -> None:
    """Only who uses a network address at both ends is left to authentication."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("another network and another user take root, and ip")
    words = ["unshare", "-n", sys.executable, "-c", _OTHER_ADDRESS, str(Path(__file__).parent)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    served, closed = "b'HTTP/1.1 200'", "b''"
    expected = [served, closed, served, closed, served, closed, served, served]
    assert done.stdout.splitlines() == expected


def test_a_port_that_is_taken_leaves_no_entry() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            listeners.open_tcp("127.0.0.1", port, 5)
        assert not listeners.has(port)
