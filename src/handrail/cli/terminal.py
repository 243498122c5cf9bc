"""The user's own terminal: raw while a process has it, restored afterwards."""

from __future__ import annotations

import contextlib
import os
import termios
import tty
from collections.abc import Iterator


def is_there() -> bool:
    """Whether stdin and stdout are a terminal."""
    return os.isatty(0) and os.isatty(1)


def size() -> tuple[int, int]:
    """Rows and columns, 24 x 80 where they are not known."""
    try:
        found = os.get_terminal_size(0)
    except OSError:
        return (24, 80)
    return (found.lines or 24, found.columns or 80)


@contextlib.contextmanager
def raw() -> Iterator[None]:
    """Pass every key to the process, also Ctrl-C; the terminal is always restored."""
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def read_key(text: str) -> bytes:
    """Parse ``ctrl-]`` and the like into the byte a terminal sends; raises ValueError."""
    name = text.lower().removeprefix("ctrl-").removeprefix("^")
    if text.lower() == name or len(name) != 1 or not ("a" <= name <= "z" or name in "@[\\]^_"):
        raise ValueError(f"{text!r} is no control key; use one such as ctrl-]")
    return bytes([ord(name.upper()) & 0x1F])
