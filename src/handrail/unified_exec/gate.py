"""The gate: who turns a command into a running process, and may say no.

Unified exec asks a gate before it starts anything; the orchestrator is one (policy, approval,
sandbox, retry).  Without a gate a command is started as it is.  These are the faces only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from handrail.executor.base import ExecSession, SpawnRequest
from handrail.process.spec import ExitInfo
from handrail.unified_exec.tools import ExecCommandArgs

if TYPE_CHECKING:
    from handrail.patch.hunks import Patch
    from handrail.patch.io_steps import AsyncFiles
    from handrail.patch.plan import Change


@dataclass(frozen=True, slots=True)
class ExecCall:
    """One exec_command, worked out: what would be started if nobody objects.

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
    """How a process ended within its first call: everything a question for a retry needs."""

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
    """Asked before a start, after an end and before a patch."""

    async def start(self, call: ExecCall) -> Started:
        """Start it.  A HandrailError says, in a sentence for the model, why not."""

    async def ended(self, call: ExecCall, ended: Ended) -> Started | None:
        """Told of an end within the first call; a second start replaces the first answer."""

    async def patch(self, request: PatchRequest) -> AsyncFiles | None:
        """Approve a patch: the files to write through (None: the usual ones); else it raises."""
