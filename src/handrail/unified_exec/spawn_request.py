"""From the arguments of a call to what would be started: the shell's argv, and its environment.

A shell is known by its file name without extension.  A path selects its kind: the program
is the one of that kind on the PATH.  An unknown shell becomes ``/bin/sh``.
"""

from __future__ import annotations

import posixpath
import secrets
import shutil
from collections.abc import Mapping

from handrail.errors import UsageError
from handrail.executor.base import Executor, SpawnRequest
from handrail.process.env_policy import build
from handrail.unified_exec.settings import Settings
from handrail.unified_exec.tools import ExecCommandArgs

KINDS = ("bash", "zsh", "sh")
FALLBACK = "/bin/sh"
#: No colours, no pager, no questions about the terminal, one encoding.  These override the rest.
FORCED: Mapping[str, str] = {
    "NO_COLOR": "1",
    "TERM": "dumb",
    "LANG": "C.UTF-8",
    "LC_CTYPE": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "COLORTERM": "",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GH_PAGER": "cat",
    "HANDRAIL_CI": "1",
    # Variables that scripts look for.
    "CODEX_CI": "1",
}


def spawn_id(process_id: int) -> str:
    """A name for a process that no other agent on the same executor has."""
    return f"{process_id}-{secrets.token_hex(4)}"


async def spawn_request(
    args: ExecCommandArgs, settings: Settings, executor: Executor, process_id: int
) -> SpawnRequest:
    """Make the complete request for the executor.  Raises UsageError."""
    default = settings.shell
    if default is None:
        named = args.shell and not settings.remote  # then the machine's own does not matter
        default = FALLBACK if named else (await executor.place()).shell
    argv = shell_argv(
        args.cmd,
        default=default,
        shell=args.shell,
        login=args.login,
        allow_login=settings.allow_login,
        remote=settings.remote,
    )
    cwd = posixpath.join(settings.cwd, args.workdir or "")
    if not cwd.startswith("/"):
        raise UsageError(f"the working directory {cwd!r} is not absolute: give the whole path")
    env = {**settings.env, **FORCED}
    policy = settings.env_policy
    return SpawnRequest(
        process_id=spawn_id(process_id),
        argv=argv,
        # Without the slash that joining leaves behind.
        cwd=cwd.rstrip("/") or "/",
        env=env if settings.base_env is None else build(policy, env, settings.base_env),
        env_policy=policy if settings.base_env is None else None,
        tty=args.tty,
        size=settings.size,
        pipe_stdin=False,
    )


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
