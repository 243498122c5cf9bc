"""Reads a file that holds a token or another secret, unless another user can have written it."""

from __future__ import annotations

import os

#: No secret is longer; a file that is was given by mistake.
MOST_BYTES = 64 * 1024


def read_secret(path: str, what: str) -> bytes:
    """The trimmed content of a secret file, called ``what`` in messages, which never quote it.

    Raises UsageError for one that another user can change or has made, for what is no file, and for
    one that is empty, too long or no text.
    """
    from handrail.start_errors import UsageError

    path = os.path.abspath(path)
    problem = ""
    data = b""
    try:
        # O_NONBLOCK: opening a pipe would wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            problem = _way_problem(path) or _file_problem(os.fstat(fd), path, what)
            if not problem:
                with open(fd, "rb", closefd=False) as file:
                    data = file.read(MOST_BYTES + 1)
        finally:
            os.close(fd)
    except OSError as error:
        problem = f"{error.strerror} (os error {error.errno})"
    if len(data) > MOST_BYTES:
        problem = f"it holds more than {MOST_BYTES} bytes"
    secret = ""
    try:
        secret = data.decode("utf-8").strip()
    except UnicodeDecodeError:
        problem = problem or "stream did not contain valid UTF-8"
    if problem:
        raise UsageError(f"failed to read {what} {path}: {problem}")
    if not secret:
        raise UsageError(f"{what} {path} must not be empty")
    return secret.encode()


def _way_problem(path: str) -> str:
    """Why another user could have put a file with known content there."""
    import stat

    status = os.stat(path, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode) and status.st_uid not in (os.geteuid(), 0):
        return f"it is a link of uid {status.st_uid}, who could change it; name the file itself"
    directory = os.path.dirname(path)
    mode = os.stat(directory).st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return f"every user can put another file there; run: chmod o-w {directory}"
    return ""


def _file_problem(status: os.stat_result, path: str, what: str) -> str:
    import logging
    import stat

    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to uid {status.st_uid}, who could change it; own the file yourself"
    if status.st_nlink > 1:
        # A sandbox hides the name that was given, not the others.
        return "it has another name (a hard link), by which commands could read it; make a copy"
    if mode & 0o022:
        return f"other users can change it (mode {mode:04o}); run: chmod 600 {path}"
    if mode & 0o055:
        logging.getLogger(__name__).warning(
            "%s %s is open to other users (mode %04o); run: chmod 600 %s", what, path, mode, path
        )
    return ""
