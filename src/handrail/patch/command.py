"""The ``apply_patch`` command: arguments and standard input to exit code and texts.

Streams are bytes.  Exit codes: 0 applied, 1 failed, 2 wrong usage.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from handrail.errors import PatchError
from handrail.patch import report
from handrail.patch.apply import Mode, apply
from handrail.patch.grammar import parse
from handrail.patch.io_steps import Files
from handrail.patch.local import LocalFiles


class Source(Protocol):
    """A stream of bytes to read to its end."""

    def read(self) -> bytes:
        """Everything."""


class Sink(Protocol):
    """A stream of bytes to write to."""

    def write(self, data: bytes, /) -> object:
        """Write all of ``data``."""


def run(
    argv: Sequence[str],
    stdin: Source,
    stdout: Sink,
    stderr: Sink,
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


def _say(sink: Sink, text: str) -> None:
    # A working directory that is not UTF-8 can only be shown approximately.
    sink.write(text.encode("utf-8", "surrogateescape").decode("utf-8", "replace").encode())
