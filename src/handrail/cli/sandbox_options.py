"""``--sandbox`` and what changes it: ``--writable``, ``--read-only``, ``--network``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from handrail.cli import network_options
from handrail.errors import UsageError
from handrail.sandbox.profile import PEERS_OFF

if TYPE_CHECKING:
    from handrail.workspace.profile import Profile, Sandbox

_NAMES = ("workspace-write", "read-only", "off")


def add_sandbox(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add(
        "--sandbox",
        choices=(*_NAMES, PEERS_OFF),
        metavar="{" + ",".join(_NAMES) + "}",
        help="what it may touch (default: workspace-write)",
    )
    add("--read-only", action="store_true", help="the same as --sandbox read-only")
    add(
        "--writable",
        metavar="PATH",
        action="append",
        default=[],
        help="one more path that may be written, such as .git; may be given again",
    )
    network_options.add_network(parser)


def profile(args: argparse.Namespace) -> Sandbox:
    """Make the profile of the options; raises UsageError for those that contradict each other."""
    if args.read_only and args.sandbox not in (None, "read-only"):
        raise UsageError(f"--read-only and --sandbox {args.sandbox} contradict each other")
    name = "read-only" if args.read_only else args.sandbox or "workspace-write"
    if name in ("off", PEERS_OFF):
        if args.network or args.writable:
            raise UsageError(f"without a sandbox (--sandbox {name}) there is nothing to widen")
        return "off"
    if not args.writable:
        return "read-only" if name == "read-only" else "workspace-write"
    return _widened(args, name)


def _widened(args: argparse.Namespace, name: str) -> Profile:
    from handrail.workspace.profile import Profile

    own = () if name == "read-only" else (".",)
    return Profile(write=(*own, *args.writable), temporary=name != "read-only")
