"""The files of this machine for the ``apply_patch`` command, which has no event loop."""

from __future__ import annotations

import os

from handrail.errors import FilesError
from handrail.filesystem import local


class LocalFiles:
    """``Files`` of the patch tool on ``filesystem/``; links are followed."""

    def read(self, path: str) -> bytes:
        try:
            return local.read_file(path)
        except FilesError as error:
            if error.kind == "invalid_input" and os.path.isdir(path):
                raise _is_folder(path) from error
            raise

    def write(self, path: str, data: bytes) -> None:
        local.write_file(path, data)

    def copy(self, source: str, path: str) -> None:
        local.copy(local.canonicalize(source), path)

    def remove(self, path: str) -> None:
        """Remove a file, or a link to one."""
        if local.get_metadata(path).is_directory:
            raise _is_folder(path)
        local.remove(path, recursive=False, force=False)

    def mkdir(self, path: str) -> None:
        local.create_directory(path, recursive=False)

    def rmdir(self, path: str) -> None:
        local.remove(path, recursive=False, force=False)


def _is_folder(path: str) -> FilesError:
    return FilesError(f"path `{path}` is not a file", kind="is_a_directory", path=path)
