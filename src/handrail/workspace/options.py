"""The keyword arguments of a command, for ``start``, ``run`` and ``handrail.run`` alike.

Read by type checkers; the defaults are those of ``AsyncWorkspace``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypedDict

from handrail.network.settings import Network
from handrail.orchestrator.approvers import AnyApprover
from handrail.process.spec import Limits
from handrail.workspace.arguments import AnyPath, Env
from handrail.workspace.profile import Sandbox
from handrail.workspace.result import Output
from handrail.workspace.variables import InheritEnv


class CommandOptions(TypedDict, total=False):
    """What every command can be given."""

    timeout: float | None
    input: str | bytes | None
    tty: bool
    size: tuple[int, int]
    on_output: Callable[[Output], object] | None
    name: str | None
    labels: Mapping[str, str] | None
    limits: Limits | None
    watch_denials: bool
    cwd: AnyPath | None
    env: Env | None
    sandbox: Sandbox | None
    network: Network | None


class StartOptions(CommandOptions, total=False):
    """Of ``start``."""

    stdin: bool
    detach: bool
    keep_output: int | None


class RunOptions(CommandOptions, total=False):
    """Of ``run`` of a workspace."""

    wait: float | None
    check: bool
    max_output: int | None


class OneShotOptions(CommandOptions, total=False):
    """Of ``handrail.run``."""

    check: bool
    inherit_env: InheritEnv
    secrets: Mapping[str, str | bytes] | None
    max_output: int | None
    at: str | None
    token: str | None
    request_timeout: float | None
    approver: AnyApprover | None


class SessionOptions(TypedDict, total=False):
    """Of ``shell`` of a workspace."""

    cwd: AnyPath | None
    env: Env | None
    sandbox: Sandbox | None
    network: Network | None
    limits: Limits | None
    name: str | None
    labels: Mapping[str, str] | None


class PythonOptions(SessionOptions, total=False):
    """Of ``python`` of a workspace."""

    detach: bool


class SessionRunOptions(TypedDict, total=False):
    """Of ``run`` of a shell session."""

    timeout: float | None
    input: str | bytes | None
    check: bool
    on_output: Callable[[Output], object] | None
    max_output: int | None
