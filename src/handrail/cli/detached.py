"""Attaches to a detached workspace for one command, and detaches again."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from handrail.cli import error_output, options, variable_options
from handrail.cli.stdio import say
from handrail.errors import ExecutorTransportFailed, UsageError

if TYPE_CHECKING:
    from handrail.workspace.asynchronous import AsyncWorkspace
    from handrail.workspace.detached_store import DetachedRecord
    from handrail.workspace.process import AsyncProcess

_SECONDS = 10.0
#: Servers at these addresses are on this machine: one that refuses a connection is gone.
_HERE = ("unix:", "ws://127.", "ws://localhost", "ws://[::1]")


def add_id(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the id of a workspace or of one process in it."""
    parser.add_argument("id", metavar="ID", help="as `handrail run --detach` and `ps` print it")
    options.add_token(parser)
    variable_options.add_secret(parser)


def add_label(parser: argparse.ArgumentParser, text: str) -> None:
    """Add ``--label``."""
    parser.add_argument("--label", metavar="NAME=VALUE", action="append", default=[], help=text)


def labels(args: argparse.Namespace) -> dict[str, str]:
    """The labels that were given; a usage error for what is none."""
    found = {}
    for pair in args.label:
        name, mark, value = pair.partition("=")
        if not name or not mark:
            args.parser.error(f"--label is NAME=VALUE, such as task=42, not {pair!r}")
        found[name] = value
    return found


@asynccontextmanager
async def returned(
    args: argparse.Namespace, *, shows: bool = True
) -> AsyncIterator[AsyncWorkspace]:
    """Attach to a workspace, and detach from it afterwards.

    Raises UsageError for a command that ``shows`` output and was not given the secrets to mask.
    """
    from handrail.process.output.output_log import RETENTION_BYTES
    from handrail.workspace import detached_store
    from handrail.workspace.asynchronous import AsyncWorkspace

    workspace_id = args.id.partition("-")[0]
    revive_server(*(one.at for one in detached_store.known() if one.id == workspace_id))
    workspace = await AsyncWorkspace.attach(
        workspace_id,
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
        await leave(workspace)


def revive_server(*addresses: str) -> None:
    """Start this user's own server again, if it crashed and its keeper waits; raises UsageError."""
    from handrail.cli.commands import proxy
    from handrail.results import store
    from handrail.server.recovery import state_dir

    path = proxy.default_socket()
    place = f"{path}.state"
    if f"unix:{path}" in addresses and store.keeper_in(place) and not state_dir.in_use(place):
        try:
            proxy.start(path).close()
        except OSError as error:
            raise UsageError(str(error)) from None


def start_server(workspace_id: str) -> None:
    """Start this user's own server, if that is the one of this workspace; raises UsageError."""
    from handrail.cli.commands import proxy, run
    from handrail.workspace import detached_store

    own = f"unix:{proxy.default_socket()}"
    known = detached_store.known()
    if any(one.at == own and workspace_id.startswith(one.id) for one in known):
        run.here()


async def leave(workspace: AsyncWorkspace) -> None:
    """Detach again, or end the workspace when nothing is left in it.

    Where the record cannot be written the one before still leads to it.
    """
    if workspace.processes:
        try:
            await workspace.detach()
        except OSError as error:
            say(f"handrail: {error_output.sentence(error)}")
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
        raise UsageError(f"{wanted} has ended and is no longer kept; see `handrail ps --all`")
    names = ", ".join(process.id for process in processes)
    raise UsageError(f"{wanted} has several processes; name one of {names}")


def remove_row(record: DetachedRecord) -> None:
    """Remove the record of a workspace of which nothing is left; never raises."""
    from handrail.workspace import detached_store
    from handrail.workspace.detached_store import WorkspaceBusy

    with suppress(UsageError, WorkspaceBusy):
        claim = detached_store.claim(record.id)
        claim.remove()
        claim.release()


def short(at: str, error: ExecutorTransportFailed) -> str:
    """Why a server cannot be asked, in one line."""
    if "cannot connect" in error.detail:
        return f"no server answers at {at}"
    first = error.detail.partition("\n")[0] or "its server does not answer"
    return first.removeprefix("exec-server transport failed: ")


async def check_server(args: argparse.Namespace) -> None:
    """Raises ExecutorTransportFailed when no server answers at ``--at``."""
    from handrail.workspace.asynchronous import AsyncWorkspace

    token = options.token(args, args.at)
    async with AsyncWorkspace(
        "/", at=args.at, token=token, sandbox="off", request_timeout=_SECONDS
    ):
        pass


async def is_gone(
    args: argparse.Namespace, record: DetachedRecord, *, everywhere: bool
) -> str | None:
    """The reason why only stored results are left of a workspace; None: it may still be running.

    ``everywhere``: a server on another machine that does not answer is taken for gone, too.
    """
    from handrail.workspace import detach
    from handrail.workspace.asynchronous import AsyncWorkspace
    from handrail.workspace.detached_store import WorkspaceBusy

    try:
        workspace = await AsyncWorkspace.attach(
            record.id, token=options.token(args, record.at), request_timeout=_SECONDS
        )
    except WorkspaceBusy:
        return None
    except ExecutorTransportFailed as error:
        if detach.is_over(error):
            return "its session is over"
        near = record.at.startswith(_HERE) and "cannot connect" in str(error)
        return short(record.at, error) if near or everywhere else None
    over = all(process.stored for process in workspace.processes)
    await leave(workspace)
    return "nothing is left in it" if over else None
