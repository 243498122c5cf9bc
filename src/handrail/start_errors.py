"""The exceptions that ``handrail run`` needs before its command starts; ``errors.py`` has all.

Making the thirty classes takes half a millisecond.  To users these are in ``handrail.errors`` too.
"""

from __future__ import annotations


class HandrailError(Exception):
    """The base class of all errors that handrail raises."""

    @property
    def detail(self) -> str:
        """The sentence without the prefix of its family."""
        return str(self)


class UsageError(HandrailError):
    """The caller asked for something that makes no sense."""


class ProcessError(HandrailError):
    """An error of one child process."""


class SpawnFailed(ProcessError):
    """The child could not be started."""

    def __init__(self, message: str, *, errno: int = 0, path: str = "") -> None:
        super().__init__(message)
        self.errno = errno
        self.path = path


class SandboxError(HandrailError):
    """An error of a sandbox."""


class SandboxUnavailable(SandboxError):
    """Nothing on this machine can enforce the profile, so nothing was run."""


for _one in (
    HandrailError,
    UsageError,
    ProcessError,
    SpawnFailed,
    SandboxError,
    SandboxUnavailable,
):
    _one.__module__ = "handrail.errors"  # also for pickle
