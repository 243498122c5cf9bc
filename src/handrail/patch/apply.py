"""Apply a patch to local or remote files: the entry points.

  Mode.ATOMIC       everything is computed first, then written; if writing fails, what was
                    written is put back (``commit``).  Either the whole patch or none of it.
  Mode.COMPATIBLE   hunk after hunk, each at once; what was done before a failure stays.

In both a file moved onto itself, by whatever name, survives.

An agent's patch goes through ``verifying``, an approval, and ``applying``.  Each is a generator of
steps for ``io_steps.run`` or ``io_steps.run_async``.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from handrail.errors import FilesError, PatchError
from handrail.patch.commit import PartlyAppliedError, committing
from handrail.patch.file_steps import remove, rescue, write
from handrail.patch.hunks import Hunk, Patch
from handrail.patch.io_steps import Action, Files, Step, Steps, run
from handrail.patch.plan import Change, Reader, plan, plan_hunk, touched, verify
from handrail.patch.report import NOTHING_MODIFIED


class Mode(enum.Enum):
    """What a failure leaves behind: nothing, or what came before it."""

    ATOMIC = enum.auto()
    COMPATIBLE = enum.auto()


def apply(patch: Patch, files: Files, cwd: str, mode: Mode = Mode.ATOMIC) -> tuple[Change, ...]:
    """Apply ``patch``; relative paths are under ``cwd``.

    Returns what was done, in the order of the patch.  Raises PatchError.
    """
    return run(applying(patch, cwd, mode), files)


def applying(patch: Patch, cwd: str, mode: Mode = Mode.ATOMIC) -> Steps[tuple[Change, ...]]:
    """The steps of ``apply``."""
    if not patch.hunks:
        raise PatchError(NOTHING_MODIFIED)
    if mode is Mode.COMPATIBLE:
        return (yield from _one_by_one(patch.hunks, cwd))
    changes = yield from preparing(patch, cwd)
    yield from committing(changes)
    return changes


def verifying(patch: Patch, cwd: str) -> Steps[tuple[Change, ...]]:
    """The check before an agent's patch is approved or written (see ``plan.verify``)."""
    reader = yield from _look(patch.hunks, cwd)
    return verify(patch.hunks, cwd, reader)


def preparing(patch: Patch, cwd: str) -> Steps[tuple[Change, ...]]:
    """Compute ``patch`` and change nothing; ``committing`` then makes exactly these changes."""
    reader = yield from _look(patch.hunks, cwd)
    return plan(patch.hunks, cwd, reader)


def _one_by_one(hunks: Sequence[Hunk], cwd: str) -> Steps[tuple[Change, ...]]:
    done: list[Change] = []
    try:
        for hunk in hunks:
            reader = yield from _look([hunk], cwd)
            change = plan_hunk(hunk, cwd, reader)
            if change.after is not None:
                moved = change.move_to is not None and change.overwritten is None
                like = change.path if moved else None
                yield from write(change.target, change.after, like=like)
            if change.after is None or change.move_to is not None:
                yield from remove(change.path, moved=change.move_to is not None)
            if change.after is not None and change.move_to is not None:
                yield from rescue(change.move_to, change.after)
            done.append(change)
    except PatchError as error:
        if done:
            raise PartlyAppliedError(error, changes=done) from error
        raise
    return tuple(done)


def _look(hunks: Sequence[Hunk], cwd: str) -> Steps[Reader]:
    """Read every path the hunks name, once, for a planner that cannot wait."""
    seen: dict[str, bytes | FilesError] = {}
    for hunk in hunks:
        for path in touched(hunk, cwd):
            if path not in seen:
                try:
                    seen[path] = yield Step(Action.READ, path)
                except FilesError as error:
                    seen[path] = error

    def read(path: str) -> bytes:
        content = seen[path]
        if isinstance(content, FilesError):
            raise content
        return content

    return read
