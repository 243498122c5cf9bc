"""The gate: turns a command into a running process, or refuses it.

Unified exec calls a gate before it starts anything; the orchestrator is one (policy, approval,
sandbox, retry).  Without a gate a command is started as it is.  Only the contract is here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from handrail.executor.base import ExecSession, SpawnRequest
from handrail.process.exit_status import ExitInfo
from handrail.unified_exec.tools import ExecCommandArgs

if TYPE_CHECKING:
    from handrail.patch.hunks import Patch
    from handrail.patch.io_steps import AsyncFiles
    from handrail.patch.plan import Change


@dataclass(frozen=True, slots=True)
class ExecCall:
    """One exec_command with its arguments resolved: what would be started if the gate agrees.

    ``spawn`` is without a sandbox; the gate adds one, and asks for a ``process_id`` of its own
    for every further start (``attempt`` counts from 1).
    """

    call_id: str
    process_id: int
    args: ExecCommandArgs
    spawn: SpawnRequest
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Started:
    """A process that runs; ``notes`` are sentences for the model."""

    session: ExecSession
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended within its first call: what a question for a retry needs."""

    session: ExecSession
    exit: ExitInfo
    output: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class PatchRequest:
    """A patch that was sent as a command, verified: what it would change, with whole contents."""

    call_id: str
    cwd: str
    patch: Patch
    changes: tuple[Change, ...]


class Gate(Protocol):
    """Called before a start, after an end and before a patch."""

    async def start(self, call: ExecCall) -> Started:
        """Start it; a HandrailError says why not, in a sentence for the model."""

    async def ended(self, call: ExecCall, ended: Ended) -> Started | None:
        """Report an end within the first call; a second start replaces the first answer."""

    async def patch_reader(self) -> AsyncFiles | None:
        """The files a patch is verified against before the approval; None: the usual ones."""

    async def patch(self, request: PatchRequest) -> AsyncFiles | None:
        """Approve a patch; returns the files to write through (None: the usual ones), or raises."""
