"""An executor's files in the form that the patch tool needs, near and far alike."""

from __future__ import annotations

from handrail.errors import FilesError
from handrail.executor.files import Files


class PatchFiles:
    """``AsyncFiles`` of the patch tool."""

    def __init__(self, files: Files) -> None:
        self._files = files

    async def read(self, path: str) -> bytes:
        try:
            return await self._files.read(path)
        except FilesError as error:
            # The patch tool distinguishes a folder from other things that are no files.
            if error.kind == "invalid_input" and await self._is_directory(path):
                raise _is_folder(path) from error
            raise

    async def write(self, path: str, data: bytes) -> None:
        await self._files.write(path, data)

    async def copy(self, source: str, path: str) -> None:
        if (await self._files.metadata(source)).is_symlink:  # a link would be copied as one
            source = await self._files.canonical(source)
        await self._files.copy(source, path)

    async def remove(self, path: str) -> None:
        if (await self._files.metadata(path)).is_directory:
            # An executor would remove an empty folder, or a link to one, like a file.
            raise _is_folder(path)
        await self._files.remove(path)

    async def mkdir(self, path: str) -> None:
        await self._files.mkdir(path, parents=False)

    async def rmdir(self, path: str) -> None:
        await self._files.remove(path)

    async def _is_directory(self, path: str) -> bool:
        try:
            return (await self._files.metadata(path)).is_directory
        except FilesError:
            return False


def _is_folder(path: str) -> FilesError:
    return FilesError(f"path `{path}` is not a file", kind="is_a_directory", path=path)
