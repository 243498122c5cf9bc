"""What would happen to a connection: the decision of the porter, without dialling or looking up.

`answer` takes one case as JSON (``handrail network check --jsonl``): a configuration, perhaps
rules, memory and names with their addresses, and either a request or the bytes of a head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import cast

from handrail.network import config, decide, heads, hosts
from handrail.network.config import ConfigError, ManagedNetwork
from handrail.network.decide import Kind, Memory, Policy, Target, Verdict
from handrail.network.hosts import Address, BadHost
from handrail.network.policy_rules import of_policy
from handrail.policy.language import RulesFileError
from handrail.policy.load import parse_rules
from handrail.transport.http_head import HeadError

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything a decision depends on, besides the target."""

    policy: Policy
    memory: Memory = field(default_factory=Memory)
    can_ask: bool = False
    #: The answer: None nothing yet, True yes, False nothing that counts, a text why not.
    said: bool | str | None = None
    own: frozenset[Address] = frozenset()
    #: Name to addresses; a name that is missing does not exist.
    names: Mapping[str, Sequence[Address]] = field(default_factory=dict)


def verdict_of(situation: Situation, target: Target) -> Verdict:
    """Decide on a target to the end, with the names of the situation as the resolver."""
    verdict = before_look_up(situation, target)
    if verdict.kind is not Kind.ALLOW:
        return verdict
    found = decide.known_addresses(target.host)
    if found is None:
        found = tuple(situation.names.get(target.host.text, ()))
    return decide.judge_addresses(situation.policy, target, verdict, found, situation.own)


def before_look_up(situation: Situation, target: Target) -> Verdict:
    """Decide on a target as far as that goes without its addresses."""
    policy = situation.policy
    verdict = decide.judge(
        policy, situation.memory, target, can_ask=situation.can_ask, own=situation.own
    )
    if verdict.kind is not Kind.ASK or situation.said is None:
        return verdict
    if situation.said is True:
        return decide.approved(policy, target)
    return decide.refused(policy, target, situation.said)


def answer(case: Json) -> Json:
    """The answer to one case of ``--jsonl``."""
    try:
        situation = _situation(case)
    except ConfigError as error:
        return {"verdict": "config_error", "reason": str(error)}
    except (RulesFileError, BadHost) as error:
        return {"verdict": "rule_error", "reason": str(error)}
    if "raw" in case:
        return _answer_head(situation, case)
    request = cast("Json", case["request"])
    try:
        target = _target(request)
    except BadHost:
        return {"verdict": "bad", "reason": decide.BAD_HOST, "source": decide.STATE}
    verdict = verdict_of(situation, target)
    said: Json = {
        "verdict": verdict.kind.value,
        "reason": verdict.reason,
        "source": verdict.source,
        "host": target.host.text,
    }
    if verdict.dial:
        said["dial"] = [str(address) for address in verdict.dial]
    return said


def _answer_head(situation: Situation, case: Json) -> Json:
    """The status that a head gets; an allowed one counts as answered with 200."""
    reader = heads.ProxyHeadReader()
    raw = str(case["raw"])
    try:
        head = reader.feed(raw.encode("latin-1" if _is_latin(raw) else "utf-8"))
        if head is None:
            return {"status": 408}
        request = heads.parse_request(head)
    except HeadError as error:
        return {"status": error.status, "reason": error.sentence}
    # A case that names no addresses is about the head alone.
    judge = verdict_of if "resolve" in case else before_look_up
    verdict = judge(situation, request.target)
    status = {Kind.ALLOW: 200, Kind.UNREACHABLE: 502}.get(verdict.kind, 403)
    return {"status": status, "reason": verdict.reason}


def _is_latin(text: str) -> bool:
    return all(ord(char) < 256 for char in text)


def _target(request: Json) -> Target:
    protocol, method = str(request["protocol"]), request.get("method")
    host = hosts.canonical(str(request["host"]))
    port = hosts.checked_port(request.get("port"))
    return Target(protocol, host, port, None if method is None else str(method))


def _situation(case: Json) -> Situation:
    network = read_config(cast("Json", case.get("config") or {}))
    text = "\n".join(cast("Sequence[str]", case.get("rules") or ()))
    saved = of_policy(parse_rules(text, "rules")) if text else []
    session = cast("dict[str, list[list[object]]]", case.get("session") or {})
    said = case.get("answer")
    return Situation(
        Policy(network, saved),
        Memory(_keys(session.get("approved")), _keys(session.get("denied"))),
        bool(case.get("decider")),
        _said(said),
        frozenset(_addresses(case.get("own"))),
        {
            hosts.canonical(name).text: _addresses(found)
            for name, found in cast("Json", case.get("resolve") or {}).items()
        },
    )


def read_config(values: Json) -> ManagedNetwork:
    """A configuration in the names of the wire or in ours; raises ConfigError."""
    if any("_" in name for name in values):
        return config.from_profile(values)
    return config.from_wire(values, ours=True)


def _said(said: object) -> bool | str | None:
    if said is None:
        return None
    if said == "allow" or (isinstance(said, dict) and said.get("type") == "allow"):
        return True
    if isinstance(said, dict) and said.get("type", "deny") in ("deny", "ask"):
        return str(said.get("reason") or "")
    return "" if said in ("deny", "ask") else False


def _keys(pairs: list[list[object]] | None) -> set[tuple[str, int]]:
    return {
        (hosts.canonical(str(host)).text, hosts.checked_port(port)) for host, port in pairs or ()
    }


def _addresses(found: object) -> list[Address]:
    return [ip_address(one) for one in found] if isinstance(found, list) else []
