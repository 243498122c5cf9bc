"""The shell of a script, and its argv.

A shell is known by its file name without extension.  A path selects its kind: the program
is the one of that kind on the PATH.  An unknown shell becomes ``/bin/sh``.
"""

from __future__ import annotations

import posixpath
import shutil

from handrail.errors import UsageError

KINDS = ("bash", "zsh", "sh")
FALLBACK = "/bin/sh"


def kind(path: str) -> str | None:
    """The kind of shell that a path names."""
    name = posixpath.splitext(posixpath.basename(path))[0]
    return name if name in KINDS else None


def shell_argv(
    cmd: str,
    *,
    default: str,
    shell: str | None,
    login: bool | None,
    allow_login: bool,
    remote: bool,
) -> tuple[str, str, str]:
    """The argv that runs ``cmd``; ``default`` is the shell of the machine.

    Raises UsageError for a login shell where none is allowed, and for another shell than the
    default on a remote machine, where files cannot be looked up.
    """
    if login and not allow_login:
        raise UsageError(
            "login shells are disabled by configuration: leave `login` out or set it to false"
        )
    if login is None:
        login = allow_login
    if kind(default) is None:
        default = FALLBACK
    if not shell:
        program = default
    elif not remote:
        program = _located(shell)
    elif kind(shell) == kind(default):
        program = default
    else:
        raise UsageError(
            f"the machine this runs on offers {default} and no other shell: leave `shell` out"
        )
    return (program, "-lc" if login else "-c", cmd)


def _located(shell: str) -> str:
    wanted = kind(shell)
    if wanted is None:
        return FALLBACK
    return shutil.which(wanted) or shutil.which(wanted, path="/bin:/usr/bin") or FALLBACK
