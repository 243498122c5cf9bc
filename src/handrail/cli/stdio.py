"""Writes to stdout and stderr, and handles write errors.

Every command prints through the two that ``take_over`` puts in place of the interpreter's: a
write that fails raises ``OutputFailed`` wherever it happens, and ``settle`` turns that into one
sentence and an exit code.  A reader that has gone is no error; a full disk is.

What ``run_fast`` and ``sandbox`` complain of goes by ``complain``, before any of this is imported.
"""

from __future__ import annotations

import errno
import io
import os
import sys

from handrail.cli.foreground_command import complain, harmless
from handrail.exit_codes import OWN_FAILURE, READER_GONE

NAMES = {1: "stdout", 2: "stderr"}


class OutputFailed(OSError):
    """``stream`` (1 or 2) cannot be written; ``errno`` says why."""

    def __init__(self, stream: int, error: OSError) -> None:
        super().__init__(error.errno, error.strerror)
        self.stream = stream
        #: The consequence, for the message.
        self.outcome = "so not all of the output is there"

    def __str__(self) -> str:
        name = NAMES.get(self.stream, self.stream)
        return (
            f"{name} cannot be written ({self.strerror}), {self.outcome}; make room, or send it"
            " elsewhere"
        )


class _Raw(io.FileIO):
    """A descriptor that adds its stream to the error of a failed write."""

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            raise OutputFailed(self.fileno(), error) from None


def take_over() -> None:
    """Print through such descriptors from now on; names that are not UTF-8 are printed as bytes."""
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
    """Print a line on stderr, without characters that move the cursor; a failure is ignored."""
    try:
        print(harmless(text), file=sys.stderr)
    except OutputFailed:
        give_up(2)


def printable(text: str) -> str:
    """One line for a terminal: a name may have any character, also ones that move the cursor."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def settle(code: int) -> int:
    """Flush everything; returns the exit code, another one when stdout was not written in full."""
    try:
        sys.stdout.flush()
    except OutputFailed as error:
        return failed(error)
    finally:
        _flush_errors()
    return code


def failed(error: OutputFailed) -> int:
    """Report a failed write in one sentence, if possible; returns the exit code."""
    give_up(error.stream)
    if error.errno == errno.EPIPE:
        return READER_GONE
    from handrail.cli import error_output

    if error_output.wanted_as_json():
        complain(error_output.as_json(error, OWN_FAILURE), mark="")
    else:
        complain(str(error))
    return OWN_FAILURE


def give_up(fd: int) -> None:
    """Write nothing more to it; the interpreter would try again at its exit, and complain."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, fd)
    os.close(null)


def _flush_errors() -> None:
    try:
        sys.stderr.flush()
    except OutputFailed:
        give_up(2)
