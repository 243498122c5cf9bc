"""Files in memory only: directories and regular files, no links."""

from __future__ import annotations

import posixpath

from handrail.errors import FilesError
from handrail.executor.files import FileEntry, FileMetadata, Files, Progress
from handrail.sandbox.profile import Intent

#: Directories that always exist: the working directory, the home directory, /tmp.
CWD, HOME, TEMP = "/workspace", "/home/fake", "/tmp"  # noqa: S108 (no real path)


class FakeFiles(Files):
    """``Files`` in memory; ``content`` is all of it."""

    def __init__(self) -> None:
        #: Files by path; None for a directory.
        self.content: dict[str, bytes | None] = dict.fromkeys(("/", "/home", HOME, TEMP, CWD))

    def sandboxed(self, intent: Intent) -> FakeFiles:
        """The same files: no process of this machine sees any."""
        return self

    async def read(self, path: str, *, progress: Progress | None = None) -> bytes:
        data = self._get(path)
        if data is None:
            raise FilesError(f"path `{path}` is not a file", kind="invalid_input", path=path)
        if progress is not None:
            progress(len(data), len(data))
        return data

    async def write(self, path: str, data: bytes, *, progress: Progress | None = None) -> None:
        path = _plain(path)
        if self._get(posixpath.dirname(path)) is not None:
            raise FilesError("Not a directory", kind="not_a_directory", path=path)
        if self.content.get(path, b"") is None:
            raise FilesError("Is a directory", kind="is_a_directory", path=path)
        self.content[path] = bytes(data)
        if progress is not None:
            progress(len(data), len(data))

    async def list(self, path: str) -> list[FileEntry]:
        path = _plain(path)
        if self._get(path) is not None:
            raise FilesError("Not a directory", kind="not_a_directory", path=path)
        return [
            FileEntry(posixpath.basename(name), data is None, data is not None)
            for name, data in sorted(self.content.items())
            if name != "/" and posixpath.dirname(name) == path
        ]

    async def metadata(self, path: str) -> FileMetadata:
        data = self._get(path)
        return FileMetadata(data is None, data is not None, False, len(data or b""), 0, 0)

    async def canonical(self, path: str) -> str:
        self._get(path)
        return _plain(path)

    async def mkdir(self, path: str, *, parents: bool = True) -> None:
        path = _plain(path)
        if path in self.content and (self.content[path] is not None or not parents):
            raise FilesError("File exists", kind="exists", path=path)
        above = posixpath.dirname(path)
        if self.content.get(above, None) is not None:
            raise FilesError("Not a directory", kind="not_a_directory", path=path)
        if parents and path != "/":
            await self.mkdir(above)
        self._get(above)
        self.content[path] = None

    async def remove(self, path: str, *, recursive: bool = False, force: bool = False) -> None:
        path = _plain(path)
        if path not in self.content:
            if not force:
                self._get(path)
            return
        below = [name for name in self.content if name.startswith(path.rstrip("/") + "/")]
        if below and not recursive:
            raise FilesError("Directory not empty", path=path)
        for name in (*below, path):
            if name != "/":
                del self.content[name]

    async def copy(self, source: str, destination: str, *, recursive: bool = False) -> None:
        source, destination = _plain(source), _plain(destination)
        if self._get(source) is None and not recursive:
            raise FilesError(
                "fs/copy requires recursive: true when sourcePath is a directory",
                kind="invalid_input",
                path=source,
            )
        for name, data in list(self.content.items()):
            if name == source or name.startswith(source + "/"):
                self.content[destination + name[len(source) :]] = data

    def _get(self, path: str) -> bytes | None:
        try:
            return self.content[_plain(path)]
        except KeyError:
            text = "No such file or directory (os error 2)"
            raise FilesError(text, kind="not_found", path=path) from None


def _plain(path: str) -> str:
    if not path.startswith("/"):
        raise FilesError(
            f"{path!r} is not absolute; give the whole path", kind="invalid_input", path=path
        )
    return posixpath.normpath(path)
