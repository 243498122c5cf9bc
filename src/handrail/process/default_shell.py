"""The shell of this machine's user, where none is named."""

from __future__ import annotations

import os
import pwd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def default_shell(environ: Mapping[str, str]) -> str:
    """The shell of the user database, else ``$SHELL``, else bash, else ``/bin/sh``.

    In this order the peer chooses too.  Accounts that must not log in have a program there that is
    no shell.
    """
    for path in (_login_shell(), environ.get("SHELL", ""), "/bin/bash"):
        if os.path.basename(path) not in ("", "false", "nologin") and os.access(path, os.X_OK):
            return path
    return "/bin/sh"


def _login_shell() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        return ""
