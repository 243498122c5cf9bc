"""The proxy that the environment names for a request.  Pure.

The rules of the peer (exec-server 0.166.0): upper case before lower case, an empty variable is
unset, ``HTTP_PROXY`` is ignored where a web server could have set it from a request
(``REQUEST_METHOD`` is set).  ``NO_PROXY`` lists addresses, networks and domains with
everything below them; ports in it never match.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Proxies:
    """The proxies by scheme, and the hosts reached without one."""

    by_scheme: Mapping[str, str]
    domains: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()
    #: ``*``: no host is reached through a proxy.
    off: bool = False

    def choose(self, scheme: str, host: str) -> str | None:
        """The URL of the proxy for a host; an IPv6 host is in brackets."""
        proxy = self.by_scheme.get(scheme)
        if proxy is None or self.off:
            return None
        try:
            address = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            passed = any(host == d or host.endswith("." + d) for d in self.domains)
        else:
            passed = any(address in network for network in self.networks)
        return None if passed else proxy


def from_environment(environment: Mapping[str, str]) -> Proxies:
    """Read the proxy variables of an environment."""
    everything = _first(environment, "ALL_PROXY", "all_proxy")
    plain = None
    if "REQUEST_METHOD" not in environment:
        plain = _first(environment, "HTTP_PROXY", "http_proxy")
    secure = _first(environment, "HTTPS_PROXY", "https_proxy")
    found = {"http": plain or everything, "https": secure or everything}
    domains: list[str] = []
    networks: list[Network] = []
    off = False
    # An empty variable hides the other one: it says that there are no exceptions.
    listed = environment.get("NO_PROXY", environment.get("no_proxy", ""))
    for entry in map(str.strip, listed.split(",")):
        try:
            networks.append(ipaddress.ip_network(entry, strict=False))
        except ValueError:
            off = off or entry == "*"
            if domain := entry.lower().removeprefix("."):
                domains.append(domain)
    return Proxies(
        by_scheme={scheme: proxy for scheme, proxy in found.items() if proxy},
        domains=tuple(domains),
        networks=tuple(networks),
        off=off,
    )


def _first(environment: Mapping[str, str], *names: str) -> str | None:
    for name in names:
        value = environment.get(name, "").strip()
        if value:
            return value if "://" in value else f"http://{value}"
    return None
