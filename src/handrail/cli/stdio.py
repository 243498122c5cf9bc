"""Our own stdout and stderr, and what it means when they cannot be written.

Every command prints through the two that ``take_over`` puts in the place of the interpreter's: a
write that fails raises ``OutputFailed`` wherever it happens, and ``settle`` turns that into one
sentence and an exit code.  A reader that has gone is no error; a full disk is.

What ``run_fast`` and ``sandbox`` complain of goes by ``complain``, before any of this is imported.
"""

from __future__ import annotations

import errno
import io
import os
import sys

from handrail.cli.foreground_command import complain

#: When nobody reads any more, as a shell says it of those whom SIGPIPE has ended.
NOBODY_READS = 141
OWN_FAILURE = 125
NAMES = {1: "stdout", 2: "stderr"}


class OutputFailed(OSError):
    """``stream`` (1 or 2) cannot be written; ``errno`` says why."""

    def __init__(self, stream: int, error: OSError) -> None:
        super().__init__(error.errno, error.strerror)
        self.stream = stream
        #: What came of it.
        self.outcome = "so not all of the output is there"

    def __str__(self) -> str:
        name = NAMES.get(self.stream, self.stream)
        return (
            f"{name} cannot be written ({self.strerror}), {self.outcome}; make room, or send it"
            " elsewhere"
        )


class _Raw(io.FileIO):
    """A descriptor that says of a failure whose it was."""

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            raise OutputFailed(self.fileno(), error) from None


def take_over() -> None:
    """Print by descriptors of this kind from now on, names that are no UTF-8 as they are."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        before = getattr(sys, name)
        raw = _Raw(fd, "w", closefd=False)
        setattr(
            sys,
            name,
            io.TextIOWrapper(
                io.BufferedWriter(raw),
                encoding=getattr(before, "encoding", "utf-8"),
                errors="surrogateescape",
                line_buffering=fd == 2 or os.isatty(fd),
            ),
        )


def say(text: str) -> None:
    """A line on stderr; that it cannot be said changes nothing about what it says."""
    try:
        print(text, file=sys.stderr)
    except OutputFailed:
        give_up(2)


def printable(text: str) -> str:
    """In one line and for a terminal: a name may hold anything, what moves the cursor too."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def settle(code: int) -> int:
    """Flush everything; the exit code, another one when stdout did not take it all."""
    try:
        sys.stdout.flush()
    except OutputFailed as error:
        return failed(error)
    finally:
        _flush_errors()
    return code


def failed(error: OutputFailed) -> int:
    """Tell it in one sentence, where that can still be read; the exit code."""
    give_up(error.stream)
    if error.errno == errno.EPIPE:
        return NOBODY_READS
    from handrail.cli import error_output

    if error_output.wanted_as_json():
        complain(error_output.as_json(error, OWN_FAILURE), mark="")
    else:
        complain(str(error))
    return OWN_FAILURE


def give_up(fd: int) -> None:
    """Nothing more goes there; the interpreter would try again at its end, and complain."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, fd)
    os.close(null)


def _flush_errors() -> None:
    try:
        sys.stderr.flush()
    except OutputFailed:
        give_up(2)
