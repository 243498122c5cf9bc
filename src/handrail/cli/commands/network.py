"""``handrail network``: what a managed network decides about connections."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from handrail.cli import error_output
from handrail.errors import PolicyError, UsageError

if TYPE_CHECKING:
    from handrail.network.check import Situation
    from handrail.network.decide import Target

#: Exit codes by verdict.
_CODES = {"allow": 0, "deny": 1, "ask": 2, "bad": 3, "unreachable": 1}
#: A profile or rules that cannot be used.
_UNUSABLE = 4
_PORTS = {"http": 80, "https": 443}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its sub-commands."""
    parser.description = "Say what a managed network decides about a connection."
    own = parser.add_subparsers(metavar="COMMAND", required=True)
    check = own.add_parser(
        "check",
        help="say whether a connection would be allowed, and by which rule",
        description="Decide on a connection as the proxy of a managed network does; nothing is"
        " dialled. A name that the lists allow is looked up, to judge its addresses.",
        epilog="Exit codes: 0 allow, 1 deny, 2 ask, 3 not a host and port, 4 the profile or rules"
        " cannot be used.",
        allow_abbrev=False,
    )
    add = check.add_argument
    add("target", metavar="URL|HOST:PORT", nargs="?", help="for example https://ok.example")
    add(
        "--profile",
        metavar="P",
        default="{}",
        help="the managed network as JSON, or @FILE that holds it (default: nothing is listed)",
    )
    add("--method", default="GET", help="of a plain HTTP request (default: %(default)s)")
    add("-r", "--rules", metavar="PATH", action="append", help="a rules file, may be repeated")
    add("--json", action="store_true", help="print the answer as JSON")
    add("--jsonl", action="store_true", help="read a case a line on stdin, answer a line each")
    check.set_defaults(run_below=run_check, parser=check)
    log = own.add_parser(
        "log",
        help="print what was decided about connections",
        description="Print the decisions of this user's servers on connections of managed"
        " processes, and how the connections ended.",
        allow_abbrev=False,
    )
    log.add_argument("-f", "--follow", action="store_true", help="go on with those to come")
    log.add_argument("--json", action="store_true", help="print JSON, one object a line")
    log.set_defaults(run_below=run_log, parser=log)


def run(args: argparse.Namespace) -> int:
    """Run the sub-command."""
    try:
        code: int = args.run_below(args)
    except (UsageError, PolicyError) as error:
        code = error_output.tell(error, _UNUSABLE)
    return code


def run_check(args: argparse.Namespace) -> int:
    """Decide on one target, or on every case of stdin."""
    if args.jsonl:
        return _answer_lines()
    if args.target is None:
        args.parser.error("a URL or HOST:PORT is needed")
    from handrail.network.check import verdict_of
    from handrail.network.hosts import BadHost

    situation = _situation(args)
    try:
        target = _target(args.target, args.method)
    except BadHost as error:
        _show(args.json, {"verdict": "bad", "reason": "bad_host", "message": str(error)})
        return _CODES["bad"]
    verdict = verdict_of(situation, target)
    shown: dict[str, object] = {
        "verdict": verdict.kind.value,
        "reason": verdict.reason,
        "source": verdict.source,
        "host": target.host.text,
        "port": target.port,
    }
    if verdict.rule is not None:
        shown["rule"] = verdict.rule
    if verdict.dial:
        shown["dial"] = [str(address) for address in verdict.dial]
    if verdict.message:
        shown["message"] = verdict.message
    _show(args.json, shown)
    return _CODES[verdict.kind.value]


def run_log(args: argparse.Namespace) -> int:
    """Print the log."""
    from handrail.cli.stdio import printable
    from handrail.network import log

    for line in log.read(log.default_path(), follow=args.follow):
        print(json.dumps(line) if args.json else printable(log.shown(line)), flush=args.follow)
    return 0


def _answer_lines() -> int:
    from handrail.network.check import answer

    for line in sys.stdin.buffer:
        if line.strip():
            print(json.dumps(_answered(answer, line)))
    return 0


def _answered(answer: object, line: bytes) -> object:
    try:
        case = json.loads(line)
        return answer(case)  # type: ignore[operator]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return {"verdict": "bad_case", "reason": f"{type(error).__name__}: {error}"}


def _show(as_json: bool, values: dict[str, object]) -> None:
    if as_json:
        print(json.dumps(values))
        return
    head = f"{values['verdict']} ({values['reason']})"
    if "host" in values:
        head += f" {values['host']}:{values['port']}"
    print(head)
    for name in ("rule", "message"):
        if name in values:
            print(f"  {name}: {values[name]}")
    if "dial" in values:
        print(f"  dial: {', '.join(values['dial'])}")  # type: ignore[arg-type]


def _target(text: str, method: str) -> Target:
    from handrail.network import hosts
    from handrail.network.decide import CONNECT, HTTP, Target

    scheme, separator, rest = text.partition("://")
    if separator and scheme.lower() not in _PORTS:
        raise hosts.BadHost(f"{scheme}: is no scheme that goes through the proxy: http or https")
    authority = rest.partition("/")[0].partition("?")[0] if separator else text
    name, port = hosts.split_authority(authority)
    if port is None:
        if not separator:
            raise hosts.BadHost("give a URL, or a host with its port: HOST:PORT")
        port = _PORTS[scheme.lower()]
    plain = scheme.lower() == "http" and separator
    host = hosts.canonical(name)
    return Target(HTTP, host, port, method) if plain else Target(CONNECT, host, port)


def _situation(args: argparse.Namespace) -> Situation:
    from handrail.network.check import Situation, read_config
    from handrail.network.config import ConfigError
    from handrail.network.decide import Policy
    from handrail.network.policy_rules import of_policy

    try:
        network = read_config(_profile(args.profile))
    except ConfigError as error:
        raise UsageError(f"the managed network cannot be used: {error}") from None
    saved = []
    if args.rules:
        from handrail.policy.load import load_files

        saved = of_policy(load_files(args.rules))
    from handrail.network.machine import Names, own_addresses

    return Situation(Policy(network, saved), can_ask=True, own=own_addresses(), names=Names())


def _profile(text: str) -> dict[str, object]:
    if text.startswith("@"):
        try:
            with open(text[1:], encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the profile {text[1:]} cannot be read: {error}") from None
    try:
        values = json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"the profile is no JSON: {error}; give the JSON itself, or @FILE for a file that"
            " holds it"
        ) from None
    if not isinstance(values, dict):
        raise UsageError('the profile is a JSON object: {"domains": {"ok.example": "allow"}}')
    network = values.get("network", values)
    network = network if isinstance(network, dict) else values
    _refuse_unknown(network)
    return network


def _refuse_unknown(network: dict[str, object]) -> None:
    """Refuse members that would not count: their author believes that they do."""
    from handrail.cli.suggestion import nearest
    from handrail.network.config import member_names

    known = member_names()
    for name in network:
        if name not in known:
            meant = nearest(name, known)
            hint = f"did you mean `{meant}`?" if meant else f"there are {', '.join(sorted(known))}"
            raise UsageError(f"the profile has a member `{name}`, which is not known; {hint}")
