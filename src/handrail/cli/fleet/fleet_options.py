"""Options of ``handrail fleet`` that say which fleet is meant, and what it is made of."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from handrail import units
from handrail.cli import options
from handrail.errors import UsageError

if TYPE_CHECKING:
    from handrail.fleet import Fleet

_HOSTS = ("ws://", "wss://", "ssh://", "unix:", "stdio:")
_SHARE = "cpus=N,memory=SIZE"


def add_fleet(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a fleet."""
    parser.add_argument(
        "--on",
        metavar="WHERE",
        nargs="+",
        action="extend",
        help="ray:auto (default), ray:HOST:PORT, ray://HOST:PORT, or hosts: ws://, wss://, ssh://",
    )
    parser.add_argument("--name", metavar="NAME", help="the fleet; not needed with hosts")
    options.add_token(parser)
    options.add_json(parser)


def add_make(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``up``: what a fleet is made of."""
    add = parser.add_argument
    add("--share", metavar=_SHARE, help="what to use of each node (default: what is free on it)")
    add(
        "--shares",
        metavar="N|LEAST:MOST",
        help="so many shares, wherever Ray places them (default: one on each matching node)",
    )
    add(
        "--nodes",
        metavar="N",
        type=options.number_from(1),
        help="wait until so many nodes are ready (default: 1)",
    )
    add("--timeout", metavar="S", type=options.seconds, default=60.0, help="wait so long for them")
    add(
        "--label",
        metavar="NAME=VALUE",
        action="append",
        help="only nodes with this label; may be given again",
    )
    add(
        "--quota",
        metavar="TENANT:WHAT=N",
        action="append",
        help="what a tenant may have: workspaces, cpus, memory; may be given again",
    )
    add("--state-dir", metavar="DIR", help="directory of the nodes for workspaces and templates")
    add(
        "--min-free",
        metavar="SIZE",
        type=options.size,
        help="bytes of a node's disk that stay free (default: 1GiB)",
    )
    add(
        "--tls",
        choices=("auto", "on", "off"),
        default="auto",
        help="encrypt the connections to nodes (default: beyond loopback)",
    )


def where(args: argparse.Namespace) -> str | list[str]:
    """Parse ``--on``: Ray's address, or a list of hosts.  Raises UsageError."""
    given: list[str] = args.on or ["ray:auto"]
    if all(one.startswith(_HOSTS) for one in given):
        return given
    if len(given) > 1 or not given[0].startswith("ray:"):
        raise UsageError(
            "--on is ray:auto, ray:HOST:PORT or ray://HOST:PORT, or one or more hosts by ws://,"
            f" wss:// or ssh://, not {' '.join(given)}"
        )
    if args.name is None:
        raise UsageError(
            "say which fleet is meant: --name NAME for one of a Ray cluster, or --on with hosts by"
            " ws://, wss:// or ssh://"
        )
    return given[0]


async def joined(args: argparse.Namespace, **more: Any) -> Fleet:
    """A handle to the fleet of these options; raises FleetUnknown, UsageError."""
    from handrail.fleet import Fleet

    place = where(args)
    if args.token_file is not None or not isinstance(place, str):
        more["token"] = options.token(args)
    if args.name is not None and isinstance(place, str):
        return await Fleet.attach(args.name, place, **more)
    fleet = Fleet(place, name=args.name, **more)
    await fleet.__aenter__()
    return fleet


def made(args: argparse.Namespace) -> Fleet:
    """The fleet that ``up`` starts or joins; raises UsageError."""
    from handrail.fleet import Fleet

    place = where(args)
    if not isinstance(place, str):
        raise UsageError(
            "hosts are up when `handrail serve --workspaces DIR` runs on them, by whatever starts"
            " services there; `fleet up` is for Ray"
        )
    given = {
        "share": None if args.share is None else share(args.share),
        "shares": None if args.shares is None else shares(args.shares),
        "labels": labels(args.label) or None,
        "quotas": quotas(args.quota or []) or None,
        "state_dir": args.state_dir,
        "min_free": args.min_free,
    }
    told: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return Fleet(place, name=args.name, tls=args.tls, **told)


def share(text: str) -> dict[str, float | str]:
    """``cpus=8,memory=16GiB`` as the API has it; raises UsageError."""
    found: dict[str, float | str] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name == "memory" and name not in found:
            units.parse_size(value)
            found[name] = value
        elif name == "cpus" and name not in found:
            found[name] = _amount(value, f"--share is {_SHARE}, not {text!r}")
        else:
            raise UsageError(f"--share is {_SHARE}, each at most once, not {text!r}")
    return found


def shares(text: str) -> int | tuple[int, int] | str:
    """``4`` or ``2:50``; raises UsageError."""
    if text == "nodes":
        return text
    least, separator, most = text.partition(":")
    numbers = (least, most) if separator else (least,)
    if not all(one.isdecimal() for one in numbers) or (separator and int(least) > int(most)):
        raise UsageError(f"--shares is a number, or LEAST:MOST such as 2:50, not {text!r}")
    return (int(least), int(most)) if separator else int(least)


def quotas(given: list[str]) -> dict[str, dict[str, float | str]]:
    """``TENANT:WHAT=N``, several by commas or options; raises UsageError."""
    found: dict[str, dict[str, float | str]] = {}
    for text in given:
        form = f"--quota is TENANT:WHAT=N such as lab:workspaces=9,memory=1TiB, not {text!r}"
        tenant, _, rest = text.partition(":")
        if not tenant or not rest:
            raise UsageError(form)
        for part in rest.split(","):
            what, _, value = part.partition("=")
            if what not in ("workspaces", "cpus", "memory"):
                raise UsageError(form)
            if what == "memory":
                units.parse_size(value)
            amount = value if what == "memory" else _amount(value, form)
            found.setdefault(tenant, {})[what] = amount
    return found


def labels(given: list[str] | None) -> dict[str, str]:
    """Labels by name; raises UsageError."""
    found = {}
    for text in given or []:
        name, separator, value = text.partition("=")
        if not name or not separator:
            raise UsageError(f"a label is NAME=VALUE, not {text!r}")
        found[name] = value
    return found


def _amount(text: str, form: str) -> float:
    number = text.replace(".", "", 1)
    if not number.isascii() or not number.isdecimal():
        raise UsageError(form)
    return float(text)
