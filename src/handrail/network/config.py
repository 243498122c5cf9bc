"""The configuration of a managed network: read from the wire or from a profile, checked at once.

`from_wire` reads ``networkProxy.proxy`` as the peer sends it, `from_profile` our own names with our
additions.  Both raise ConfigError with the sentence that a client is told.  `to_json` and
`from_json` are how a configuration is stored and sent to the porter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network

from handrail.network import patterns
from handrail.network.address_classes import Network
from handrail.network.patterns import BadPattern

FULL, LIMITED = "full", "limited"
ALLOW, DENY, ASK, NONE = "allow", "deny", "ask", "none"
LONGEST_REASON = 400

Json = dict[str, object]


class ConfigError(ValueError):
    """The configuration cannot be used; the sentence says why."""


@dataclass(frozen=True, slots=True)
class ManagedNetwork:
    """What the commands of one process may reach."""

    mode: str = FULL
    #: Pattern to ``allow``, ``deny`` or ``ask``, as written.
    domains: Mapping[str, str] = field(default_factory=dict)
    allow_local_binding: bool = False
    allow_upstream_proxy: bool = False
    enable_socks5: bool = True
    enable_socks5_udp: bool = False
    unix_sockets: Mapping[str, str] = field(default_factory=dict)
    dangerously_allow_all_unix_sockets: bool = False
    #: Network to ``allow`` or ``deny``.
    addresses: Mapping[str, str] = field(default_factory=dict)
    #: Pattern to the text that is told instead of the standard message.
    reasons: Mapping[str, str] = field(default_factory=dict)
    #: What happens to hosts on no list: ``ask`` or ``deny``.
    unlisted: str = ASK

    def to_json(self) -> Json:
        """The configuration as JSON."""
        return {
            name: dict(value) if isinstance(value, Mapping) else value
            for name in _MEMBERS
            for value in (getattr(self, name),)
        }


def from_json(values: Mapping[str, object]) -> ManagedNetwork:
    """A configuration out of `to_json`; raises ConfigError."""
    return from_profile(values)


def from_profile(values: Mapping[str, object]) -> ManagedNetwork:
    """A configuration in our own names; unknown ones are refused.  Raises ConfigError."""
    unknown = sorted(set(values) - set(_MEMBERS))
    if unknown:
        known = ", ".join(_MEMBERS)
        raise ConfigError(f"unknown setting `{unknown[0]}` of a managed network; known: {known}")
    return _checked(
        {name: _MEMBERS[name](name, value) for name, value in values.items()}, ours=True
    )


def member_names() -> frozenset[str]:
    """The members that a configuration may have, in the names of the wire and in ours."""
    return frozenset({*_MEMBERS, *WIRE_MEMBERS, *_ADDITIONS})


def from_wire(proxy: Mapping[str, object], *, ours: bool = False) -> ManagedNetwork:
    """A configuration as the wire has it; ``ours``: with our additions, all members optional.

    Raises ConfigError.
    """
    found: dict[str, object] = {}
    if not ours:
        for member in WIRE_MEMBERS:
            if member not in proxy:
                raise ConfigError(f"missing field `{member}`")
    members = {**WIRE_MEMBERS, **_ADDITIONS} if ours else WIRE_MEMBERS
    for member, name in members.items():
        if member in proxy:
            read = _bool if name == "enabled" else _MEMBERS[name]
            found[name] = read(member, proxy[member])
    if not found.pop("enabled", True):
        raise ConfigError("executor-local network proxy launch requires an enabled proxy")
    return _checked(found, ours=ours)


def _checked(found: Mapping[str, object], *, ours: bool) -> ManagedNetwork:
    config = ManagedNetwork(**found)  # type: ignore[arg-type]  # read by _MEMBERS
    if config.mode not in (FULL, LIMITED):
        raise ConfigError(f"unknown variant `{config.mode}`, expected `limited` or `full`")
    if config.unlisted not in (ASK, DENY):
        raise ConfigError(f"unlisted hosts are `ask` or `deny`, not `{config.unlisted}`")
    _check_domains(config.domains, ours)
    for path, value in config.unix_sockets.items():
        if value not in (ALLOW, DENY, NONE):
            raise ConfigError(f"unknown variant `{value}`, expected `allow` or `deny`")
        if not path.startswith("/"):
            raise ConfigError(f"unix socket path {path!r} is relative: give an absolute path")
    for text, value in config.addresses.items():
        read_network(text)
        if value not in (ALLOW, DENY):
            raise ConfigError(f"a network is `allow` or `deny`, not `{value}`")
    for text, reason in config.reasons.items():
        _parse(text)
        if not 0 < len(reason) <= LONGEST_REASON or not reason.isprintable():
            raise ConfigError(
                f"the reason for {text!r} is one printable line of 1 to {LONGEST_REASON} characters"
            )
    if len(config.addresses) > patterns.MOST or len(config.reasons) > patterns.MOST:
        raise ConfigError(f"a managed network has at most {patterns.MOST} networks and reasons")
    return config


def _check_domains(domains: Mapping[str, str], ours: bool) -> None:
    if len(domains) > patterns.MOST:
        raise ConfigError(f"a managed network has at most {patterns.MOST} domain patterns")
    known = (ALLOW, DENY, NONE, ASK) if ours else (ALLOW, DENY, NONE)
    for text, value in domains.items():
        if value not in known:
            wanted = ", ".join(f"`{word}`" for word in known)
            raise ConfigError(f"unknown variant `{value}`, expected one of {wanted}")
        if value == NONE:
            continue
        pattern = _parse(text)
        if pattern.kind == "any" and pattern.port is None and value == DENY:
            raise ConfigError(
                f"invalid domain pattern {text!r}: to deny everything leave out every allow entry"
            )


def _parse(text: str) -> patterns.Pattern:
    try:
        return patterns.parse(text)
    except BadPattern as error:
        raise ConfigError(str(error)) from None


def read_network(text: str) -> Network:
    """A network of ``addresses``; raises ConfigError."""
    try:
        return IPv6Network(text) if ":" in text else IPv4Network(text)
    except ValueError as error:
        raise ConfigError(f"invalid network {text!r}: {error}") from None


# --- types of members -----------------------------------------------------------------------------


def _bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"invalid value of `{name}`: expected a boolean")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"invalid value of `{name}`: expected a string")
    return value


def _texts(name: str, value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(
        isinstance(one, str) for pair in value.items() for one in pair
    ):
        raise ConfigError(f"invalid value of `{name}`: expected a map of strings, or null")
    return dict(value)


_MEMBERS: dict[str, Callable[[str, object], object]] = {
    "mode": _text,
    "domains": _texts,
    "allow_local_binding": _bool,
    "allow_upstream_proxy": _bool,
    "enable_socks5": _bool,
    "enable_socks5_udp": _bool,
    "unix_sockets": _texts,
    "dangerously_allow_all_unix_sockets": _bool,
    "addresses": _texts,
    "reasons": _texts,
    "unlisted": _text,
}
#: Member of the wire to our name, in the order in which missing ones are told.
WIRE_MEMBERS = {
    "enabled": "enabled",
    "enableSocks5": "enable_socks5",
    "enableSocks5Udp": "enable_socks5_udp",
    "allowUpstreamProxy": "allow_upstream_proxy",
    "dangerouslyAllowAllUnixSockets": "dangerously_allow_all_unix_sockets",
    "mode": "mode",
    "domains": "domains",
    "unixSockets": "unix_sockets",
    "allowLocalBinding": "allow_local_binding",
}
_ADDITIONS = {"addresses": "addresses", "reasons": "reasons", "unlisted": "unlisted"}
