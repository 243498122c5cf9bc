"""``handrail upgrade``: replace a running server by the installed version."""

from __future__ import annotations

import argparse
import os
import select
import signal
import time

from handrail.cli import error_output, options
from handrail.errors import HandrailError, UsageError

_SECONDS = 60.0
_PAUSE = 0.02


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Start the installed version beside a running server and hand its processes"
        " over; clients have to reconnect and resume their sessions."
    )
    parser.add_argument(
        "--state-dir", metavar="DIR", help="the state directory of that server, if it was given one"
    )
    parser.add_argument("--at", metavar="ADDRESS", help="the server, if several are running")
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Request the upgrade, and wait until the new server has taken over."""
    try:
        address, before, after = _upgrade(args.at, args.state_dir)
    except HandrailError as error:
        return error_output.tell(error, 1)
    if args.json:
        options.print_json({"address": address, "before": before, "after": after})
    else:
        print(f"{address}: server {before} has handed over to server {after}")
    return 0


def _upgrade(address: str | None, path: str | None) -> tuple[str, int, int]:
    """Address of the server, and the pids before and after."""
    from handrail.server.recovery import running_servers, state_dir, upgrade_server

    chosen = running_servers.choose(address, path)
    address, path = chosen.address, chosen.state_dir
    before = state_dir.holder(path)
    missing = UsageError(f"no server is running on {path}; start one with `handrail serve`")
    if not before:
        raise missing
    try:
        server = os.pidfd_open(before)
    except ProcessLookupError:
        raise missing from None
    try:
        upgrade_server.refusal(path)  # drop an old refusal
        signal.pidfd_send_signal(server, signal.SIGUSR2)
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            # In this order: the old server exits when it has handed over.
            ended = bool(select.select([server], [], [], _PAUSE)[0])
            after = state_dir.holder(path)
            if after not in (0, before):
                return address, before, after
            reason = upgrade_server.refusal(path)
            if reason is not None:
                raise UsageError(f"server {before} did not hand over and keeps running: {reason}")
            if ended and not state_dir.in_use(path):
                raise UsageError(
                    f"server {before} ended before it had handed over, and no other has taken its"
                    " place; its processes wait for the next: start it with `handrail serve"
                    f" --state-dir {path}`"
                )
            if ended:
                time.sleep(_PAUSE)
    except ProcessLookupError:
        raise missing from None
    finally:
        os.close(server)
    raise UsageError(f"server {before} has not handed over; look into its log")
