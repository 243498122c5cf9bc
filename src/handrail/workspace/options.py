"""The keyword arguments of commands and sessions, for ``start``, ``run``, ``shell`` and the like.

Type checkers read their types, and ``check_options`` their names; the defaults are those of
``AsyncWorkspace``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from handrail.errors import UsageError
from handrail.name_hints import unknown_option

if TYPE_CHECKING:
    from collections.abc import Callable

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


def without_stdin(options: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Options of ``kind`` for a command that reads nothing but ``input``; raises UsageError."""
    if "stdin" in options:
        raise UsageError("stdin= is for start; run takes input=, all that the command reads")
    check_options(options, kind, "text")
    return {**options, "stdin": False}


def check_options(given: Iterable[str], kind: type, *more: str) -> None:
    """Raises UsageError for an option that is neither one of ``kind``, above, nor of ``more``."""
    known = kind.__annotations__
    for name in given:
        if name not in known and name not in more:
            raise unknown_option(name, (*known, *more))
