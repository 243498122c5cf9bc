"""Runs the command that makes a workspace of a warm pool ready, once in each, sandboxed.

It may write in the workspace and its directory for temporary files, and read the rest of the
machine, as a command of that workspace may; it has no network.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from handrail.errors import HandrailError, RpcError
from handrail.process.env_policy import BuiltEnvironments, Inherit, without_secrets
from handrail.process.spec import ProcessSpec
from handrail.process.table import ProcessTable
from handrail.protocol.envelope import INVALID_PARAMS

if TYPE_CHECKING:
    from handrail.process.child import Child
    from handrail.server.app import Server

#: Seconds that it may take.
_SECONDS = 1800.0
#: Seconds between two looks at whether it has ended, besides those it is told of.
_LOOK_SECONDS = 60.0


async def run(
    server: Server, environments: BuiltEnvironments, argv: list[str], root: str, temporary: str
) -> None:
    """Run it to its end; raises RpcError unless it exits with 0."""
    from handrail.sandbox.profile import Access, Entry, Intent

    if not argv or not all(argv[:1]):
        raise RpcError(INVALID_PARAMS, "`prepare` must name a program")
    home, tmp = os.fsencode(root), os.fsencode(temporary)
    spec = ProcessSpec(
        argv=tuple(word.encode("utf-8", "surrogateescape") for word in argv),
        cwd=home,
        env=environments.build(without_secrets(Inherit.ALL), {"TMPDIR": temporary}),
        timeout=_SECONDS,
    )
    entries = (
        Entry(Access.READ, path=b"/"),
        Entry(Access.WRITE, path=home),
        Entry(Access.WRITE, path=tmp),
    )
    intent = Intent(entries=entries, workspace_roots=(home,), cwd=home)
    table = ProcessTable(server.launcher, server.loop, retention=60.0, observer=None, owner=None)
    try:
        made = server.sandbox.sandboxed(spec, intent)
        child = await table.start("prepare", made.spec(spec), lambda: None)
        await _closed(child)
        if child.exit is None or child.exit.code != 0:
            raise RpcError(
                INVALID_PARAMS,
                f"`prepare` ended with {_how(child)}; a pool has only workspaces in which it"
                " exits with 0: try it in a workspace of that template",
                {"what": "prepare"},
            )
    except RpcError:
        raise
    except HandrailError as error:
        text = f"`prepare` cannot be run: {error}"
        raise RpcError(INVALID_PARAMS, text, {"what": "prepare"}) from None
    finally:
        await table.end_all()


async def _closed(child: Child) -> None:
    while not child.closed:
        await child.changed(_LOOK_SECONDS)


def _how(child: Child) -> str:
    if child.exit is None:
        return "no exit status"
    return f"code {child.exit.code} ({child.exit.kind.value})"
