"""Hunks + what the files hold -> the changes to make, or the error.  Pure.

Files are seen through a reader: a function from an absolute path to its bytes that raises
FilesError.  ``plan_hunk`` takes one hunk and the files as they are; ``plan`` goes through a whole
patch, each hunk seeing what the earlier ones will have done; ``verify`` is the check agents get
before approval.  None of them changes anything.
"""

from __future__ import annotations

import enum
import errno
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from handrail.errors import FilesError, PatchError
from handrail.filesystem.errors import utf8_text
from handrail.patch.grammar import PatchSyntaxError
from handrail.patch.hunks import AddFile, DeleteFile, Hunk, UpdateFile
from handrail.patch.rewrite import rewrite
from handrail.patch.seek import Level

Reader = Callable[[str], bytes]

#: The tool whose texts we keep is linked with musl, which words these differently from glibc.
_WORDS = {
    errno.ELOOP: "Symbolic link loop",
    errno.ENAMETOOLONG: "Filename too long",
    errno.EIO: "I/O error",
    errno.EBUSY: "Resource busy",
    errno.EMFILE: "No file descriptors available",
    errno.ENOMEM: "Out of memory",
    errno.EDQUOT: "Quota exceeded",
}
_NUMBER = re.compile(r"\(os error (\d+)\)\Z")


class ChangeKind(enum.Enum):
    """What a change does; the value is its letter in the summary."""

    ADD = "A"
    UPDATE = "M"
    DELETE = "D"


@dataclass(frozen=True, slots=True)
class Change:
    """One hunk, computed.

    ``shown`` is the path as the patch spells it.  ``before`` and ``after`` are whole contents, None
    where there is no file (or, for ``before``, none that can be read).  With ``move_to`` the file
    at ``path`` is removed and ``after`` is written there, over ``overwritten``.
    """

    kind: ChangeKind
    path: str
    shown: str
    before: bytes | None
    after: bytes | None
    move_to: str | None = None
    overwritten: bytes | None = None
    level: Level = Level.EXACT
    ambiguous: bool = False

    @property
    def target(self) -> str:
        """Where the content ends up."""
        return self.path if self.move_to is None else self.move_to


def resolve(path: str, cwd: str) -> str:
    """``path`` of a patch as a plain absolute one: no ``.``, ``..`` or doubled slash left.

    ``..`` is resolved in the text, not the file system: ``link/../f`` is ``f``.  Tabs and carriage
    returns do not reach the file system (they are dropped, as by the tool whose patches these are).
    Raises PatchError for a path no system takes.
    """
    if "\0" in path:
        raise PatchError(f"'{path}' is invalid on 'linux'", path=path)
    absolute = path if path.startswith("/") else f"{cwd}/{path}"
    absolute = absolute.translate({ord("\t"): None, ord("\r"): None})
    return posixpath.normpath("/" + absolute.lstrip("/"))


def touched(hunk: Hunk, cwd: str) -> list[str]:
    """The paths a hunk reads or writes, resolved; those that do not resolve are left out."""
    names = [hunk.path]
    if isinstance(hunk, UpdateFile) and hunk.move_to is not None:
        names.append(hunk.move_to)
    return [resolve(name, cwd) for name in names if "\0" not in name]


def plan(hunks: Iterable[Hunk], cwd: str, read: Reader) -> tuple[Change, ...]:
    """Compute a whole patch without changing anything.

    Raises PatchError for the first hunk that would not apply.
    """
    files = _Overlay(read)
    changes: list[Change] = []
    for hunk in hunks:
        change = plan_hunk(hunk, cwd, files.read)
        files.record(change)
        changes.append(change)
    return tuple(changes)


def verify(hunks: Iterable[Hunk], cwd: str, read: Reader) -> tuple[Change, ...]:
    """Check a patch the way agents are used to: each hunk against the files as they are.

    Raises PatchError, also for two hunks on one path (the target of a move does not count).
    """
    changes: dict[str, Change] = {}
    for hunk in hunks:
        path = resolve(hunk.path, cwd)
        if path in changes:
            raise PatchSyntaxError(f"multiple operations target {path}", path=path)
        if isinstance(hunk, DeleteFile):
            try:
                read(path)
            except FilesError as error:
                raise PatchError(f"Failed to read {path}: {_text(error)}", path=path) from error
        changes[path] = plan_hunk(hunk, cwd, read)
    return tuple(changes.values())


def plan_hunk(hunk: Hunk, cwd: str, read: Reader) -> Change:
    """Compute one hunk against the files as they are.

    Raises PatchError if an update does not fit.  Whether an addition or a deletion is possible
    shows when it is done.
    """
    path = resolve(hunk.path, cwd)
    if isinstance(hunk, AddFile):
        after = hunk.content.encode("utf-8", "surrogateescape")
        return Change(ChangeKind.ADD, path, hunk.path, _peek(read, path), after)
    if isinstance(hunk, DeleteFile):
        return Change(ChangeKind.DELETE, path, hunk.path, _peek(read, path), None)
    return _plan_update(hunk, path, cwd, read)


def _text(error: FilesError) -> str:
    """The sentence of an error, as the patch tool prints it."""
    number = _NUMBER.search(str(error))
    words = _WORDS.get(int(number[1])) if number is not None else None
    return str(error) if number is None or words is None else f"{words} {number[0]}"


def _plan_update(hunk: UpdateFile, path: str, cwd: str, read: Reader) -> Change:
    try:
        before = read(path)
        text = utf8_text(before, path)
    except FilesError as error:
        text = f"Failed to read file to update {path}: {_text(error)}"
        raise PatchError(text, path=path) from error
    new = rewrite(text, hunk.chunks, path)
    after = new.text.encode()
    shown, move_to, overwritten = hunk.path, None, None
    if hunk.move_to is not None:
        shown, move_to = hunk.move_to, resolve(hunk.move_to, cwd)
        if move_to == path:  # removing the source afterwards would lose the file
            move_to = None
        else:
            overwritten = _peek(read, move_to)
    return Change(
        ChangeKind.UPDATE,
        path,
        shown,
        before,
        after,
        move_to,
        overwritten,
        new.level,
        new.ambiguous,
    )


def _peek(read: Reader, path: str) -> bytes | None:
    try:
        return read(path)
    except FilesError:
        return None


class _Overlay:
    """The files as they will be after the changes so far."""

    def __init__(self, read: Reader) -> None:
        self._read = read
        self._written: dict[str, bytes | None] = {}
        self._folders: set[str] = set()

    def read(self, path: str) -> bytes:
        """As a Reader."""
        if path in self._written:
            content = self._written[path]
            if content is None:
                raise FilesError("No such file or directory (os error 2)", kind="not_found")
            return content
        if path in self._folders:
            raise FilesError(f"path `{path}` is not a file", kind="is_a_directory")
        for parent in _parents(path):
            if parent in self._written:
                if self._written[parent] is None:  # a removed file is not in the way
                    raise FilesError("No such file or directory (os error 2)", kind="not_found")
                raise FilesError("Not a directory (os error 20)", kind="not_a_directory")
        return self._read(path)

    def record(self, change: Change) -> None:
        """Record ``change`` as done.

        Raises PatchError if it is known to be impossible.
        """
        if change.kind is ChangeKind.DELETE:
            self._check(change.path, f"Failed to delete file {change.path}", missing_is_fine=False)
            self._written[change.path] = None
            return
        self._check(change.target, f"Failed to write file {change.target}", missing_is_fine=True)
        if change.move_to is not None:
            self._written[change.path] = None
        self._written[change.target] = change.after
        self._folders.update(_parents(change.target))

    def _check(self, path: str, sentence: str, *, missing_is_fine: bool) -> None:
        try:
            self.read(path)
        except FilesError as error:
            in_the_way = error.kind in ("is_a_directory", "not_a_directory")
            if in_the_way or (error.kind == "not_found" and not missing_is_fine):
                raise PatchError(sentence, path=path) from error


def _parents(path: str) -> Iterator[str]:
    while (parent := posixpath.dirname(path)) != path:
        yield parent
        path = parent
