"""The exit codes of ``handrail run``, ``sandbox``, ``wait`` and the other commands.

A command's own code is passed on.  Where it has none, as ``timeout``, ``env`` and shells have it:
124 for a time that is over, 125 when nothing was run, 126 for what cannot be executed, 127 for
what is not found, 128 + N for signal N.

Imports no more than ``os``: ``handrail run`` has it before its command starts.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.process.exit_status import ExitInfo

TIMED_OUT = 124
#: A failure of ours, apart from the command's.
OWN_FAILURE = 125
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
_KILLED = 128 + 9
#: When Ctrl-C ended what we did, by SIGINT.
INTERRUPTED = 128 + 2
#: When the reader of what we print is gone, by SIGPIPE.
READER_GONE = 128 + 13


def of_status(status: int) -> int:
    """For a command that has ended with this wait status."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def of_unstarted(number: int) -> int:
    """For a program that the kernel does not start, by its error number."""
    return {0: OWN_FAILURE, 2: _NOT_FOUND}.get(number, _NOT_EXECUTABLE)  # ENOENT


def of_command(info: ExitInfo) -> int | None:
    """A command's own code, None if it is not known; never 0 for one that had reached a limit."""
    past_limit = info.limit is not None and info.code == 0  # it ended before it was killed
    return _KILLED if past_limit else info.code


def of_exit(info: ExitInfo) -> int:
    """What we exit with after a command has ended in this way."""
    if info.kind.value == "timedOut":
        return TIMED_OUT
    code = of_command(info)
    return OWN_FAILURE if code is None else code
