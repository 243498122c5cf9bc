"""From the arguments of a call to what would be started."""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Mapping

from handrail.errors import UsageError
from handrail.executor.base import Executor, SpawnRequest
from handrail.process.env_policy import build
from handrail.unified_exec.settings import Settings
from handrail.unified_exec.shell import shell_argv
from handrail.unified_exec.tools import ExecCommandArgs

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
    """What to start, complete.  Raises UsageError."""
    default = settings.shell or (await executor.place()).shell
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
