"""Where the connects of a command lead that shares its network, and when its way out is new."""

from __future__ import annotations

import asyncio
import socket
import sys

import pytest

from handrail.network.config import ManagedNetwork
from handrail.network.managed.porter_life import PorterLife
from handrail.network.managed.process import ManagedProcess
from handrail.network.managed.start import ManagedStart, from_text
from handrail.network.managed.way_out import LISTENER, WayOut

OWN = "127.128.0.7"


def packed(host: str, port: int) -> bytes:
    """A socket address as ``connect`` takes it."""
    six = ":" in host
    family = socket.AF_INET6 if six else socket.AF_INET
    head = int(family).to_bytes(2, sys.byteorder) + port.to_bytes(2, "big")
    raw = socket.inet_pton(family, host)
    return head + (bytes(4) + raw + bytes(4) if six else raw + bytes(8))


def way(address: str) -> WayOut:
    return WayOut(asyncio.new_event_loop(), (LISTENER,), lambda _: True, None, address)


@pytest.mark.parametrize(
    ("host", "port", "leads_to"),
    [
        ("127.0.0.1", 800, OWN),
        ("127.0.0.1", 53, OWN),
        ("0.0.0.0", 800, OWN),
        ("127.128.0.8", 800, OWN),
        ("::ffff:127.128.0.8", 800, f"::ffff:{OWN}"),
        ("::ffff:0.0.0.0", 800, f"::ffff:{OWN}"),
        ("127.0.0.1", 8000, "127.0.0.1"),
        ("10.0.0.1", 800, "10.0.0.1"),
        ("::1", 800, "::1"),
        ("::ffff:10.0.0.1", 800, "::ffff:10.0.0.1"),
    ],
)
def test_every_address_of_a_proxy_leads_to_its_own(host: str, port: int, leads_to: str) -> None:
    shared, alone = way(OWN), way("127.0.0.1")
    given = packed(host, port)
    assert shared.led(given) == packed(leads_to, port)
    assert alone.led(given) == given
    for one in (shared, alone):
        one._loop.close()


@pytest.mark.parametrize("odd", [b"", b"\2", b"\2\0\3\x20", packed("127.0.0.1", 800)[:7]])
def test_what_is_no_address_stays(odd: bytes) -> None:
    one = way(OWN)
    assert one.led(odd) == odd
    one._loop.close()


def test_a_connect_to_the_proxy_waits_only_when_its_listener_is_full() -> None:
    loop = asyncio.new_event_loop()
    listener = socket.create_server(("127.0.0.1", 0), backlog=1)
    place = listener.getsockname()
    one = WayOut(loop, (LISTENER,), lambda _: True, {LISTENER: listener.detach()})
    proxy = packed("127.0.0.1", 800)
    assert one.answers_at_once(proxy)
    others = (("127.0.0.1", 53), ("127.0.0.1", 8000), ("10.0.0.1", 800), ("::1", 800))
    assert not any(one.answers_at_once(packed(*other)) for other in others)
    with socket.create_connection(place):
        assert not one.answers_at_once(proxy)
    one.close()
    assert not one.answers_at_once(proxy)
    loop.close()


@pytest.mark.fault
def test_a_sandbox_made_anew_has_a_way_of_its_own() -> None:
    """That of the sandbox before is closed when its last process is gone, perhaps later."""
    loop = asyncio.new_event_loop()
    life = PorterLife(None, loop, {})  # type: ignore[arg-type]
    process = ManagedProcess(life, ManagedStart(ManagedNetwork()))
    process.led_to(OWN)
    process.begin(1)
    before = process.way_out
    process.begin(2)
    after = process.way_out
    assert before is not None
    assert after is not None
    before.close()
    assert not after.closed
    assert after.led(packed("127.0.0.1", 800)) == packed(OWN, 800)
    assert list(life.processes) == ["2"]
    assert from_text(process.note).address == OWN
    loop.close()
