"""Which client may connect: here a connection is admitted or refused.

The rules, in the order in which they are applied; ``server/listener.py`` puts them together:

1. before there is a listener: ``exposure.py`` refuses to start one beyond loopback without a
   token, unless a flag asks for it
2. the user of the peer, before a byte is read: on TCP ``loopback_users.py`` admits our own user
   and root on a loopback address; on a Unix socket ``transport/unix_socket.py`` asks the kernel
   for the same.  A peer that does not speak HTTP there is admitted by that alone
3. Origin: browsers send it, clients do not: 403 before anything is looked at
4. Host: a name that is not ours is DNS rebinding: 403
5. path, then method, then the upgrade headers
6. the token, only where something is given away (the upgrade and /metrics): ``tokens.py`` checks
   it and says how long the answer to a wrong one waits

``HttpAdmission`` has rules 3 and 4, ``server/http_routes.py`` 5 and 6, and both are pure but for
what they are given.  How many connections there may be is in ``transport/connection_limits.py``; on
stdio the process that started the server is its client.

A probe of /readyz needs no token, and a wrong method is answered without one, as with the
Codex exec-server 0.166.  That server checks no Host; rule 4 is ours.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable

from handrail.server.auth.tokens import Authenticator, Principal
from handrail.server.http_routes import HttpRoutes
from handrail.transport.base import Receiver
from handrail.transport.http_head import HttpRequest, HttpResponse

_FORBIDDEN_ORIGIN = HttpResponse(403)
_FORBIDDEN_HOST = HttpResponse(
    403,
    b"the Host header names neither this address nor a loopback name;"
    b" connect by IP address, or start the server with that host allowed",
)


class HttpAdmission:
    """Admits or refuses each HTTP request of one listener; an instance is its ``Route``.

    ``bound_host`` is the address listened on, without the port.  ``allowed_origins`` are
    compared whole (``https://example.org``), ``allowed_hosts`` with or without a port.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        metrics_text: Callable[[Principal], bytes],
        new_receiver: Callable[[Principal], Receiver],
        bound_host: str,
        allowed_origins: Iterable[str],
        allowed_hosts: Iterable[str],
    ) -> None:
        self._routes = HttpRoutes(authenticator, metrics_text, new_receiver)
        self._bound = _address(bound_host.strip("[]"))
        self._bound_name = _bare(bound_host)
        self._origins = frozenset(origin.strip().rstrip("/").lower() for origin in allowed_origins)
        self._hosts = frozenset(_bare(host) for host in allowed_hosts)

    def __call__(self, request: HttpRequest) -> HttpResponse | Receiver:
        return self._refusal(request) or self._routes(request)

    def _refusal(self, request: HttpRequest) -> HttpResponse | None:
        origins = [value for name, value in request.headers if name.lower() == "origin"]
        if any(origin.strip().lower() not in self._origins for origin in origins):
            return _FORBIDDEN_ORIGIN
        hosts = [value for name, value in request.headers if name.lower() == "host"]
        if len(hosts) > 1 or (not hosts and request.version != "HTTP/1.0"):
            return HttpResponse(400, b"exactly one Host header is needed")
        if hosts and not self._is_ours(hosts[0]):
            return _FORBIDDEN_HOST
        return None

    def _is_ours(self, value: str) -> bool:
        host = _host_of(value)
        if host is None:
            return False
        if host == "localhost" or host in self._hosts or _bare(value) in self._hosts:
            return True
        address = _address(host)
        if address is None:
            return host == self._bound_name
        if address.is_loopback or address == self._bound:
            return True
        # Bound to every address, the server does not know its own.  Rebinding needs a name.
        return self._bound is not None and self._bound.is_unspecified


def _bare(host: str) -> str:
    """A host in the form for comparing: lower-case, no brackets around an address without port."""
    host = host.strip().lower()
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1]
    return host.removesuffix(".")


def _host_of(value: str) -> str | None:
    """The host of a Host header without port, brackets and final dot; None if malformed."""
    value = value.strip().lower()
    if value.startswith("["):
        host, bracket, port = value[1:].partition("]")
        if not bracket or ":" not in host or (port and not port.startswith(":")):
            return None
        port = port[1:]
    else:
        host, _, port = value.partition(":")
        host = host.removesuffix(".")
    if not host or not (port == "" or (port.isascii() and port.isdigit())):
        return None
    return host


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address of a literal in its usual spelling.  Browsers send no other, so ``127.1`` or
    ``0x7f000001`` count as names."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
