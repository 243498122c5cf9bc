"""Two kinds of commands to their end: a shell's, and a patch as a program of its own.

A backend turns the parameters of a request into what is started.  The patch's is our own patch
tool with the patch on its standard input, in the patch's directory and with an empty environment;
nobody watches its output come.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import Protocol

from handrail import version
from handrail.errors import Forbidden
from handrail.executor.base import Executor
from handrail.orchestrator.approval_cache import FileKey
from handrail.orchestrator.approvals import Kind
from handrail.orchestrator.call_flow import CallFlow
from handrail.orchestrator.one_shot import Command, run_command, run_course
from handrail.orchestrator.requirement import UNRECORDED, Need, Requirement, patch_requirement
from handrail.orchestrator.result import ExecOutput, ModelError
from handrail.orchestrator.run import Orchestrator
from handrail.orchestrator.settings import Table
from handrail.patch.grammar import parse
from handrail.patch.plan import touched

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(version.__file__)))
_PROGRAM = (
    f"import os, sys; sys.path.append({_ROOT!r}); import handrail; sys.path.pop();"
    " from handrail.patch.command import run;"
    " sys.exit(run([], sys.stdin.buffer, sys.stdout.buffer, sys.stderr.buffer, os.getcwd()))"
)
#: Outside a sandbox that the settings ask for; the directory as it was approved.
_NO_LINKS_PROGRAM = (
    f"import sys; sys.path.append({_ROOT!r}); from handrail.patch.command import run;"
    " from handrail.orchestrator.no_link_files import NoLinkFiles;"
    " streams = sys.stdin.buffer, sys.stdout.buffer, sys.stderr.buffer;"
    " sys.exit(run([], *streams, sys.argv[1], files=NoLinkFiles()))"
)


@dataclass(frozen=True, slots=True)
class ShellMode:
    """The command is what it says."""


@dataclass(frozen=True, slots=True)
class PatchMode:
    """The command stands for a patch; ``approved``: a user has said yes to this very patch."""

    text: str
    cwd: str
    approved: bool = False


Mode = ShellMode | PatchMode


class Backend(Protocol):
    """From a request to what is started."""

    #: Whether output is told while it comes.
    streams: bool

    def prepare(self, command: Command, mode: Mode) -> Command:
        """What to start; raises ModelError for a mode of the other backend."""


class ShellBackend:
    """Starts the command as it is."""

    streams = True

    def prepare(self, command: Command, mode: Mode) -> Command:
        if not isinstance(mode, ShellMode):
            raise ModelError("the shell backend was given a patch: use the patch backend")
        return command


class PatchBackend:
    """Starts the patch tool instead."""

    streams = False

    def prepare(self, command: Command, mode: Mode) -> Command:
        if not isinstance(mode, PatchMode):
            raise ModelError("the patch backend was given a command: use the shell backend")
        call = replace(
            command.call,
            argv=(sys.executable, "-I", "-S", "-c", _PROGRAM),
            cwd=mode.cwd,
            tool="apply_patch",
        )
        text = mode.text.encode("utf-8", "surrogateescape")
        return replace(command, call=call, env={}, on_output=None, stdin=text)


def backend_for(mode: Mode) -> Backend:
    """The backend of a mode."""
    return PatchBackend() if isinstance(mode, PatchMode) else ShellBackend()


async def run_request(
    orchestrator: Orchestrator, executor: Executor, command: Command, mode: Mode
) -> ExecOutput:
    """A command or a patch to its end; raises what ``run_command`` does, and PatchError."""
    ready = backend_for(mode).prepare(command, mode)
    if isinstance(mode, ShellMode):
        return await run_command(orchestrator, executor, ready)
    course = _patch_course(orchestrator, ready, mode)
    outside = None
    if orchestrator.settings.sandbox.restricted:
        argv = (sys.executable, "-I", "-c", _NO_LINKS_PROGRAM, mode.cwd)
        outside = replace(ready, call=replace(ready.call, argv=argv))
    return await run_course(orchestrator, executor, ready, course, outside)


def _patch_course(orchestrator: Orchestrator, command: Command, mode: PatchMode) -> CallFlow:
    settings = orchestrator.settings
    found = [path for hunk in parse(mode.text).hunks for path in touched(hunk, mode.cwd)]
    paths = tuple(dict.fromkeys(found))
    requirement = patch_requirement(paths, settings, os.environ.get("TMPDIR"))
    if mode.approved:
        requirement = Requirement(Need.NOTHING, free=settings.sandbox.may_run_free)
    elif requirement.need is Need.APPROVAL and settings.table is Table.SEED:
        # That generation asked before it came here, and brought the answer along.
        raise Forbidden(UNRECORDED)
    environment = command.call.environment_id
    keys = tuple(FileKey(environment, path) for path in paths)
    shown = replace(command.call, argv=("apply_patch",))
    return CallFlow(orchestrator, shown, requirement, settings, keys, kind=Kind.PATCH, paths=paths)
