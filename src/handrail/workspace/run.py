"""``handrail.run``: one command in a workspace of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

from handrail.workspace.arguments import AnyPath, Command, Env
from handrail.workspace.profile import Sandbox
from handrail.workspace.result import Output, Result
from handrail.workspace.synchronous import Workspace


@overload
def run(
    command: Command,
    *,
    cwd: AnyPath = ".",
    at: str | None = None,
    token: str | None = None,
    sandbox: Sandbox = "workspace-write",
    env: Env | None = None,
    timeout: float | None = None,
    check: bool = False,
    input: str | bytes | None = None,
    text: Literal[True] = True,
    tty: bool = False,
    on_output: Callable[[Output], object] | None = None,
    request_timeout: float | None = 30.0,
) -> Result[str]: ...
@overload
def run(
    command: Command,
    *,
    text: Literal[False],
    cwd: AnyPath = ".",
    at: str | None = None,
    token: str | None = None,
    sandbox: Sandbox = "workspace-write",
    env: Env | None = None,
    timeout: float | None = None,
    check: bool = False,
    input: str | bytes | None = None,
    tty: bool = False,
    on_output: Callable[[Output], object] | None = None,
    request_timeout: float | None = 30.0,
) -> Result[bytes]: ...
def run(
    command: Command,
    *,
    cwd: AnyPath = ".",
    at: str | None = None,
    token: str | None = None,
    sandbox: Sandbox = "workspace-write",
    env: Env | None = None,
    timeout: float | None = None,
    check: bool = False,
    input: str | bytes | None = None,  # noqa: A002 (subprocess calls it so)
    text: bool = True,
    tty: bool = False,
    on_output: Callable[[Output], object] | None = None,
    request_timeout: float | None = 30.0,
) -> Result[Any]:
    """Run one command in a workspace of its own, with ``cwd`` as its root.

    For several commands a ``Workspace`` is faster.  The arguments and what is raised are those
    of ``Workspace`` and ``Workspace.run``; times are in seconds.
    """
    with Workspace(
        cwd, at=at, token=token, sandbox=sandbox, env=env, request_timeout=request_timeout
    ) as workspace:
        result: Result[Any] = workspace.run(
            command,
            timeout=timeout,
            check=check,
            input=input,
            text=text,  # type: ignore[call-overload]
            tty=tty,
            on_output=on_output,
        )
    return result
