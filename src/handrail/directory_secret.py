"""The secret in a private directory, by which server, keeper and clients know each other."""

from __future__ import annotations

import os
import stat

from handrail import private_files

#: Size in bytes; it is written as hexadecimal digits.
_SIZE = 32
#: The file it is in.
SECRET = "secret"  # noqa: S105 (a file's name)


def read_secret(directory: int) -> bytes | None:
    """The secret in a private directory, or None; raises OSError if it is no plain file."""
    try:
        file = private_files.open_file(directory, SECRET, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        text = os.read(file, 4 * _SIZE)
    finally:
        os.close(file)
    return text if len(text) == 2 * _SIZE else None


def make_secret(directory: int) -> bytes:
    """The secret of a directory that this process has locked, made if missing; raises OSError."""
    known = read_secret(directory)
    if known is not None:
        return known
    secret = os.urandom(_SIZE).hex().encode()
    private_files.replace_file(directory, SECRET, secret)
    return secret


def secret_in(path: str) -> bytes | None:
    """The secret in the directory at a path, or None if there is none that is ours alone."""
    try:
        directory = os.open(path, private_files.DIRECTORY)
    except OSError:
        return None
    try:
        status = os.fstat(directory)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            return None
        return read_secret(directory)
    except OSError:
        return None
    finally:
        os.close(directory)
