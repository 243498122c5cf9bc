"""What a rules file may say: the three statements, checked and normalised.

Pure: ``load.py`` passes plain values and gets rules or ``RuleError``, and adds the position in the
file.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from handrail.errors import PolicyError
from handrail.policy.rules import (
    Decision,
    HostExecutable,
    NetworkRule,
    PrefixRule,
    Sandbox,
    Source,
    normal_path,
)

DECISIONS = {decision.word: decision for decision in Decision}
SANDBOXES = {choice.value: choice for choice in Sandbox}
#: Network rules were written with «deny» before they joined this language.
NETWORK_DECISIONS = {**DECISIONS, "deny": Decision.FORBIDDEN}
#: Spelling in a file -> protocol.  The two ``connect`` forms are names that proxies use.
PROTOCOLS = {
    "http": "http",
    "https": "https",
    "https_connect": "https",
    "http-connect": "https",
    "socks5_tcp": "socks5_tcp",
    "socks5_udp": "socks5_udp",
}


class RuleError(PolicyError):
    """A rule that cannot be used; the sentence says why."""


def prefix_rules(
    pattern: Sequence[Sequence[str]],
    decision: str = "allow",
    justification: str | None = None,
    sandbox: str | None = None,
    source: Source | None = None,
) -> tuple[PrefixRule, ...]:
    """The rules of one ``prefix_rule``: one for each alternative of the first token."""
    if not pattern:
        raise RuleError("the pattern is empty: it has to name at least a program")
    if not all(pattern):
        raise RuleError("a list of alternatives in the pattern is empty")
    chosen = _decision(decision, DECISIONS)
    _check_justification(justification)
    if sandbox is not None and sandbox not in SANDBOXES:
        raise RuleError(f'{sandbox!r} is no sandbox setting: "keep" or "off"')
    if sandbox == "off" and chosen is Decision.FORBIDDEN:
        raise RuleError('sandbox="off" makes no sense for a command that may not run')
    rest = tuple(tuple(choices) for choices in pattern[1:])
    return tuple(
        PrefixRule(
            first,
            rest,
            chosen,
            justification,
            None if sandbox is None else SANDBOXES[sandbox],
            source or Source(),
        )
        for first in pattern[0]
    )


def host_executable(
    name: str, paths: Sequence[str], source: Source | None = None
) -> HostExecutable:
    """Which absolute paths may stand for a bare name; duplicates are dropped."""
    if name in ("", ".", "..") or "/" in name:
        raise RuleError(f"host_executable needs a bare program name, not {name!r}")
    kept: dict[str, None] = {}
    for path in paths:
        if not path.startswith("/"):
            raise RuleError(f"host_executable needs absolute paths, not {path!r}")
        clean = normal_path(path)
        if posixpath.basename(clean) != name:
            raise RuleError(f"the host_executable path {path!r} does not end in {name!r}")
        kept[clean] = None
    return HostExecutable(name, tuple(kept), source or Source())


def network_rule(
    host: str,
    protocol: str,
    decision: str,
    justification: str | None = None,
    source: Source | None = None,
    port: int | None = None,
) -> NetworkRule:
    """What to do with connections to one host, on one port or on all."""
    if protocol not in PROTOCOLS:
        known = ", ".join(dict.fromkeys(PROTOCOLS.values()))
        raise RuleError(f"network_rule knows the protocols {known}, not {protocol!r}")
    chosen = _decision(decision, NETWORK_DECISIONS)
    _check_justification(justification)
    if port is not None and not 1 <= port <= 65535:
        raise RuleError(f"{port} is no port: network_rule takes 1 to 65535, or none for all")
    return NetworkRule(
        normal_host(host), PROTOCOLS[protocol], chosen, justification, source or Source(), port
    )


def normal_host(text: str) -> str:
    """A host name or IP literal: trimmed, lower case, without port, brackets and final dots."""
    host = text.strip()
    if any(mark in host for mark in "/?#"):
        raise RuleError(f"{text!r} is no host: give it without scheme, path and query")
    if host.startswith("["):
        inside, bracket, after = host[1:].partition("]")
        if not bracket:
            raise RuleError(f"{text!r} lacks the bracket that closes an IPv6 address")
        if after and not (after.startswith(":") and _is_port(after[1:])):
            raise RuleError(f"{text!r}: only a port may follow the bracket")
        host = inside
    elif host.count(":") == 1:
        name, _, port = host.partition(":")
        if name and _is_port(port):
            host = name
    host = host.rstrip(".").strip().lower()
    if not host:
        raise RuleError("network_rule needs a host, this one is empty")
    if "*" in host:
        raise RuleError(f"{text!r}: network_rule names one host, it takes no wildcards")
    if any(char.isspace() for char in host):
        raise RuleError(f"{text!r}: a host has no white space inside")
    return host


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _decision(word: str, known: dict[str, Decision]) -> Decision:
    if word not in known:
        raise RuleError(f"{word!r} is no decision: {', '.join(known)}")
    return known[word]


def _check_justification(text: str | None) -> None:
    if text is not None and not text.strip():
        raise RuleError("the justification is blank: leave it out or give a reason")
