"""Trees of another machine, by the calls of a server that offers them.

All of them are repeated after a lost connection: doing one twice leads to the same state.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from handrail.errors import FilesError, HandrailError, RemoteProtocolError
from handrail.executor.remote_files import uri
from handrail.executor.trees.base import Outcomes, Trees
from handrail.filesystem.trees.entry import (
    DIRECTORY,
    Batch,
    Change,
    Contents,
    Names,
    TreeEntry,
    joined,
)
from handrail.filesystem.trees.listing import Page
from handrail.filesystem.trees.loop_watch import Watch
from handrail.filesystem.trees.names_listing import Directory, NamesPage
from handrail.filesystem.trees.tree_watch import FileEvent, Happened
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

    async def names(
        self, root: str, *, after: tuple[bytes, bytes] | None = None, exclude: Sequence[str] = ()
    ) -> NamesPage:
        params: dict[str, Any] = {"path": uri(root), "exclude": list(exclude)}
        if after is not None:
            directory, name = (file_trees.relative_text(one) for one in after)
            params["after"] = {"directory": directory, "name": name}
        shape = file_trees.ListNamesResult
        found = await self._files.call("fs/listNames", params, shape, root, repeat=True)
        path, more = file_trees.relative_path, found.more
        return NamesPage(
            _entry(found.root),
            [_directory(one) for one in found.directories],
            [_entry(one) for one in found.others],
            [_problem(one) for one in found.problems],
            None if more is None else (path(more.directory), path(more.name)),
        )

    async def read(self, root: str, wanted: Sequence[Names]) -> Contents:
        result = await self._read(root, {"groups": _groups(wanted)})
        data = codec.decode_base64(result.data_base64, "dataBase64")
        count = sum(len(one.names) for one in wanted)
        lengths = [len(one) for one in (result.modes, result.times, result.lengths)]
        sent = sum(one for one in result.lengths if one > 0)
        if lengths != [count] * 3 or sent != len(data) or min(result.lengths, default=0) < -1:
            raise RemoteProtocolError("an fs/readFiles that answers for other files")
        problems = _problems(result.problems, root, wanted)
        large = {one.index: one.size for one in result.large if 0 <= one.index < count}
        missing = {index for index, length in enumerate(result.lengths) if length < 0}
        if missing != problems.keys() | large.keys():
            raise RemoteProtocolError("an fs/readFiles that leaves files out")
        return Contents(result.modes, result.times, result.lengths, data, problems, large)

    async def read_part(self, root: str, path: bytes, offset: int, length: int) -> bytes:
        part = {"path": file_trees.relative_text(path), "offset": offset, "length": length}
        result = await self._read(root, {"part": part})
        return codec.decode_base64(result.data_base64, "dataBase64")[:length]

    async def _read(self, root: str, params: dict[str, Any]) -> file_trees.ReadFilesResult:
        params = {"path": uri(root), **params}
        shape = file_trees.ReadFilesResult
        return await self._files.call("fs/readFiles", params, shape, root, repeat=True)

    async def write(self, root: str, batch: Batch) -> dict[int, FilesError]:
        params = {
            "groups": _groups(batch.groups),
            "modes": batch.modes,
            "times": batch.times,
            "lengths": batch.lengths,
        }
        result = await self._write(root, batch.data, params)
        return _problems(result.problems, root, batch.groups)

    async def change(self, root: str, changes: Sequence[Change], data: bytes = b"") -> Outcomes:
        params = {"changes": [_change(one) for one in changes]}
        result = await self._write(root, data, params)
        paths = [Names(b"", [one.path for one in changes])]
        failed = _problems(result.problems, root, paths)
        return [failed.get(index) for index in range(len(changes))]

    async def _write(
        self, root: str, data: bytes | memoryview, params: dict[str, Any]
    ) -> file_trees.WriteFilesResult:
        # The content first: the server finds it before it reads the rest.
        content = msgspec.Raw(b'"%b"' % codec.encode_base64(data))
        params = {"path": uri(root), "dataBase64": content, **params}
        shape = file_trees.WriteFilesResult
        return await self._files.call("fs/writeFiles", params, shape, root, repeat=True)


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


def _directory(one: file_trees.ListedDirectoryShape) -> Directory:
    path = file_trees.relative_path
    entry = TreeEntry(path(one.path), DIRECTORY, one.mode, one.modified_ns)
    return Directory(entry, path(one.names).split(b"/") if one.names else [])


def _groups(groups: Sequence[Names]) -> list[file_trees.NamesShape]:
    text = file_trees.relative_text
    return [
        file_trees.NamesShape(directory=text(one.directory), names=text(b"/".join(one.names)))
        for one in groups
    ]


def _problems(
    found: Sequence[file_trees.FileProblemShape], root: str, groups: Sequence[Names]
) -> dict[int, FilesError]:
    """What failed, by position among the files."""
    if not found:
        return {}
    paths = [joined(one.directory, name) for one in groups for name in one.names]
    return {
        one.index: FilesError(
            one.message, kind=one.kind, path=os.path.join(root, os.fsdecode(paths[one.index]))
        )
        for one in found
        if 0 <= one.index < len(paths)
    }


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
