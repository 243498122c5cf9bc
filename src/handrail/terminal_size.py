"""Set the size of a terminal."""

import fcntl
import struct
import termios


def resize(terminal: int, rows: int, columns: int) -> None:
    """Set it; the kernel tells the foreground job by SIGWINCH.  Raises OSError."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
