"""May this connection be made?  One order of tests, for every protocol and every command.

`judge` runs the tests that need no look-up: a name that it does not allow reaches no resolver.
`judge_addresses` runs those on what the name leads to, and gives the addresses to dial: loopback,
private and metadata addresses are closed unless the configuration opens them.  After a
question was answered with yes, `approved` goes on where `judge` stopped: a yes opens no local
address and no method that the mode forbids.

Pure: no clock, no look-up, no socket.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, replace

from handrail.network import config as configuration
from handrail.network import patterns, saved_rules
from handrail.network.address_classes import (
    LOCAL,
    LOCALHOST,
    AddressClass,
    Network,
    classify,
    parts,
)
from handrail.network.config import ManagedNetwork
from handrail.network.hosts import Address, Host, of_address
from handrail.network.patterns import PatternSet
from handrail.network.saved_rules import SavedRule, SavedRules

# Protocols, as the wire names them.
HTTP, CONNECT, SOCKS, SOCKS_UDP = "http", "https_connect", "socks5_tcp", "socks5_udp"

# Reasons.
ALLOW = "allow"
NOT_ALLOWED, NOT_ALLOWED_LOCAL, DENIED = "not_allowed", "not_allowed_local", "denied"
METHOD_NOT_ALLOWED, MITM_REQUIRED = "method_not_allowed", "mitm_required"
POLICY_DENIED, BAD_HOST, DNS_FAILED = "policy_denied", "bad_host", "dns_failed"
UNREACHABLE, UNSUPPORTED, TOO_MANY = "unreachable", "unsupported", "too_many"

# Sources.
BASELINE, DECIDER, MODE, STATE = "baseline_policy", "decider", "mode_guard", "proxy_state"

#: Methods of limited mode; methods are compared in their exact case.
READING = frozenset(("GET", "HEAD", "OPTIONS"))
_HTTPS = 443
_LONGEST_REASON = 1024
#: Addresses of one name that are dialled.
MOST_ADDRESSES = 32
_MOST_REMEMBERED = 1024

Key = tuple[str, int]


class Kind(enum.Enum):
    """What happens to a connection."""

    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"
    BAD = "bad"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a command wants to connect to, and how it asked."""

    protocol: str
    host: Host
    port: int
    method: str | None = None

    @property
    def key(self) -> Key:
        """What answers are remembered for: protocols to one port are one target."""
        return self.host.text, self.port


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision, with its reason and source as the wire names them."""

    kind: Kind
    reason: str
    source: str
    #: The pattern, network or rule that decided, as written; None without one.
    rule: str | None = None
    #: What may be dialled, in this order; only of an allowed target.
    dial: tuple[Address, ...] = ()
    #: Told instead of the standard message.
    message: str | None = None

    @property
    def override(self) -> bool:
        """Whether an answer allows what the lists do not."""
        return self.kind is Kind.ALLOW and self.source == DECIDER


@dataclass(frozen=True, slots=True)
class Memory:
    """Answers that still hold, by host and port."""

    approved: Container[Key] = ()
    denied: Container[Key] = ()


class Policy:
    """A configuration and saved rules, ready to be asked."""

    def __init__(self, config: ManagedNetwork, saved: Iterable[SavedRule] = ()) -> None:
        self.config = config
        self.saved = SavedRules(saved)
        lists: dict[str, list[patterns.Pattern]] = {"allow": [], "deny": [], "ask": []}
        for text, value in config.domains.items():
            if value in lists:
                lists[value].append(patterns.parse(text))
        self._allow = PatternSet(lists["allow"], wide=False)
        self._deny = PatternSet(lists["deny"], wide=True)
        self._ask = PatternSet(lists["ask"], wide=True)
        self._open = _networks(config.addresses, configuration.ALLOW)
        self._closed = _networks(config.addresses, configuration.DENY)
        self._reasons = PatternSet(map(patterns.parse, config.reasons), wide=True)
        #: What was found for a host and port: one decision asks for it several times.
        self._denials: dict[Key, str | None] = {}

    def with_rules(self, saved: Iterable[SavedRule]) -> Policy:
        """The same configuration with other rules."""
        other = object.__new__(Policy)
        other.__dict__.update(self.__dict__)
        other.saved = SavedRules(saved)
        other._denials = {}
        return other

    def denial(self, host: Host, port: int) -> str | None:
        """What denies the host: a pattern, a network, a saved rule."""
        key = (host.text, port)
        if key not in self._denials:
            if len(self._denials) >= _MOST_REMEMBERED:
                self._denials.clear()
            self._denials[key] = self._find_denial(host, port)
        return self._denials[key]

    def _find_denial(self, host: Host, port: int) -> str | None:
        for one in _judged_as(host):
            found = self._deny.find(one, port)
            if found is not None:
                return found.text
            if one.address is not None:
                network = _containing(self._closed, one.address)
                if network is not None:
                    return network
            rule = self.saved.find(one, port)
            if rule is not None and rule.decision == saved_rules.FORBIDDEN:
                return str(rule)
        return None

    def question(self, host: Host, port: int) -> str | None:
        """What wants the host to be asked about even where it is allowed."""
        rule = self.saved.find(host, port)
        if rule is not None:
            return str(rule) if rule.decision == saved_rules.PROMPT else None
        found = self._ask.find(host, port)
        return None if found is None else found.text

    def allowance(self, host: Host, port: int) -> str | None:
        """What allows the host."""
        rule = self.saved.find(host, port)
        if rule is not None and rule.decision == saved_rules.ALLOW:
            return str(rule)
        found = self._allow.find(host, port)
        if found is not None:
            return found.text
        return None if host.address is None else _containing(self._open, host.address)

    def lists(self, host: Host, port: int) -> bool:
        """Whether an entry names this very host, or a network its address."""
        rule = self.saved.find(host, port)
        if rule is not None and rule.decision == saved_rules.ALLOW:
            return True
        if self._allow.find_exact(host, port) is not None:
            return True
        return host.address is not None and _containing(self._open, host.address) is not None

    def opens(self, address: Address, port: int, own: Collection[Address]) -> bool:
        """Whether an address may be dialled: public, or opened, in all its parts."""
        return all(self._opens(part, port, own) for part in parts(address))

    def _opens(self, part: Address, port: int, own: Collection[Address]) -> bool:
        kind = classify(part, own)
        if kind is AddressClass.PUBLIC or (self.config.allow_local_binding and kind in LOCAL):
            return True
        return self.lists(of_address(part), port)

    def message(self, target: Target) -> str | None:
        """The text of the configuration for a refusal of this target."""
        found = self._reasons.find(target.host, target.port)
        return None if found is None else self.config.reasons[found.text]


def judge(
    policy: Policy,
    memory: Memory,
    target: Target,
    *,
    can_ask: bool,
    own: Collection[Address] = (),
) -> Verdict:
    """Decide up to the look-up: allow, deny or ask."""
    verdict = _judge(policy, memory, target, can_ask, own)
    return _explained(policy, target, verdict)


def _judge(
    policy: Policy, memory: Memory, target: Target, can_ask: bool, own: Collection[Address]
) -> Verdict:
    host, port = target.host, target.port
    if target.protocol == SOCKS_UDP or (
        target.protocol == SOCKS and not policy.config.enable_socks5
    ):
        return Verdict(Kind.DENY, UNSUPPORTED, STATE)
    denial = policy.denial(host, port)
    if denial is not None:
        return Verdict(Kind.DENY, DENIED, BASELINE, denial)
    if not _may_be_local(policy, host, port, own):
        return Verdict(Kind.DENY, NOT_ALLOWED_LOCAL, BASELINE)
    if target.key in memory.denied:
        return Verdict(Kind.DENY, NOT_ALLOWED, DECIDER)
    question, allowance = policy.question(host, port), policy.allowance(host, port)
    if allowance is not None and question is None:
        return _by_mode(policy, target, Verdict(Kind.ALLOW, ALLOW, BASELINE, allowance))
    if target.key in memory.approved:
        return _by_mode(policy, target, Verdict(Kind.ALLOW, NOT_ALLOWED, DECIDER))
    wanted = question is not None or policy.config.unlisted == configuration.ASK
    if not (can_ask and wanted) or _forbidden_by_mode(policy, target) is not None:
        return Verdict(Kind.DENY, NOT_ALLOWED, BASELINE, question)
    return Verdict(Kind.ASK, NOT_ALLOWED, DECIDER, question)


def approved(policy: Policy, target: Target) -> Verdict:
    """Go on after a yes."""
    verdict = _by_mode(policy, target, Verdict(Kind.ALLOW, NOT_ALLOWED, DECIDER))
    return _explained(policy, target, verdict)


def refused(policy: Policy, target: Target, reason: object, *, asks: bool = False) -> Verdict:
    """The verdict after a no; ``reason`` is the text of the answer, None without an answer.

    A text that is too long, or has control characters, is no answer.  ``asks``: the answer calls
    itself ``ask``, which is what the refusal is called then.
    """
    kind = Kind.ASK if asks else Kind.DENY
    if not isinstance(reason, str) or not _is_reason(reason):
        kind, reason = Kind.DENY, NOT_ALLOWED
    return _explained(policy, target, Verdict(kind, reason or POLICY_DENIED, DECIDER))


def _is_reason(text: str) -> bool:
    if len(text.encode("utf-8", "surrogatepass")) > _LONGEST_REASON:
        return False
    return not any(char < " " or "\x7f" <= char <= "\x9f" for char in text)


def known_addresses(host: Host) -> tuple[Address, ...] | None:
    """What a host leads to without a look-up; None for a name that has to be looked up."""
    if host.address is not None:
        return (host.address,)
    return LOCALHOST if host.is_localhost else None


def judge_addresses(
    policy: Policy,
    target: Target,
    verdict: Verdict,
    found: Iterable[Address],
    own: Collection[Address],
) -> Verdict:
    """Decide on the addresses of an allowed target: all of them may be dialled, or none."""
    addresses = tuple(dict.fromkeys(_plain(address) for address in found))
    if not addresses:
        return Verdict(Kind.UNREACHABLE, DNS_FAILED, STATE)
    for address in addresses:
        denial = policy.denial(of_address(address), target.port)
        if denial is not None:
            closed = Verdict(Kind.DENY, DENIED, BASELINE, denial)
            return _explained(policy, target, closed)
    for address in addresses:
        by_name = target.host.is_localhost  # the name itself was judged as an address is
        if not by_name and not policy.opens(address, target.port, own):
            return _explained(policy, target, Verdict(Kind.DENY, NOT_ALLOWED_LOCAL, BASELINE))
    return replace(verdict, dial=addresses[:MOST_ADDRESSES])


def is_loopback(host: Host) -> bool:
    """Whether the host means loopback wherever it is connected from."""
    return host.is_localhost or (
        host.address is not None and classify(host.address) is AddressClass.LOOPBACK
    )


def leads_inside(policy: Policy, target: Target) -> bool:
    """Whether the command's own loopback comes first: no entry gives it that of the host."""
    if not is_loopback(target.host) or policy.denial(target.host, target.port) is not None:
        return False
    return policy.allowance(target.host, target.port) is None or not _may_be_local(
        policy, target.host, target.port, ()
    )


def _may_be_local(policy: Policy, host: Host, port: int, own: Collection[Address]) -> bool:
    if host.address is not None:
        return policy.opens(host.address, port, own)
    if host.is_localhost:
        return policy.config.allow_local_binding or policy.lists(host, port)
    return True


def _forbidden_by_mode(policy: Policy, target: Target) -> str | None:
    if policy.config.mode != configuration.LIMITED:
        return None
    if target.protocol == HTTP:
        return None if target.method in READING else METHOD_NOT_ALLOWED
    if target.protocol == CONNECT or target.port == _HTTPS:
        return MITM_REQUIRED
    return METHOD_NOT_ALLOWED


def _by_mode(policy: Policy, target: Target, verdict: Verdict) -> Verdict:
    reason = _forbidden_by_mode(policy, target)
    return verdict if reason is None else Verdict(Kind.DENY, reason, MODE)


def _explained(policy: Policy, target: Target, verdict: Verdict) -> Verdict:
    if verdict.kind is Kind.ALLOW or not policy.config.reasons:
        return verdict
    return replace(verdict, message=policy.message(target))


def _judged_as(host: Host) -> Iterable[Host]:
    """The host, and the IPv4 address that its address carries."""
    return (host,) if host.address is None else map(of_address, parts(host.address))


def _plain(address: Address) -> Address:
    plain = of_address(address).address
    assert plain is not None  # noqa: S101 (it is the host of an address)
    return plain


def _networks(addresses: Mapping[str, str], wanted: str) -> tuple[tuple[Network, str], ...]:
    return tuple(
        (configuration.read_network(text), text)
        for text, value in addresses.items()
        if value == wanted
    )


def _containing(networks: tuple[tuple[Network, str], ...], address: Address) -> str | None:
    for network, text in networks:
        if address.version == network.version and address in network:
            return text
    return None
