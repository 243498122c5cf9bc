"""Carrying a patch out, as steps on somebody's files (see ``steps``).

  Mode.ATOMIC       everything is worked out first, then written; if writing fails, what was
                    written is put back.  Either the whole patch or none of it.
  Mode.COMPATIBLE   hunk after hunk, each at once; what was done before a failure stays.

How ATOMIC writes.  The changes are boiled down to one «before and after» per path.  Files that
stand where a folder is needed go first, then everything is written, then the rest is removed:
what is hardest to put back comes last.  A path is read once more right before it is touched,
and must still hold what the plan saw; so neither a foreign edit nor two names for one file
can make the patch overwrite something it did not look at.

In both modes a file moved onto itself, by whatever name, survives.
"""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from handrail.errors import FilesError, PatchError
from handrail.patch.hunks import Hunk, Patch
from handrail.patch.plan import Change, Reader, plan, plan_hunk, touched
from handrail.patch.report import NOTHING_MODIFIED
from handrail.patch.steps import Action, AsyncFiles, Files, Step, Steps, run, run_async

_MISSING = ("not_found", "not_a_directory")


class Mode(enum.Enum):
    """What a failure leaves behind: nothing, or what came before it."""

    ATOMIC = enum.auto()
    COMPATIBLE = enum.auto()


class PartlyAppliedError(PatchError):
    """A patch failed and part of it is in the files.

    ``changes`` were made and stay (COMPATIBLE); ``stuck`` are paths that could not be put
    back (ATOMIC).
    """

    def __init__(
        self, error: BaseException, *, changes: Sequence[Change] = (), stuck: Sequence[str] = ()
    ) -> None:
        path = error.path if isinstance(error, PatchError) else ""
        super().__init__(str(error), path=path)
        self.changes = tuple(changes)
        self.stuck = tuple(stuck)


def apply(patch: Patch, files: Files, cwd: str, mode: Mode = Mode.ATOMIC) -> tuple[Change, ...]:
    """Carry ``patch`` out; relative paths are under ``cwd``.

    Returns what was done, in the order of the patch.  Raises PatchError.
    """
    return run(applying(patch, cwd, mode), files)


async def apply_async(
    patch: Patch, files: AsyncFiles, cwd: str, mode: Mode = Mode.ATOMIC
) -> tuple[Change, ...]:
    """``apply`` on awaited files."""
    return await run_async(applying(patch, cwd, mode), files)


def applying(patch: Patch, cwd: str, mode: Mode = Mode.ATOMIC) -> Steps[tuple[Change, ...]]:
    """The steps of ``apply``."""
    if not patch.hunks:
        raise PatchError(NOTHING_MODIFIED)
    if mode is Mode.COMPATIBLE:
        return (yield from _one_by_one(patch.hunks, cwd))
    changes = yield from preparing(patch, cwd)
    yield from committing(changes)
    return changes


def preparing(patch: Patch, cwd: str) -> Steps[tuple[Change, ...]]:
    """Work ``patch`` out and change nothing: what to show before asking for approval."""
    reader = yield from _look(patch.hunks, cwd)
    return plan(patch.hunks, cwd, reader)


def committing(changes: Sequence[Change]) -> Steps[None]:
    """Make prepared changes, all or none.  Raises PatchError, also if a file changed since."""
    undo: list[Step] = []
    effects = _in_order(_boil_down(changes))
    try:
        for effect in effects:
            yield from _make(effect, undo)
        if any(effect.moved for effect in effects):
            for effect in effects:
                if effect.after is not None:
                    yield from _see_it_survived(effect.path, effect.after)
    except GeneratorExit:  # nobody is there any more to do the undoing
        raise
    except BaseException as error:
        stuck = yield from _undo(undo)
        if stuck and isinstance(error, Exception):
            raise PartlyAppliedError(error, stuck=stuck) from error
        raise


def _one_by_one(hunks: Sequence[Hunk], cwd: str) -> Steps[tuple[Change, ...]]:
    done: list[Change] = []
    try:
        for hunk in hunks:
            reader = yield from _look([hunk], cwd)
            change = plan_hunk(hunk, cwd, reader)
            if change.after is not None:
                yield from _write(change.target, change.after, [], None)
            if change.after is None or change.move_to is not None:
                yield from _remove(change.path, moved=change.move_to is not None)
            if change.after is not None and change.move_to is not None:
                yield from _see_it_survived(change.move_to, change.after)
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


@dataclass(slots=True)
class _Effect:
    """What a patch comes to at one path.

    ``expected`` is what the path may hold when its turn comes: what it held in the plan, and,
    for the source of a move, what was written to the target, should both be one file.
    """

    path: str
    expected: list[bytes | None]
    after: bytes | None = None
    moved: bool = False


def _boil_down(changes: Sequence[Change]) -> list[_Effect]:
    effects: dict[str, _Effect] = {}

    def at(path: str, before: bytes | None) -> _Effect:
        return effects.setdefault(path, _Effect(path, [before]))

    for change in changes:
        if change.move_to is None:
            at(change.path, change.before).after = change.after
            continue
        source = at(change.path, change.before)
        source.after, source.moved = None, True
        source.expected.append(change.after)
        at(change.move_to, change.overwritten).after = change.after
    return list(effects.values())


def _in_order(effects: list[_Effect]) -> list[_Effect]:
    folders: set[str] = set()
    for effect in effects:
        parent = posixpath.dirname(effect.path)
        while effect.after is not None and parent not in folders:
            folders.add(parent)
            parent = posixpath.dirname(parent)

    def turn(effect: _Effect) -> int:
        if effect.after is not None:
            return 1
        return 0 if effect.path in folders else 2

    return sorted(effects, key=turn)


def _make(effect: _Effect, undo: list[Step]) -> Steps[None]:
    now: bytes | None = None
    missing = False
    try:
        now = yield Step(Action.READ, effect.path)
    except FilesError as error:
        missing = error.kind in _MISSING
    if now not in effect.expected:
        raise PatchError(f"{effect.path} changed while the patch was applied", path=effect.path)
    back = None if now is None else Step(Action.WRITE, effect.path, now)
    if effect.after is not None:
        if missing:
            back = Step(Action.REMOVE, effect.path)
        yield from _write(effect.path, effect.after, undo, back)
    elif not missing:  # else it was added and deleted by the same patch
        yield from _remove(effect.path, moved=effect.moved)
        if back is not None:
            undo.append(back)


def _write(path: str, data: bytes, undo: list[Step], back: Step | None) -> Steps[None]:
    """Write a file, making its folders if need be; ``back`` is how to take it back."""
    if back is not None:
        undo.append(back)  # before writing: a write can fail halfway
    try:
        yield Step(Action.WRITE, path, data)
    except FilesError as error:
        if error.kind != "not_found":
            raise PatchError(f"Failed to write file {path}", path=path) from error
    else:
        return
    if back is not None:
        undo.pop()
    try:
        yield from _make_folder(posixpath.dirname(path), undo)
    except FilesError as error:
        sentence = f"Failed to create parent directories for {path}"
        raise PatchError(sentence, path=path) from error
    if back is not None:
        undo.append(back)
    try:
        yield Step(Action.WRITE, path, data)
    except FilesError as error:
        raise PatchError(f"Failed to write file {path}", path=path) from error


def _make_folder(path: str, undo: list[Step]) -> Steps[None]:
    """Make a folder and those above it that are missing."""
    try:
        yield Step(Action.MKDIR, path)
    except FilesError as error:
        if error.kind == "exists":
            yield from _insist_on_folder(path, error)
            return
        if error.kind != "not_found" or path == posixpath.dirname(path):
            raise
    else:
        undo.append(Step(Action.RMDIR, path))
        return
    yield from _make_folder(posixpath.dirname(path), undo)
    yield Step(Action.MKDIR, path)
    undo.append(Step(Action.RMDIR, path))


def _insist_on_folder(path: str, otherwise: FilesError) -> Steps[None]:
    """Raise ``otherwise`` unless ``path`` is a folder (and not, say, a link to nowhere)."""
    try:
        yield Step(Action.READ, path)
    except FilesError as error:
        if error.kind == "is_a_directory":
            return
    raise otherwise


def _remove(path: str, *, moved: bool) -> Steps[None]:
    try:
        yield Step(Action.REMOVE, path)
    except FilesError as error:
        what = "remove original" if moved else "delete file"
        raise PatchError(f"Failed to {what} {path}", path=path) from error


def _see_it_survived(path: str, data: bytes) -> Steps[None]:
    """Write again what went away together with the source of a move.

    That is so when the target was a link to the source: both were one file.
    """
    try:
        yield Step(Action.READ, path)
    except FilesError as error:
        if error.kind == "not_found":
            yield from _write(path, data, [], None)


def _undo(undo: list[Step]) -> Steps[list[str]]:
    """Take back, last first; returns the paths where that failed."""
    stuck: list[str] = []
    for step in reversed(undo):
        try:
            yield step
        except Exception as error:  # noqa: BLE001 - whatever it is, the rest must be tried
            gone = isinstance(error, FilesError) and error.kind in _MISSING
            if step.action is Action.WRITE:
                if (yield from _holds(step.path, step.data)):
                    continue
            elif gone or step.action is Action.RMDIR:  # somebody else uses the folder by now
                continue
            stuck.append(step.path)
    return stuck


def _holds(path: str, data: bytes) -> Steps[bool]:
    try:
        return (yield Step(Action.READ, path)) == data
    except Exception:  # noqa: BLE001 - as above
        return False
