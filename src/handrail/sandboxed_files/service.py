"""What a sandboxed file helper does for its server: one operation per frame.

Runs the same functions that serve calls without a sandbox, so a file call sees what a sandboxed
command would see.  Imports the standard library and this package only: whatever is imported has to
be readable in the sandbox.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from handrail.errors import FilesError
from handrail.filesystem import copying, directories, local, names, regular_file, removal, walk
from handrail.filesystem.handles import HandleTable, Mode
from handrail.sandboxed_files.frames import path_bytes, path_text

if TYPE_CHECKING:
    from handrail.filesystem.trees.thread_watch import ThreadWatch

#: Content of a file is sent in pieces of at most this; a multiple of 3, so that the base64 of the
#: pieces can be concatenated.
PIECE = 768 * 1024
#: Each has a thread of the helper while its caller waits; others are for calls.
MOST_WATCHES = 4
#: The server counts handles, for all its helpers together.
_MANY = 1 << 16

Answer = tuple[Any, bytes]
Handle = list[str]  # owner, and its name
_NOTHING: Answer = (None, b"")


# What only copies of trees and watches need is imported by them: a helper starts for one call.


class FileService:
    """The open files of one helper, and the operations on others."""

    def __init__(self) -> None:
        #: Handles of the client, and of the server's own large writes.
        self._tables = {"client": HandleTable(_MANY), "ours": HandleTable(_MANY)}
        self._plans: dict[int, regular_file.ReadPlan] = {}
        self._watches: dict[int, ThreadWatch] = {}
        self._last_plan = 0
        self._lock = threading.Lock()

    def perform(self, op: str, arguments: list[Any], body: bytes) -> Answer:
        """Run one operation; return head and body of the answer, or raise FilesError."""
        work = self._OPERATIONS.get(op)
        if work is None:
            raise FilesError(f"the file helper knows no `{op}`")
        return work(self, body, *arguments)

    def close(self) -> None:
        """Drop unfinished writes."""
        for table in self._tables.values():
            table.close_all()

    def _refuse(self, _: bytes, *paths: str) -> Answer:
        names.refuse(map(path_bytes, paths))
        return _NOTHING

    # --- one path ------------------------------------------------------------------------

    def _metadata(self, _: bytes, path: str, follow: bool) -> Answer:
        return local.get_metadata(path_bytes(path), follow=follow), b""

    def _canonicalize(self, _: bytes, path: str) -> Answer:
        return path_text(local.canonicalize(path_bytes(path))), b""

    def _create_directory(self, _: bytes, path: str, recursive: bool, follow: bool) -> Answer:
        directories.create_directory(path_bytes(path), recursive=recursive, follow=follow)
        return _NOTHING

    def _remove(self, _: bytes, path: str, recursive: bool, force: bool, follow: bool) -> Answer:
        removal.remove(path_bytes(path), recursive=recursive, force=force, follow=follow)
        return _NOTHING

    def _copy(self, _: bytes, source: str, destination: str, recursive: bool) -> Answer:
        copying.copy(path_bytes(source), path_bytes(destination), recursive=recursive)
        return _NOTHING

    def _read_directory(self, _: bytes, path: str) -> Answer:
        found = directories.read_directory(path_bytes(path))
        return [[path_text(e.name), e.is_directory, e.is_file] for e in found], b""

    def _walk(self, _: bytes, path: str, *options: Any) -> Answer:
        found = walk.walk(path_bytes(path), walk.WalkOptions(*options))
        parents: dict[bytes, int] = {}
        entries = [
            [parents.setdefault(e.parent, len(parents)), path_text(e.name), e.is_directory]
            for e in found.entries
        ]
        problems = [[path_text(p.path), p.message] for p in found.errors]
        return [[path_text(p) for p in parents], entries, problems, found.truncated], b""

    # --- trees ---------------------------------------------------------------------------

    def _move(self, _: bytes, source: str, destination: str) -> Answer:
        from handrail.filesystem.trees import moving

        moving.move(path_bytes(source), path_bytes(destination))
        return _NOTHING

    def _list_tree(self, _: bytes, root: str, after: str, exclude: list[str]) -> Answer:
        from handrail.filesystem.trees import listing
        from handrail.sandboxed_files import tree_frames

        page = listing.list_tree(path_bytes(root), after=path_bytes(after), exclude=exclude)
        return tree_frames.page_head(page), b""

    def _list_names(
        self, _: bytes, root: str, after: list[str] | None, exclude: list[str]
    ) -> Answer:
        from handrail.filesystem.trees import names_listing
        from handrail.sandboxed_files import tree_frames

        place = None if after is None else (path_bytes(after[0]), path_bytes(after[1]))
        page = names_listing.list_names(path_bytes(root), after=place, exclude=exclude)
        return tree_frames.names_head(page), b""

    def _read_files(self, _: bytes, root: str, wanted: list[Any]) -> Answer:
        from handrail.filesystem.trees import reading
        from handrail.sandboxed_files import tree_frames

        found = reading.read_files(path_bytes(root), tree_frames.groups_of(wanted))
        return tree_frames.contents_head(found)

    def _read_part(self, _: bytes, root: str, path: str, offset: int, length: int) -> Answer:
        from handrail.filesystem.trees import reading

        return None, reading.read_part(path_bytes(root), path_bytes(path), offset, length)

    def _write_files(self, body: bytes, root: str, head: list[Any]) -> Answer:
        from handrail.filesystem.trees import file_batches
        from handrail.sandboxed_files import tree_frames

        failed = file_batches.write_files(path_bytes(root), tree_frames.batch_of(head, body))
        return tree_frames.failed_head(failed), b""

    def _make_changes(self, body: bytes, root: str, rows: list[Any]) -> Answer:
        from handrail.filesystem.trees import writing
        from handrail.sandboxed_files import tree_frames

        done = writing.make_changes(path_bytes(root), tree_frames.changes_of(rows), body)
        failed = {index: error for index, error in enumerate(done) if error is not None}
        return tree_frames.failed_head(failed), b""

    def _watch(self, _: bytes, path: str, recursive: bool) -> Answer:
        from handrail.filesystem.trees import tree_watch
        from handrail.filesystem.trees.thread_watch import ThreadWatch

        watch = tree_watch.TreeWatch(path_bytes(path), recursive=recursive)
        with self._lock:
            if len(self._watches) >= MOST_WATCHES:
                watch.close()
                text = f"at most {MOST_WATCHES} watches in one sandbox; close one, or watch a"
                raise FilesError(f"{text} directory above", kind="too_large", path=path)
            self._last_plan += 1
            self._watches[self._last_plan] = ThreadWatch(watch)
            return self._last_plan, b""

    def _watch_read(self, _: bytes, number: int, wait_ms: int) -> Answer:
        from handrail.sandboxed_files import tree_frames

        watch = self._watches.get(number)
        if watch is None:
            raise FilesError("there is no such watch", kind="not_found")
        return tree_frames.happened_head(watch.wait(wait_ms / 1000)), b""

    def _watch_end(self, _: bytes, number: int) -> Answer:
        with self._lock:
            watch = self._watches.pop(number, None)
        if watch is not None:
            watch.end()
        return _NOTHING

    # --- content, in pieces ------------------------------------------------------------

    def _read(self, _: bytes, path: str, follow: bool) -> Answer:
        """The first piece, the size, and a number to request more with (0: that was all)."""
        plan = regular_file.ReadPlan(path_bytes(path), follow=follow)
        try:
            piece = plan.next_block(PIECE)
            if plan.delivered >= plan.size or not piece:
                plan.close()
                return [len(piece), 0], piece
        except BaseException:
            plan.close()
            raise
        with self._lock:
            self._last_plan += 1
            number = self._last_plan
            self._plans[number] = plan
        return [plan.size, number], piece

    def _read_on(self, _: bytes, number: int) -> Answer:
        """The next piece; empty at the end, and then the number is free."""
        with self._lock:
            plan = self._plans.get(number)
        piece = plan.next_block(PIECE) if plan is not None else b""
        if not piece:
            self._read_end(b"", number)
        return None, piece

    def _read_end(self, _: bytes, number: int) -> Answer:
        with self._lock:
            plan = self._plans.pop(number, None)
        if plan is not None:
            plan.close()
        return _NOTHING

    def _write(self, body: bytes, path: str, follow: bool) -> Answer:
        local.write_file(path_bytes(path), body, follow=follow)
        return _NOTHING

    # --- handles ---------------------------------------------------------------------------

    def _open(self, _: bytes, handle: Handle, path: str, mode: str, follow: bool) -> Answer:
        table, name = self._find(handle)
        table.open(name, path_bytes(path), Mode(mode), follow=follow)
        return _NOTHING

    def _read_block(self, _: bytes, handle: Handle, offset: int, length: int) -> Answer:
        table, name = self._find(handle)
        data, eof = table.read_block(name, offset, length)
        return eof, data

    def _write_block(self, body: bytes, handle: Handle, offset: int) -> Answer:
        table, name = self._find(handle)
        table.write_block(name, offset, body)
        return _NOTHING

    def _close(self, _: bytes, handle: Handle) -> Answer:
        table, name = self._find(handle)
        table.close(name)
        return _NOTHING

    def _forget(self, _: bytes, handle: Handle) -> Answer:
        table, name = self._find(handle)
        table.forget(name)
        return _NOTHING

    def _find(self, handle: Handle) -> tuple[HandleTable, str]:
        owner, name = handle
        return self._tables[owner], name

    #: Operation -> the method that does it.
    _OPERATIONS: ClassVar[dict[str, Callable[..., Answer]]] = {
        "refuse": _refuse,
        "metadata": _metadata,
        "canonicalize": _canonicalize,
        "createDirectory": _create_directory,
        "remove": _remove,
        "copy": _copy,
        "move": _move,
        "listTree": _list_tree,
        "listNames": _list_names,
        "readFiles": _read_files,
        "readPart": _read_part,
        "writeFiles": _write_files,
        "makeChanges": _make_changes,
        "watch": _watch,
        "watchRead": _watch_read,
        "watchEnd": _watch_end,
        "readDirectory": _read_directory,
        "walk": _walk,
        "read": _read,
        "readOn": _read_on,
        "readEnd": _read_end,
        "write": _write,
        "open": _open,
        "readBlock": _read_block,
        "writeBlock": _write_block,
        "close": _close,
        "forget": _forget,
    }
