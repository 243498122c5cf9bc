"""Trees of another machine, by the calls of a server that offers them.

All of them are repeated after a lost connection: doing one twice leads to the same state.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from handrail.errors import FilesError, HandrailError, RemoteProtocolError
from handrail.executor.remote_files import uri
from handrail.executor.trees.base import Contents, Outcomes, Trees
from handrail.filesystem.trees.changes import FileEvent, Happened
from handrail.filesystem.trees.entry import Change, TreeEntry, Wanted
from handrail.filesystem.trees.listing import Page
from handrail.filesystem.trees.loop_watch import Watch
from handrail.protocol import codec, file_trees, path_uri

if TYPE_CHECKING:
    from handrail.executor.remote_files import RemoteFiles


class RemoteTrees(Trees):
    """``Trees`` of a server."""

    def __init__(self, files: RemoteFiles) -> None:
        self._files = files

    async def list(self, root: str, *, after: bytes = b"", exclude: Sequence[str] = ()) -> Page:
        params = {
            "path": uri(root),
            "after": file_trees.relative_text(after),
            "exclude": list(exclude),
        }
        shape = file_trees.ListTreeResult
        found = await self._files.call("fs/listTree", params, shape, root, repeat=True)
        return Page(
            _entry(found.root),
            [_entry(one) for one in found.entries],
            [_problem(one) for one in found.problems],
            found.more,
        )

    async def read(self, root: str, wanted: Sequence[Wanted]) -> Contents:
        files = [
            {"path": file_trees.relative_text(one.path), "offset": one.offset, "length": one.length}
            for one in wanted
        ]
        params = {"path": uri(root), "files": files}
        shape = file_trees.ReadFilesResult
        result = await self._files.call("fs/readFiles", params, shape, root, repeat=True)
        data = codec.decode_base64(result.data_base64, "dataBase64")
        if len(result.files) != len(wanted):
            raise RemoteProtocolError("an fs/readFiles that answers for other files")
        found: Contents = []
        start = 0
        for one in result.files:
            if one.problem is not None:
                found.append(_problem(one.problem))
                continue
            found.append(data[start : start + one.length])
            start += one.length
        return found

    async def write(self, root: str, changes: Sequence[Change], data: bytes) -> Outcomes:
        params = {
            "path": uri(root),
            "changes": [_change(one) for one in changes],
            "dataBase64": codec.encode_base64(data).decode(),
        }
        shape = file_trees.WriteFilesResult
        result = await self._files.call("fs/writeFiles", params, shape, root, repeat=True)
        done: Outcomes = [None] * len(changes)
        for problem in result.problems:
            if 0 <= problem.index < len(done):
                path = os.path.join(root, os.fsdecode(changes[problem.index].path))
                error = FilesError(problem.message, kind=problem.kind, path=path)
                done[problem.index] = error
        return done


class RemoteWatch(Watch):
    """A watch of a server; it goes with its connection."""

    def __init__(self, files: RemoteFiles, name: str, path: str, longest: float) -> None:
        self._files = files
        self._name = name
        self._path = path
        self._longest = longest

    async def read(self, wait: float) -> Happened:
        params = {"watch": self._name, "waitMs": int(min(wait, self._longest) * 1000)}
        shape = file_trees.WatchReadResult
        found = await self._files.call("fs/watchRead", params, shape, self._path, repeat=True)
        events = [FileEvent(one.kind, file_trees.relative_path(one.path)) for one in found.changes]
        return Happened(events, found.gap, found.ended)

    async def close(self) -> None:
        try:
            params = {"watch": self._name}
            await self._files.call("fs/unwatch", params, None, self._path, repeat=False)
        except HandrailError:
            pass  # it went with its connection


def _entry(one: file_trees.TreeEntryShape) -> TreeEntry:
    return TreeEntry(
        file_trees.relative_path(one.path),
        one.kind,
        one.mode,
        one.modified_ns,
        one.size,
        file_trees.relative_path(one.target),
    )


def _problem(one: file_trees.TreeProblemShape) -> FilesError:
    path = os.fsdecode(path_uri.to_path(one.path))
    return FilesError(one.message, kind=one.kind, path=path)


def _change(one: Change) -> file_trees.ChangeShape:
    return file_trees.ChangeShape(
        path=file_trees.relative_text(one.path),
        kind=one.kind,  # type: ignore[arg-type]  # one of those
        mode=one.mode,
        modified_ns=one.modified_ns,
        length=one.length,
        target=file_trees.relative_text(one.target),
        offset=one.offset,
        stage=one.stage,
    )
