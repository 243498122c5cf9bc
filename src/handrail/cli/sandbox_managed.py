"""``handrail sandbox --network managed``: the command under its permissions, by way of a keeper.

A managed network needs what ``handrail run`` has and the plain sandbox does without: a keeper, and
a porter that carries the connections.  They end with the command.
"""

from __future__ import annotations

import os
import signal
from argparse import Namespace
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from handrail.cli import network_options, options
from handrail.cli.commands import run as run_command
from handrail.cli.remote_signals import SignalRelay
from handrail.executor.base import ExecSession, SpawnRequest, WrappedExecutor
from handrail.executor.local import LocalExecutor
from handrail.process import ENDING_SIGNALS

if TYPE_CHECKING:
    from handrail.network.settings import Managed
    from handrail.sandbox.profile import Intent


class _Permitted(WrappedExecutor):
    """Starts commands under the permissions that were typed, with our variables."""

    def __init__(self, intent: Intent) -> None:
        super().__init__(LocalExecutor())
        self._intent = intent

    async def spawn(self, request: SpawnRequest) -> ExecSession:
        env = dict(os.environ)
        return await super().spawn(replace(request, sandbox=self._intent, env=env, env_policy=None))


def run(intent: Intent, command: list[str], cwd: str, given: dict[str, list[str]]) -> int:
    """Run it; its exit code.  Raises UsageError for lists that make no sense."""
    args = network_options.from_words(given)
    args.network = network_options.read(args, user_rules=True)
    args.tty, args.at, args.timeout, args.limits = None, None, None, None
    args.json = args.detach = args.interactive = False
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)  # until they are handled
    work = partial(_run, intent, command, cwd, args)
    return options.to_end(run_command.signalled(work))


async def _run(
    intent: Intent, command: list[str], cwd: str, args: Namespace, _: SignalRelay
) -> int:
    from handrail.workspace.asynchronous import AsyncWorkspace
    from handrail.workspace.profile import Profile

    network: Managed = args.network
    args.approver = run_command.approver(args)
    executor = _Permitted(intent)
    try:
        async with AsyncWorkspace(
            cwd,
            executor=executor,
            sandbox=Profile(write=(), temporary=False),
            network=network,
            approver=args.approver,
        ) as workspace:
            return await run_command.stream(args, workspace, command)
    finally:
        await executor.close()
