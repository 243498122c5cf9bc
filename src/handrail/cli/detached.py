"""Attaches to a detached workspace for one command, and detaches again."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from handrail.cli import options, variable_options
from handrail.errors import UsageError

if TYPE_CHECKING:
    from handrail.workspace.asynchronous import AsyncWorkspace
    from handrail.workspace.process import AsyncProcess


def add_id(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the id of a workspace or of one process in it."""
    parser.add_argument("id", metavar="ID", help="as `handrail run --detach` and `ps` print it")
    options.add_token(parser)
    variable_options.add_secret(parser)


@asynccontextmanager
async def returned(
    args: argparse.Namespace, *, looks: bool = False, shows: bool = True
) -> AsyncIterator[AsyncWorkspace]:
    """Attach to a workspace, and detach from it afterwards.

    Raises UsageError for a command that ``shows`` output and was not given the secrets to mask.

    It is ended when nothing runs in it any more or, for a command that only ``looks``, when its
    server has forgotten all of it.
    """
    from handrail.process.output.output_log import RETENTION_BYTES
    from handrail.workspace.asynchronous import AsyncWorkspace

    workspace = await AsyncWorkspace.attach(
        args.id.partition("-")[0],
        token=options.token(args),
        secrets=variable_options.secrets(args.secret),
        keep_output=RETENTION_BYTES,  # a process waits for our reader, as for a pipe
    )
    if shows and (missing := workspace.variables.secrets.missing):
        await workspace.detach()
        named = " ".join(f"--secret {name}" for name in missing)
        raise UsageError(f"the output of {args.id} may show its secrets; mask them by {named}")
    try:
        yield workspace
    finally:
        await leave(workspace, looks=looks)


async def leave(workspace: AsyncWorkspace, *, looks: bool) -> None:
    """Detach again, or end the workspace when nothing is left in it."""
    if any(looks or process.running for process in workspace.processes):
        await workspace.detach()
    else:
        await workspace.close()


def find(workspace: AsyncWorkspace, wanted: str) -> AsyncProcess:
    """The process that an id means; raises UsageError when that is not clear."""
    processes = workspace.processes
    if "-" in wanted:
        processes = [process for process in processes if process.id == wanted]
    if len(processes) == 1:
        return processes[0]
    if not processes:
        raise UsageError(f"{wanted} has ended and is no longer kept; see `handrail ps`")
    names = ", ".join(process.id for process in processes)
    raise UsageError(f"{wanted} has several processes; name one of {names}")
