"""Files in memory that fail where a test wants them to."""

from __future__ import annotations

import posixpath

from handrail.errors import FilesError


class MemoryFiles:
    """``Files`` on a dict; ``fail`` names calls like ``("write", "/w/a")`` that go wrong."""

    def __init__(self, files: dict[str, bytes] | None = None, folder: str = "/w") -> None:
        self.files = dict(files or {})
        self.folders = {"/", folder}
        for path in self.files:
            self._add_folders(posixpath.dirname(path))
        self.fail: set[tuple[str, str]] = set()
        self.interrupt: tuple[str, str] | None = None
        self.calls: list[tuple[str, str]] = []

    def read(self, path: str) -> bytes:
        self._call("read", path)
        if path in self.folders:
            raise FilesError(f"path `{path}` is not a file", kind="is_a_directory")
        self._check_parents(path)
        if path not in self.files:
            raise FilesError("No such file or directory (os error 2)", kind="not_found")
        return self.files[path]

    def write(self, path: str, data: bytes) -> None:
        self._check_parents(path)
        if path in self.folders:
            raise FilesError("Is a directory (os error 21)", kind="is_a_directory")
        if posixpath.dirname(path) not in self.folders:
            raise FilesError("No such file or directory (os error 2)", kind="not_found")
        if ("write", path) in self.fail:
            self.files[path] = data[: len(data) // 2]  # a full disk
        self._call("write", path)
        self.files[path] = data

    def copy(self, source: str, path: str) -> None:
        data = self.read(source)
        self._call("copy", path)
        if posixpath.dirname(path) not in self.folders:
            raise FilesError("No such file or directory (os error 2)", kind="not_found")
        self.files[path] = data

    def remove(self, path: str) -> None:
        self._call("remove", path)
        if path not in self.files:
            raise FilesError("No such file or directory (os error 2)", kind="not_found")
        del self.files[path]

    def mkdir(self, path: str) -> None:
        self._call("mkdir", path)
        self._check_parents(path)
        if path in self.folders or path in self.files:
            raise FilesError("File exists (os error 17)", kind="exists")
        if posixpath.dirname(path) not in self.folders:
            raise FilesError("No such file or directory (os error 2)", kind="not_found")
        self.folders.add(path)

    def rmdir(self, path: str) -> None:
        self._call("rmdir", path)
        self.folders.remove(path)

    def _call(self, name: str, path: str) -> None:
        self.calls.append((name, path))
        if self.interrupt == (name, path):
            self.interrupt = None
            raise KeyboardInterrupt
        if (name, path) in self.fail:
            self.fail.discard((name, path))
            raise FilesError("No space left on device (os error 28)", kind="other")

    def _check_parents(self, path: str) -> None:
        while path != "/":
            path = posixpath.dirname(path)
            if path in self.files:
                raise FilesError("Not a directory (os error 20)", kind="not_a_directory")

    def _add_folders(self, path: str) -> None:
        while path not in self.folders:
            self.folders.add(path)
            path = posixpath.dirname(path)


class AwaitedFiles:
    """``AsyncFiles`` on top of ``Files``."""

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files

    async def read(self, path: str) -> bytes:
        return self.files.read(path)

    async def write(self, path: str, data: bytes) -> None:
        self.files.write(path, data)

    async def copy(self, source: str, path: str) -> None:
        self.files.copy(source, path)

    async def remove(self, path: str) -> None:
        self.files.remove(path)

    async def mkdir(self, path: str) -> None:
        self.files.mkdir(path)

    async def rmdir(self, path: str) -> None:
        self.files.rmdir(path)
