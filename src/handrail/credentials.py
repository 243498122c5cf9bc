"""Secrets: variables that no child gets or inherits, and the one reader of secret files.

Standard library only and cheap to import: ``handrail run`` needs the first part before a command
starts.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_OWN_WORDS = ("TOKEN", "SECRET", "KEY", "PASSWORD")
#: A variable with one of these in its name looks like a secret; the first three are the peer's.
_SECRET_WORDS = (
    *("KEY", "SECRET", "TOKEN"),
    *("PASSWORD", "PASSWD", "PASSPHRASE", "PASSCODE", "CREDENTIAL", "COOKIE"),
)
#: So does one whose name ends with one of these.
_SECRET_ENDINGS = (
    *("_PASS", "_PWD", "_PAT", "_JWT", "_AUTH", "_AUTH_CONFIG", "_DSN", "CONNECTION_STRING"),
    *("DATABASE_URL", "REDIS_URL", "MONGODB_URI", "MONGO_URL", "AMQP_URL", "WEBHOOK_URL"),
)
#: Both as patterns of an environment policy.
SECRET_PATTERNS = (
    *[f"*{word}*" for word in _SECRET_WORDS],
    *[f"*{ending}" for ending in _SECRET_ENDINGS],
)
#: No secret is longer; a file that is was given by mistake.
MOST_BYTES = 64 * 1024


def is_credential(name: str) -> bool:
    """Whether a variable of this name is a credential for a handrail server.

    ``HANDRAIL_TOKEN`` and ``HANDRAIL_MCP_TOKEN`` are, and so is every later one named like them.
    """
    folded = name.upper()
    return folded.startswith("HANDRAIL_") and any(word in folded for word in _OWN_WORDS)


def looks_secret(name: str) -> bool:
    """Whether a variable of this name is not inherited; the same as ``SECRET_PATTERNS``."""
    folded = name.upper()
    return folded.endswith(_SECRET_ENDINGS) or any(word in folded for word in _SECRET_WORDS)


def without(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without credentials, for a child."""
    # Most begin otherwise, and this is asked for every command.
    return {
        name: value
        for name, value in environ.items()
        if name[:1] not in "hH" or not is_credential(name)
    }


def forget_variables() -> None:
    """Remove them from this process's environment, before a command inherits it."""
    _forget(is_credential)


def forget_secrets() -> None:
    """Remove everything that looks like a secret, as an environment policy would."""
    _forget(looks_secret)


def _forget(is_meant: Callable[[str], bool]) -> None:
    for name in [name for name in os.environ if is_meant(name)]:
        del os.environ[name]


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
