"""The sentences of the patch tool, byte for byte.  Pure.

Agents read these and models have learnt them; a change here is a change of the contract.
"""

from __future__ import annotations

from collections.abc import Iterable

from handrail.errors import PatchError
from handrail.patch.grammar import PatchSyntaxError
from handrail.patch.plan import Change, ChangeKind

NOTHING_MODIFIED = "No files were modified."

USAGE = "Usage: apply_patch 'PATCH'\n       echo 'PATCH' | apply_patch\n"
TOO_MANY_ARGUMENTS = "Error: apply_patch accepts exactly one argument.\n"
NO_DIRECTORY = (
    "Error: Failed to determine current directory.\nNo such file or directory (os error 2)\n"
)
ARGUMENT_NOT_UTF8 = "Error: apply_patch requires a UTF-8 PATCH argument.\n"
STDIN_NOT_UTF8 = "Error: Failed to read PATCH from stdin.\nstream did not contain valid UTF-8\n"

BARE_PATCH = (
    "apply_patch verification failed: patch detected without explicit call to apply_patch. "
    'Rerun as ["apply_patch", "<patch>"]'
)
EMPTY_PATCH = "patch rejected: empty patch"


def summary(changes: Iterable[Change]) -> str:
    """What was done: additions, updates, deletions, each in the order of the patch."""
    changes = tuple(changes)
    lines = ["Success. Updated the following files:"]
    for kind in ChangeKind:
        lines += [f"{kind.value} {change.shown}" for change in changes if change.kind is kind]
    return "\n".join(lines) + "\n"


def failure(error: PatchError) -> str:
    """The text that the command prints on its standard error."""
    if not isinstance(error, PatchSyntaxError):
        return f"{error}\n"
    if error.line:
        return f"Invalid patch hunk on line {error.line}: {error}\n"
    return f"Invalid patch: {error}\n"


def verification_failure(error: PatchError) -> str:
    """What an agent is told when its patch is refused before anything was tried."""
    what = str(error)
    if isinstance(error, PatchSyntaxError):
        where = f"invalid hunk at line {error.line}, " if error.line else "invalid patch: "
        what = where + what
    return f"apply_patch verification failed: {what}"


def answer(exit_code: int, seconds: float, output: str) -> str:
    """What an agent is told about a patch that was tried; ``output`` is a text from above."""
    wall_time = f"{seconds:.1f}".removesuffix(".0")
    return f"Exit code: {exit_code}\nWall time: {wall_time} seconds\nOutput:\n{output}"
