"""The ``apply_patch`` command: arguments and standard input to exit code and texts.

Streams are bytes.  Exit codes: 0 applied, 1 failed, 2 wrong usage.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import BinaryIO

from handrail.errors import FilesError, PatchError
from handrail.filesystem import local
from handrail.patch import report
from handrail.patch.apply import Mode, apply
from handrail.patch.grammar import parse
from handrail.patch.io_steps import Files


class LocalFiles:
    """The files of this machine, for a program without an event loop; links are followed."""

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


def run(
    argv: Sequence[str],
    stdin: BinaryIO,
    stdout: BinaryIO,
    stderr: BinaryIO,
    cwd: str,
    *,
    mode: Mode = Mode.COMPATIBLE,
    files: Files | None = None,
) -> int:
    """Run the command; ``argv`` is without the program's name.

    ``cwd`` is absolute.  ``files`` are those of this machine unless given.
    """
    if len(argv) > 1:
        _say(stderr, report.TOO_MANY_ARGUMENTS)
        return 2
    if argv:
        data = os.fsencode(argv[0])
        not_utf8 = report.ARGUMENT_NOT_UTF8
    else:
        data = stdin.read()
        not_utf8 = report.STDIN_NOT_UTF8
        if not data:
            _say(stderr, report.USAGE)
            return 2
    try:
        text = data.decode()
    except UnicodeDecodeError:
        _say(stderr, not_utf8)
        return 1
    try:
        changes = apply(parse(text), files or LocalFiles(), cwd, mode)
    except PatchError as error:
        _say(stderr, report.failure(error))
        return 1
    _say(stdout, report.summary(changes))
    return 0


def _say(sink: BinaryIO, text: str) -> None:
    # A working directory that is not UTF-8 can only be shown approximately.
    sink.write(text.encode("utf-8", "surrogateescape").decode("utf-8", "replace").encode())
