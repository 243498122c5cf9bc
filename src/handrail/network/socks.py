"""The SOCKS 5 handshake as a pure machine: bytes in, answers and a target out."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from handrail.network import hosts
from handrail.network import refusal_replies as replies
from handrail.network.hosts import BadHost, Host

VERSION = 5
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_NO_METHOD = 0xFF


class SocksError(Exception):
    """The handshake has failed; ``answer`` is sent before the end."""

    def __init__(self, answer: bytes, sentence: str) -> None:
        super().__init__(sentence)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class SocksRequest:
    """A CONNECT, complete; ``rest`` are bytes of the tunnel that came early."""

    host: Host
    port: int
    rest: bytes


class SocksReader:
    """Collects a handshake from reads of any size."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._greeted = False

    def feed(self, data: bytes) -> tuple[bytes, SocksRequest | None]:
        """Take bytes; return what to send now, and the complete request.  Raises SocksError."""
        self._buffer += data
        answer = b""
        if not self._greeted:
            if not self._greeting():
                return b"", None
            answer = bytes((VERSION, 0))
        request = self._request()
        return answer, request

    def _greeting(self) -> bool:
        held = self._buffer
        if held and held[0] != VERSION:
            raise SocksError(b"", "only version 5 of SOCKS is spoken here")
        if len(held) < 2 or len(held) < 2 + held[1]:
            return False
        methods = held[2 : 2 + held[1]]
        if 0 not in methods:
            raise SocksError(bytes((VERSION, _NO_METHOD)), "only no authentication is offered")
        del held[: 2 + len(methods)]
        self._greeted = True
        return True

    def _request(self) -> SocksRequest | None:
        held = self._buffer
        if held and held[0] != VERSION:
            raise SocksError(b"", "only version 5 of SOCKS is spoken here")
        if len(held) < 5:
            return None
        kind = held[3]
        sizes = {_IPV4: 4, _IPV6: 16, _NAME: 1 + held[4]}
        if kind not in sizes:
            unknown = replies.SOCKS_ADDRESS_TYPE if held[1] == _CONNECT else replies.SOCKS_COMMAND
            raise _refused(unknown, "no such type of address")
        end = 4 + sizes[kind]
        if len(held) < end + 2:
            return None
        raw, port = bytes(held[4:end]), int.from_bytes(held[end : end + 2], "big")
        if held[1] != _CONNECT:  # a datagram association names port 0
            raise _refused(replies.SOCKS_COMMAND, "only CONNECT is offered")
        try:
            host = _host(kind, raw)
            hosts.checked_port(port)
        except BadHost as error:
            raise _refused(replies.SOCKS_REFUSED_BY_RULE, str(error)) from None
        return SocksRequest(host, port, bytes(held[end + 2 :]))


def _host(kind: int, raw: bytes) -> Host:
    if kind == _IPV4:
        return hosts.of_address(IPv4Address(raw))
    if kind == _IPV6:
        return hosts.of_address(IPv6Address(raw))
    return hosts.canonical(raw[1:].decode("latin-1"))


def _refused(code: int, sentence: str) -> SocksError:
    return SocksError(replies.socks_reply(code), sentence)
