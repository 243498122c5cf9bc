"""Make prepared changes, all or none, as steps (see ``io_steps``).

How it works.  The changes are reduced to one «before and after» per path.  Files in the way of a
needed directory go first, then everything is written, then the rest is removed: what is hardest to
put back comes last.  A path is read once more right before it is changed, and must still hold what
the plan saw; so neither a foreign edit nor two names for one file can make the patch overwrite
something it has not read.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from handrail.errors import FilesError, PatchError
from handrail.patch.file_steps import MISSING, remove, rescue, write
from handrail.patch.io_steps import Action, Step, Steps
from handrail.patch.plan import Change


class PartlyAppliedError(PatchError):
    """A patch failed and part of it is in the files.

    ``changes`` were made and stay (hunk by hunk); ``stuck`` are paths that could not be put back
    (all or none).
    """

    def __init__(
        self, error: BaseException, *, changes: Sequence[Change] = (), stuck: Sequence[str] = ()
    ) -> None:
        path = error.path if isinstance(error, PatchError) else ""
        left = f" (could not be put back: {', '.join(stuck)})" if stuck else ""
        super().__init__(f"{error}{left}", path=path)
        self.changes = tuple(changes)
        self.stuck = tuple(stuck)


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
                    yield from rescue(effect.path, effect.after)
    except GeneratorExit:  # the runner is gone, so nothing can be undone
        raise
    except BaseException as error:
        stuck = yield from _undo(undo)
        if stuck and isinstance(error, Exception):
            raise PartlyAppliedError(error, stuck=stuck) from error
        raise


@dataclass(slots=True)
class _Effect:
    """What a patch changes at one path, in total.

    ``expected`` is what the path may hold when its turn comes: its content in the plan, and, for
    the source of a move, what was written to the target, should both be one file.
    """

    path: str
    expected: list[bytes | None]
    after: bytes | None = None
    moved: bool = False
    came_from: str | None = None


def _boil_down(changes: Sequence[Change]) -> list[_Effect]:
    effects: dict[str, _Effect] = {}

    def at(path: str, before: bytes | None) -> _Effect:
        return effects.setdefault(path, _Effect(path, [before]))

    for change in changes:
        source = at(change.path, change.before)
        source.moved = change.move_to is not None
        if change.move_to is None:
            source.after = change.after
            continue
        source.after = None
        source.expected.append(change.after)
        target = at(change.move_to, change.overwritten)
        target.after, target.came_from = change.after, change.path
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
        missing = error.kind in MISSING
    if now not in effect.expected:
        raise PatchError(f"{effect.path} changed while the patch was applied", path=effect.path)
    back = None if now is None else Step(Action.WRITE, effect.path, now)
    if effect.after is not None:
        if missing:
            back = Step(Action.REMOVE, effect.path)
        like = effect.came_from if missing else None
        yield from write(effect.path, effect.after, undo, back, like)
    elif not missing:  # else it was added and deleted by the same patch
        yield from remove(effect.path, moved=effect.moved)
        if back is not None:
            undo.append(back)


def _undo(undo: list[Step]) -> Steps[list[str]]:
    """Undo, last first; returns the paths where that failed."""
    stuck: list[str] = []
    for step in reversed(undo):
        try:
            yield step
        except Exception as error:  # noqa: BLE001 - whatever it is, the rest must be tried
            gone = isinstance(error, FilesError) and error.kind in MISSING
            if step.action is Action.WRITE:
                if (yield from _holds(step.path, step.data)):
                    continue
            elif gone or step.action is Action.RMDIR:  # another program uses the directory by now
                continue
            stuck.append(step.path)
    return stuck


def _holds(path: str, data: bytes) -> Steps[bool]:
    try:
        return (yield Step(Action.READ, path)) == data
    except Exception:  # noqa: BLE001 - as above
        return False
