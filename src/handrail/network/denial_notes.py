"""Sentences for a model about the hosts that a command was refused.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from handrail.network import decide, hosts
from handrail.network import refusal_replies as replies
from handrail.network.config import ManagedNetwork

#: So many hosts are named; the rest is counted.
MOST = 5
#: No rule has refused these.
_FAILURES = frozenset((decide.DNS_FAILED, decide.UNREACHABLE))
_NO_PROXY = "this program does not use the proxy of the sandbox (HTTPS_PROXY, ALL_PROXY)"

Target = tuple[str, int]


def sentences(
    denials: Iterable[Mapping[str, object]],
    config: ManagedNetwork,
    refused: Mapping[Target, str],
) -> list[str]:
    """One sentence for each host and port, at most five, then how many there are beyond them.

    ``denials`` are the records of a result, ``refused`` what an approver said no to, with its text.
    """
    policy = decide.Policy(config) if config.reasons else None
    found: dict[tuple[str, int | None], str] = {}
    omitted = 0
    for denial in sorted(_of_hosts(denials), key=_by_source):
        omitted += _number(denial.get("omitted")) or 0
        host, port = denial.get("host"), _number(denial.get("port"))
        if not isinstance(host, str) or denial.get("reason") in _FAILURES:
            continue
        named = {name for name, _ in found}
        if (host, port) in found or (port is None and host in named):
            continue
        found[host, port] = _sentence(host, port, denial, refused, policy)
    listed = list(found.values())
    more = max(0, len(listed) - MOST) + omitted
    return [*listed[:MOST], *([f".. and {more} more"] if more else [])]


def _of_hosts(denials: Iterable[Mapping[str, object]]) -> list[Mapping[str, object]]:
    return [denial for denial in denials if denial.get("kind") == "network"]


def _by_source(denial: Mapping[str, object]) -> bool:
    """The proxy's records first: they know more of a host than the others."""
    return denial.get("source") != "proxy"


def _sentence(
    host: str,
    port: int | None,
    denial: Mapping[str, object],
    refused: Mapping[Target, str],
    policy: decide.Policy | None,
) -> str:
    place = str(denial.get("path") or host)
    if port is None or denial.get("source") != "proxy":
        return f'Network access to "{place}" was blocked: {_NO_PROXY}.'
    reason = str(denial.get("reason") or "")
    said = refused.get((host, port))
    text = None
    if said:
        text = f"not approved: {said}"
    elif said is None and policy is not None:
        target = decide.Target(
            str(denial.get("protocol") or decide.CONNECT), hosts.canonical(host), port, None
        )
        text = policy.message(target)
    return replies.sentence(place, reason, by_answer=said is not None, text=text)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
