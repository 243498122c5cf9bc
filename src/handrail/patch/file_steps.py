"""Writing and removing one file, as steps (see ``io_steps``), with the sentences for failures."""

from __future__ import annotations

import posixpath

from handrail.errors import FilesError, PatchError, SandboxUnavailable
from handrail.patch.io_steps import Action, Step, Steps

# The kinds of FilesError that mean «nothing is there».
MISSING = ("not_found", "not_a_directory")


def write(
    path: str,
    data: bytes,
    undo: list[Step] | None = None,
    back: Step | None = None,
    like: str | None = None,
) -> Steps[None]:
    """Write a file, making its directories if needed; a new one with the mode of ``like``.

    ``undo`` collects the steps that take it back, ``back`` being the one for the file.
    Raises PatchError.
    """
    undo = [] if undo is None else undo
    if back is not None:
        undo.append(back)  # before writing: a write can fail halfway
    try:
        yield from _fill(path, data, like)
    except FilesError as error:
        if error.kind != "not_found":
            raise _failed(f"Failed to write file {path}", path, error) from error
    else:
        return
    if back is not None:
        undo.pop()
    try:
        yield from _make_folder(posixpath.dirname(path), undo)
    except FilesError as error:
        sentence = f"Failed to create parent directories for {path}"
        raise _failed(sentence, path, error) from error
    if back is not None:
        undo.append(back)
    try:
        yield from _fill(path, data, like)
    except FilesError as error:
        raise _failed(f"Failed to write file {path}", path, error) from error


def _failed(sentence: str, path: str, error: FilesError) -> PatchError:
    """The peer's sentence; the reason only where the refusal is ours."""
    ours = error.kind == "link" or isinstance(error, SandboxUnavailable)
    return PatchError(f"{sentence}: {error}" if ours else sentence, path=path)


def _fill(path: str, data: bytes, like: str | None) -> Steps[None]:
    if like is not None:
        try:
            yield Step(Action.COPY, path, source=like)
        except FilesError:
            pass  # its directory is missing, or replaced the source: writing will tell
    yield Step(Action.WRITE, path, data)


def _make_folder(path: str, undo: list[Step]) -> Steps[None]:
    """Make a directory and its missing parents."""
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
    """Raise ``otherwise`` unless ``path`` is a directory (and not, say, a dangling link)."""
    try:
        yield Step(Action.READ, path)
    except FilesError as error:
        if error.kind == "is_a_directory":
            return
    raise otherwise


def remove(path: str, *, moved: bool) -> Steps[None]:
    """Remove a file, which may have been ``moved`` elsewhere before.  Raises PatchError."""
    try:
        yield Step(Action.REMOVE, path)
    except FilesError as error:
        what = "remove original" if moved else "delete file"
        raise _failed(f"Failed to {what} {path}", path, error) from error


def rescue(path: str, data: bytes) -> Steps[None]:
    """Write again what was removed together with the source of a move.

    That happens when the target was a link to the source: both were one file.
    """
    try:
        yield Step(Action.READ, path)
    except FilesError as error:
        if error.kind == "not_found":
            yield from write(path, data)
