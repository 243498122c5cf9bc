"""Which shell runs a script, and how it is called.

A shell is known by its file name without extension.  Asking for one by path asks for its kind:
the program is the one of that kind on the PATH.  What is no shell we know becomes ``/bin/sh``.
"""

from __future__ import annotations

import os
import posixpath
import pwd
import shutil

from handrail.errors import UsageError

KINDS = ("bash", "zsh", "sh")
FALLBACK = "/bin/sh"


def kind(path: str) -> str | None:
    """Which shell a path names."""
    name = posixpath.splitext(posixpath.basename(path))[0]
    return name if name in KINDS else None


def user_shell() -> str:
    """The shell in the password database, if it is one we can use."""
    try:
        path = pwd.getpwuid(os.geteuid()).pw_shell
    except KeyError:
        return FALLBACK
    return path if kind(path) and os.access(path, os.X_OK) else FALLBACK


def shell_argv(
    cmd: str, *, default: str, shell: str | None, login: bool | None, allow_login: bool
) -> tuple[str, str, str]:
    """The argv that runs ``cmd``.  Raises UsageError for a login shell where there is none."""
    if login and not allow_login:
        raise UsageError(
            "login shells are disabled by configuration: leave `login` out or set it to false"
        )
    if login is None:
        login = allow_login
    program = default if not shell else _located(shell)
    return (program, "-lc" if login else "-c", cmd)


def _located(shell: str) -> str:
    wanted = kind(shell)
    if wanted is None:
        return FALLBACK
    return shutil.which(wanted) or shutil.which(wanted, path="/bin:/usr/bin") or FALLBACK
