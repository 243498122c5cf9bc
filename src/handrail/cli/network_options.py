"""The network of commands on the command line: ``--network`` and the hosts of a managed one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from handrail.cli.run_fast import NETWORKS
from handrail.errors import UsageError

if TYPE_CHECKING:
    from handrail.network.settings import Network

_MANAGED = "managed"
_ASK = "ask about this host, although others like it are allowed"
#: Destination -> option, option of a command that listens, metavar, help.
_LISTS = {
    "allow_hosts": (
        "--allow-host",
        "--network-allow",
        "PATTERN",
        "let it reach this host, as in '*.example.org:443'",
    ),
    "deny_hosts": ("--deny-host", "--network-deny", "PATTERN", "never let it reach this host"),
    "ask_hosts": ("--ask-host", "--network-ask", "PATTERN", _ASK),
    "presets": (
        "--allow-preset",
        "--network-preset",
        "NAME",
        "let it reach the hosts of a package index, as in pypi",
    ),
}


def add_network(parser: argparse.ArgumentParser, *, listens: bool = False) -> None:
    """Describe the options; ``listens``: for this command ``--allow-host`` is a Host header."""
    add = parser.add_argument
    add(
        "--network",
        choices=NETWORKS,
        nargs="?",
        const="open",
        help="the network of sandboxed commands: off, open, or managed by the lists of hosts below"
        " (default: off; --network alone: open)",
    )
    for dest, (option, of_listener, metavar, text) in _LISTS.items():
        add(
            of_listener if listens else option,
            dest=dest,
            action="append",
            default=[],
            metavar=metavar,
            help=f"with --network managed: {text}; may be repeated",
        )
    add(
        "--unlisted",
        choices=("ask", "deny"),
        help="with --network managed: hosts on no list are asked about or refused (default: ask)",
    )
    add(
        "--on-network-denial",
        choices=("report", "end"),
        help="with --network managed: whether a refused host ends the command (default: report)",
    )


#: The options of a managed network, each with a value.
VALUED = (*(row[0] for row in _LISTS.values()), "--unlisted", "--on-network-denial")


def from_words(given: dict[str, list[str]]) -> argparse.Namespace:
    """The options as ``foreground_command.read_options`` gives them; raises UsageError."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    add_network(parser)
    words = [word for name in VALUED for value in given.get(name, ()) for word in (name, value)]
    try:
        return parser.parse_args(["--network", _MANAGED, *words])
    except argparse.ArgumentError as error:
        raise UsageError(str(error)) from None


def read(args: argparse.Namespace, *, user_rules: bool = False) -> Network | None:
    """Read the options of the network; None: there are none.  Raises UsageError.

    ``user_rules``: the network rules of the user's own files count, and «always» is added there.
    """
    from handrail.network.settings import Managed, checked

    managed = args.network == _MANAGED
    given = {name: getattr(args, name) for name in _LISTS}
    given |= {"unlisted": args.unlisted, "on_network_denial": args.on_network_denial}
    if not managed:
        if any(given.values()):
            raise UsageError(
                "lists of hosts are for --network managed; add that, or leave them out"
            )
        return None if args.network is None else checked(args.network)
    rules, rules_file = _user_rules() if user_rules else ((), None)
    return Managed(
        allow=args.allow_hosts,
        deny=args.deny_hosts,
        ask=args.ask_hosts,
        presets=args.presets,
        unlisted=args.unlisted or "ask",
        on_network_denial=args.on_network_denial or "report",
        rules=rules,
        rules_file=rules_file,
    )


def _user_rules() -> tuple[tuple[str, ...], str]:
    import os

    from handrail.policy.layers import DEFAULT_FILE, user_folder

    folder = user_folder()
    return ((folder,) if os.path.isdir(folder) else ()), os.path.join(folder, DEFAULT_FILE)
