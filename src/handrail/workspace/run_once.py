"""``handrail.run``: one command in a workspace of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from handrail.errors import UsageError
from handrail.name_hints import arguments_checked
from handrail.workspace.arguments import AnyPath, Command, Env
from handrail.workspace.options import OneShotOptions, without_stdin
from handrail.workspace.profile import Sandbox
from handrail.workspace.result import Result
from handrail.workspace.synchronous.workspace import Workspace
from handrail.workspace.variables import InheritEnv

if TYPE_CHECKING:
    from typing import Unpack

    from handrail.orchestrator.approvers import AnyApprover


@overload
def run(
    command: Command, *, text: Literal[True] = True, **options: Unpack[OneShotOptions]
) -> Result[str]: ...
@overload
def run(
    command: Command, *, text: Literal[False], **options: Unpack[OneShotOptions]
) -> Result[bytes]: ...
def run(
    command: Command,
    *,
    cwd: AnyPath | None = None,
    at: str | None = None,
    token: str | None = None,
    sandbox: Sandbox | None = None,
    env: Env | None = None,
    inherit_env: InheritEnv = "all",
    secrets: Mapping[str, str | bytes] | None = None,
    request_timeout: float | None = 30.0,
    approver: AnyApprover | None = None,
    **options: Any,
) -> Result[Any]:
    """Run one command in a workspace of its own, with ``cwd`` as its root.

    For several commands a ``Workspace`` is faster.  The arguments and what is raised are those
    of ``Workspace`` and ``Workspace.run``, without ``wait``; times are in seconds.
    """
    if "wait" in options:
        raise UsageError("handrail.run waits for the end; use a Workspace to wait less")
    without_stdin(options, OneShotOptions)
    with Workspace(
        "." if cwd is None else cwd,
        at=at,
        token=token,
        sandbox="workspace-write" if sandbox is None else sandbox,
        env=env,
        inherit_env=inherit_env,
        secrets=secrets,
        request_timeout=request_timeout,
        approver=approver,
    ) as workspace:
        result: Result[Any] = workspace.run(command, **options)
    return result


if not TYPE_CHECKING:  # a type checker would lose the overloads
    run = arguments_checked(run)
