"""The company's proxy: connections go on through it where the configuration says so.

Taken from the variables of the *server*, never from a command's.  Our rules come first; when that
proxy fails, nothing is dialled directly.
"""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network

from handrail.network import hosts
from handrail.network import refusal_replies as replies
from handrail.network.decide import HTTP, Target, is_loopback
from handrail.network.hosts import BadHost, Host
from handrail.network.porter import dialer
from handrail.network.porter.dialer import DialFailed
from handrail.network.porter.outside_resolver import FairResolver
from handrail.transport.http_head import HeadError, HeadReader, parse_response

_SECONDS = 30.0
_HEAD_LIMIT = 64 * 1024
_FIELDS = 256


@dataclass(frozen=True, slots=True)
class UpstreamProxy:
    """One proxy of ``http:``; ``authorization`` is empty without user info."""

    host: Host
    port: int
    authorization: str = ""


@dataclass(frozen=True, slots=True)
class BadUpstream:
    """A variable that cannot be used: connections fail rather than go directly."""

    why: str


class Upstreams:
    """Which proxy a target goes through, by the variables of the server."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        def read(*names: str) -> UpstreamProxy | BadUpstream | None:
            for name in names:
                for spelling in (name, name.lower()):
                    text = environment.get(spelling, "").strip()
                    if text:
                        return read_proxy(text)
            return None

        self._plain = read("HTTP_PROXY", "ALL_PROXY")
        self._tunnels = read("HTTPS_PROXY", "ALL_PROXY")
        direct = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
        self._direct = [word.strip().lower() for word in direct.split(",") if word.strip()]

    def find(self, target: Target) -> UpstreamProxy | BadUpstream | None:
        """The proxy for a target; None: it is dialled directly."""
        if is_loopback(target.host) or self._is_direct(target.host, target.port):
            return None
        return self._plain if target.protocol == HTTP else self._tunnels

    def _is_direct(self, host: Host, port: int) -> bool:
        return any(_excepts(word, host, port) for word in self._direct)


def read_proxy(text: str) -> UpstreamProxy | BadUpstream:
    """A proxy from the value of a variable."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "http", text
    if scheme.lower() != "http":
        return BadUpstream(f"an upstream proxy of {scheme}: is not supported")
    rest = rest.partition("/")[0]
    user, at, authority = rest.rpartition("@")
    try:
        name, port = hosts.split_authority(authority)
        host = hosts.canonical(name)
    except BadHost as error:
        return BadUpstream(f"the upstream proxy has no usable host: {error}")
    basic = ""
    if at:
        from urllib.parse import unquote  # seldom needed

        basic = "Basic " + base64.b64encode(unquote(user).encode()).decode("ascii")
    return UpstreamProxy(host, 80 if port is None else port, basic)


def _excepts(word: str, host: Host, port: int) -> bool:
    if word == "*":
        return True
    if host.address is not None and "/" in word:
        try:
            network = ip_network(word, strict=False)
        except ValueError:
            return False
        return network.version == host.address.version and host.address in network
    try:
        if word.count(":") == 1 or word.startswith("["):
            word, given = hosts.split_authority(word)
            if given is not None and given != port:
                return False
        named = hosts.canonical(word.removeprefix("*").removeprefix("."))
    except BadHost:
        return False
    if host.address is not None or named.address is not None:
        return host.text == named.text
    return host.text == named.text or host.text.endswith("." + named.text)


async def connect(proxy: UpstreamProxy | BadUpstream, resolver: FairResolver) -> socket.socket:
    """A connection to the proxy itself; raises DialFailed."""
    if isinstance(proxy, BadUpstream):
        raise DialFailed(proxy.why, replies.SOCKS_NETWORK)
    if proxy.host.address is not None:
        found = [proxy.host.address]
    else:
        found = await resolver.look_up(proxy.host.text)
    return await dialer.dial(found, proxy.port)


async def tunnel(
    proxy: UpstreamProxy | BadUpstream, resolver: FairResolver, target: Target
) -> tuple[socket.socket, bytes]:
    """A tunnel to the target through the proxy, with bytes that came early; raises DialFailed."""
    sock = await connect(proxy, resolver)
    try:
        async with asyncio.timeout(_SECONDS):
            return sock, await _open(sock, target, getattr(proxy, "authorization", ""))
    except (OSError, TimeoutError, HeadError) as error:
        sock.close()
        raise DialFailed(f"the upstream proxy failed: {error}", replies.SOCKS_NETWORK) from None
    except BaseException:
        sock.close()
        raise


async def _open(sock: socket.socket, target: Target, authorization: str) -> bytes:
    loop = asyncio.get_running_loop()
    authority = f"{target.host.bracketed}:{target.port}"
    lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"]
    if authorization:
        lines.append(f"Proxy-Authorization: {authorization}")
    await loop.sock_sendall(sock, ("\r\n".join(lines) + "\r\n\r\n").encode("ascii"))
    reader = HeadReader(_HEAD_LIMIT)
    while True:
        data = await loop.sock_recv(sock, _HEAD_LIMIT)
        if not data:
            raise ConnectionResetError("it closed the connection")
        head = reader.feed(data)
        if head is not None:
            status = parse_response(head, _FIELDS).status
            if not 200 <= status < 300:
                raise HeadError(status, f"it answered with status {status}")
            return reader.rest
