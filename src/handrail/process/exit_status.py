"""How a process ended: its kind of end, exit code, signal and usage, from the status of wait4.

The number that a caller sees for it (128 + N for signal N, 124 to 127) is chosen in
``handrail/exit_codes.py``.
"""

from __future__ import annotations

import enum
import os
import signal
from dataclasses import dataclass

from handrail import exit_codes
from handrail.keeper.limits.cgroups import OUT_OF_MEMORY
from handrail.keeper.limits.tree_watcher import TOO_MANY
from handrail.keeper.timeout_and_grace import TIMED_OUT
from handrail.name_hints import NamesChecked
from handrail.process.spec import NO_LIMITS, Limits

_SIGNALS = frozenset(map(int, signal.valid_signals()))


class ExitKind(enum.StrEnum):
    """How a process came to its end.  ``LOST`` is an answer; an invented 0 is not.

    It is set by ``child_end.exit_unknown``, when no keeper can be asked.
    """

    EXITED = "exited"
    SIGNALED = "signaled"
    TERMINATED = "terminated"
    TIMED_OUT = "timedOut"
    LIMIT_EXCEEDED = "limitExceeded"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Usage(NamesChecked):
    """What a process has cost, as the kernel counted it when it was reaped.

    None is not known: the keeper, whose child it was, had been killed.  ``max_rss_bytes`` is never
    below the memory of the process that started it, some 12 MB: the kernel counts that in.
    """

    wall_ms: int
    user_ms: int | None
    system_ms: int | None
    max_rss_bytes: int | None


@dataclass(frozen=True, slots=True)
class ExitInfo(NamesChecked):
    """How a process ended; ``code`` is what a shell would show."""

    kind: ExitKind
    code: int | None
    signal: str | None = None
    core_dumped: bool = False
    usage: Usage | None = None
    #: Which of the ``Limits`` has ended it, if the kind is ``LIMIT_EXCEEDED``.
    limit: str | None = None


def exit_from_status(
    status: int,
    *,
    terminated: bool,
    usage: Usage | None = None,
    cause: ExitKind | None = None,
    sandboxed: bool = False,
    limits: Limits = NO_LIMITS,
) -> ExitInfo:
    """Read a wait status.  Killed by signal N is 128+N, in a terminal as on pipes.

    ``cause`` is why we ended it, if it was not on request.  ``sandboxed``: what holds a command
    in a sandbox exits with 128+N for a command that was killed by N, so that is read back.
    ``limits`` are those it was started with.
    """
    starved, late, crowded = status & OUT_OF_MEMORY, status & TIMED_OUT, status & TOO_MANY
    status &= 0xFFFF
    limit = None
    if sandboxed and os.WIFEXITED(status) and os.WEXITSTATUS(status) - 128 in _SIGNALS:
        status = os.WEXITSTATUS(status) - 128
    if cause is None and late:
        cause = ExitKind.TIMED_OUT
    elif cause is None and terminated:
        cause = ExitKind.TERMINATED
    elif cause is ExitKind.LIMIT_EXCEEDED:  # the keeper tells the others
        limit = "output"
    elif cause is None and status:
        if starved:
            limit = "memory"
        elif crowded:
            limit = "processes"
        elif limits is not NO_LIMITS:
            limit = _kernel_limit(status, limits, usage)
        cause = None if limit is None else ExitKind.LIMIT_EXCEEDED
    code = exit_codes.of_status(status)
    if os.WIFSIGNALED(status):
        name, dumped = _signal_name(os.WTERMSIG(status)), os.WCOREDUMP(status)
        return ExitInfo(cause or ExitKind.SIGNALED, code, name, dumped, usage, limit)
    return ExitInfo(cause or ExitKind.EXITED, code, usage=usage, limit=limit)


def _kernel_limit(status: int, limits: Limits, usage: Usage | None) -> str | None:
    """Which limit of a process the kernel has ended a command for, or the last one of a shell."""
    code = os.waitstatus_to_exitcode(status)
    number = -code if code < 0 else code - 128
    if number == signal.SIGXFSZ and limits.file_size is not None:
        return "file_size"
    warned, killed = number == signal.SIGXCPU, number == signal.SIGKILL
    if limits.cpu_seconds is None or not (warned or killed):
        return None
    if usage is None or usage.user_ms is None or usage.system_ms is None:
        return "cpu_seconds" if warned else None
    # Others can send these signals too, and a shell can exit with their codes.  One that goes on
    # after SIGXCPU is killed a second later.  The kernel compares ticks with the limit, and
    # reports less: 0.7 of them were seen on a virtual machine with stolen time.
    used_up = usage.user_ms + usage.system_ms >= 500 * (limits.cpu_seconds + killed)
    return "cpu_seconds" if used_up else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
