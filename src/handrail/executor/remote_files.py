"""The files of another machine: ``fs/*`` calls, large files in blocks.

Reads, and calls that lead to the same state when done twice, are repeated after a lost
connection; the others fail and say that they may have happened.
"""

from __future__ import annotations

import itertools
import os
import re
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from handrail.errors import (
    ExecutorTransportFailed,
    FilesError,
    RemoteProtocolError,
    RpcError,
    TransportError,
)
from handrail.executor.client.session import ExecServerClient
from handrail.executor.files import FileEntry, FileMetadata, Files, Progress
from handrail.filesystem.errors import kind_of
from handrail.protocol import codec, filesystem, path_uri
from handrail.protocol.envelope import INVALID_REQUEST, NOT_FOUND
from handrail.sandbox.intent import to_wire
from handrail.sandbox.profile import Intent

if TYPE_CHECKING:
    from handrail.executor.trees.base import Trees
    from handrail.filesystem.trees.loop_watch import Watch

T = TypeVar("T")

#: Larger files are sent in blocks: a message has at most 16 MiB.
_WHOLE = 8 * 1024 * 1024
_BLOCK = 1024 * 1024
#: Seconds that a watch may wait in one call.
LONGEST_WAIT = 10.0
#: How a server without error kinds reports an errno.
_NUMBER = re.compile(r"\(os error (\d+)\)$")
#: Calls that may take long without sending anything.
_LASTING = (
    "fs/copy",
    "fs/move",
    "fs/remove",
    "fs/listTree",
    "fs/listNames",
    "fs/writeFiles",
    "fs/watch",
    "fs/watchRead",
)


class RemoteFiles(Files):
    """``Files`` of a server."""

    def __init__(
        self,
        client: ExecServerClient,
        timeout: float | None,
        sandbox: dict[str, object] | None = None,
    ) -> None:
        self._client = client
        self._timeout = timeout
        self._sandbox = sandbox
        self._handles = itertools.count(1)

    def sandboxed(self, intent: Intent) -> RemoteFiles:
        """The same files as a process in that sandbox sees them."""
        sandboxed = RemoteFiles(self._client, self._timeout, to_wire(intent))
        sandboxed._handles = self._handles
        return sandboxed

    async def read(self, path: str, *, progress: Progress | None = None) -> bytes:
        size = (await self.metadata(path)).size
        if size > _WHOLE:
            return await self._read_blocks(path, size, progress)
        result = await self.call(
            "fs/readFile", {"path": uri(path)}, filesystem.ReadFileResult, path, repeat=True
        )
        data = codec.decode_base64(result.data_base64, "dataBase64")
        if progress is not None:
            progress(len(data), len(data))
        return data

    async def _read_blocks(self, path: str, size: int, progress: Progress | None) -> bytes:
        handle = await self._open(path, "read")
        parts: list[bytes] = []
        done = 0
        try:
            while True:
                params = {"handleId": handle, "offset": done, "len": _BLOCK}
                block = await self.call(
                    "fs/readBlock", params, filesystem.ReadBlockResult, path, repeat=False
                )
                data = codec.decode_base64(block.chunk, "chunk")
                parts.append(data)
                done += len(data)
                if progress is not None:
                    progress(done, max(done, size))
                if block.eof or not data:
                    return b"".join(parts)
        finally:
            await self._close(handle, path)

    async def write(self, path: str, data: bytes, *, progress: Progress | None = None) -> None:
        if len(data) > _WHOLE:
            await self._write_blocks(path, data, progress)
            return
        params = {"path": uri(path), "dataBase64": codec.encode_base64(data).decode()}
        await self.call("fs/writeFile", params, None, path, repeat=True)
        if progress is not None:
            progress(len(data), len(data))

    async def _write_blocks(self, path: str, data: bytes, progress: Progress | None) -> None:
        handle = await self._open(path, "replace")
        view = memoryview(data)
        # Closed only when complete: closing puts the file in place.  The server drops an open one
        # with the connection.
        for at in range(0, len(view), _BLOCK):
            chunk = codec.encode_base64(view[at : at + _BLOCK]).decode()
            params = {"handleId": handle, "offset": at, "chunk": chunk}
            await self.call("fs/writeBlock", params, None, path, repeat=False)
            if progress is not None:
                progress(min(at + _BLOCK, len(view)), len(view))
        await self._close(handle, path)

    async def _open(self, path: str, mode: str) -> str:
        handle = f"{self._client.nonce[:8]}-{next(self._handles)}"
        params = {"handleId": handle, "path": uri(path), "mode": mode}
        await self.call("fs/open", params, None, path, repeat=False)
        return handle

    async def _close(self, handle: str, path: str) -> None:
        params = {"handleId": handle}
        await self.call("fs/close", params, None, path, repeat=False, reserved=True)

    async def list(self, path: str) -> list[FileEntry]:
        result = await self.call(
            "fs/readDirectory",
            {"path": uri(path)},
            filesystem.ReadDirectoryResult,
            path,
            repeat=True,
        )
        entries = [FileEntry(_name(e), e.is_directory, e.is_file) for e in result.entries]
        return sorted(entries, key=lambda entry: entry.name)

    async def metadata(self, path: str) -> FileMetadata:
        found = await self.call(
            "fs/getMetadata", {"path": uri(path)}, filesystem.MetadataResult, path, repeat=True
        )
        return FileMetadata(*msgspec.structs.astuple(found))

    async def canonical(self, path: str) -> str:
        result = await self.call(
            "fs/canonicalize", {"path": uri(path)}, filesystem.PathResult, path, repeat=True
        )
        return os.fsdecode(path_uri.to_path(result.path))

    async def mkdir(self, path: str, *, parents: bool = True) -> None:
        params = {"path": uri(path), "recursive": parents}
        await self.call("fs/createDirectory", params, None, path, repeat=parents)

    async def remove(self, path: str, *, recursive: bool = False, force: bool = False) -> None:
        params = {"path": uri(path), "recursive": recursive, "force": force}
        await self.call("fs/remove", params, None, path, repeat=force)

    async def copy(self, source: str, destination: str, *, recursive: bool = False) -> None:
        params = {
            "sourcePath": uri(source),
            "destinationPath": uri(destination),
            "recursive": recursive,
        }
        await self.call("fs/copy", params, None, source, repeat=False)

    async def move(self, source: str, destination: str) -> None:
        if self.trees is None:
            await super().move(source, destination)
            return
        params = {"sourcePath": uri(source), "destinationPath": uri(destination)}
        await self.call("fs/move", params, None, source, repeat=False)

    @property
    def trees(self) -> Trees | None:
        if "fileBatches" not in self._client.extensions:
            return None
        from handrail.executor.trees.remote import RemoteTrees

        return RemoteTrees(self)

    async def watch(self, path: str, *, recursive: bool = True) -> Watch:
        if "fileWatch" not in self._client.extensions:
            return await super().watch(path, recursive=recursive)
        from handrail.executor.trees.remote import RemoteWatch

        name = f"{self._client.nonce[:8]}-{next(self._handles)}"
        params = {"watch": name, "path": uri(path), "recursive": recursive}
        await self.call("fs/watch", params, None, path, repeat=True)
        longest = LONGEST_WAIT if self._timeout is None else self._timeout / 2
        return RemoteWatch(self, name, path, longest)

    async def call(
        self,
        method: str,
        params: dict[str, Any],
        shape: type[T] | None,
        path: str,
        *,
        repeat: bool,
        reserved: bool = False,
    ) -> T:
        """Make one call about a path; raises FilesError or ExecutorTransportFailed."""
        if self._sandbox is not None and not params.keys().isdisjoint(("path", "sourcePath")):
            params = {**params, "sandbox": self._sandbox}
        try:
            raw = await self._client.call(
                method,
                params,
                timeout=self._timeout,
                repeat=repeat,
                reserved=reserved,
                prompt=method not in _LASTING,
            )
            return msgspec.convert(raw, shape) if shape is not None else cast("T", raw)
        except RpcError as error:
            raise _files_error(error, path) from error
        except msgspec.ValidationError as error:
            raise RemoteProtocolError(f"a {method} that does not read: {error}") from None
        except TransportError as error:
            raise ExecutorTransportFailed(str(error)) from error


def _files_error(error: RpcError, path: str) -> FilesError:
    kind = "other"
    if isinstance(error.data, dict) and isinstance(error.data.get("kind"), str):
        kind = error.data["kind"]
    elif error.code == NOT_FOUND:
        kind = "not_found"
    elif error.code == INVALID_REQUEST:
        denied = "permission denied" in error.message.lower()
        kind = "permission_denied" if denied else "invalid_input"
    elif (number := _NUMBER.search(error.message)) is not None:
        kind = kind_of(int(number[1]))  # a server that sends only the errno
    return FilesError(error.message, kind=kind, path=path)


def uri(path: str) -> str:
    """The URI of an absolute path; raises FilesError for another."""
    if not path.startswith("/"):
        raise FilesError(
            f"{path!r} is not absolute; give the whole path", kind="invalid_input", path=path
        )
    return path_uri.to_uri(os.fsencode(path))


def _name(entry: filesystem.DirectoryEntryShape) -> str:
    if entry.uri is not None:
        return os.fsdecode(path_uri.to_path(entry.uri).rpartition(b"/")[2])
    return entry.file_name
