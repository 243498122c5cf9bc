"""The arguments of a call for the orchestrator, and their errors.  Pure."""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from handrail.errors import UsageError
from handrail.orchestrator.settings import Grants, Settings
from handrail.policy.context import Approval

#: So much one call may ask for: a person reads every path before the answer.
MOST_PATHS = 32
MOST_CHARACTERS = 8192


class Request(enum.Enum):
    """What a call asks of the sandbox."""

    USE_DEFAULT = "use_default"
    REQUIRE_ESCALATED = "require_escalated"
    WITH_ADDITIONAL = "with_additional_permissions"


@dataclass(frozen=True, slots=True)
class Call:
    """One command to be run.  ``cwd`` is absolute; ``argv`` is shown with a question."""

    call_id: str
    argv: tuple[str, ...]
    cwd: str
    tool: str = "exec_command"
    tty: bool = False
    request: Request = Request.USE_DEFAULT
    justification: str | None = None
    prefix_rule: tuple[str, ...] | None = None
    #: What WITH_ADDITIONAL asks for.
    wants: Grants = field(default_factory=Grants)
    environment_id: str = "local"
    #: The environment it gets; None: that of this process.
    env: Mapping[str, str] | None = field(default=None, compare=False, repr=False)


def read_request(
    settings: Settings,
    cwd: str,
    sandbox_permissions: str | None,
    justification: str | None,
    additional_permissions: Mapping[str, object] | None,
) -> tuple[Request, Grants]:
    """The escalation arguments of a call; raises UsageError with a sentence for the model."""
    if justification is not None and sandbox_permissions is None:
        raise UsageError(
            "`justification` is for a call that asks for more permissions: set"
            " `sandbox_permissions` too, or leave it out"
        )
    try:
        request = Request(sandbox_permissions or Request.USE_DEFAULT.value)
    except ValueError:
        names = ", ".join(kind.value for kind in Request)
        raise UsageError(
            f"`sandbox_permissions` cannot be {sandbox_permissions!r}; take one of {names}"
        ) from None
    if request is not Request.WITH_ADDITIONAL:
        if additional_permissions is not None:
            raise UsageError(
                "`additional_permissions` needs `sandbox_permissions` to be"
                f" `{Request.WITH_ADDITIONAL.value}`"
            )
        return request, Grants()
    if not settings.additional_permissions:
        raise UsageError(
            f"`{Request.WITH_ADDITIONAL.value}` is switched off here (additional_permissions);"
            f" use `{Request.REQUIRE_ESCALATED.value}` or do without"
        )
    if settings.approval is not Approval.ON_REQUEST:
        raise UsageError(
            f"more permissions can be asked for under the approval policy"
            f" `{Approval.ON_REQUEST.value}` only, and it is `{settings.approval.value}`: run it"
            " without them"
        )
    wants = read_grants(additional_permissions or {}, cwd)
    if wants.network and settings.sandbox.managed is not None:
        raise UsageError(
            "the network of this sandbox is a list of hosts, and cannot be asked for as a whole:"
            " connect, and hosts that are on no list are asked about"
        )
    if not wants:
        raise UsageError(
            "`additional_permissions` has to say what is wanted: `network` or `file_system` with"
            " `read` and `write` lists"
        )
    return request, wants


def read_grants(given: Mapping[str, object], cwd: str) -> Grants:
    """Read ``{"network": {"enabled": true}, "file_system": {"read": [..], "write": [..]}}``."""
    network = given.get("network")
    enabled = network.get("enabled") if isinstance(network, Mapping) else network
    files = given.get("file_system")
    lists = files if isinstance(files, Mapping) else {}
    return Grants(
        _paths(lists.get("read"), cwd), _paths(lists.get("write"), cwd), network=enabled is True
    )


def _paths(given: object, cwd: str) -> tuple[str, ...]:
    if given is None:
        return ()
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise UsageError("`file_system.read` and `file_system.write` are lists of paths")
    if not all(isinstance(path, str) and path and "\0" not in path for path in given):
        raise UsageError("`file_system.read` and `file_system.write` hold paths as text")
    if len(given) > MOST_PATHS or sum(map(len, given)) > MOST_CHARACTERS:
        raise UsageError(
            f"`file_system.read` and `file_system.write` hold at most {MOST_PATHS} paths and"
            f" {MOST_CHARACTERS} characters each, for a person reads them: ask for a directory"
        )
    return tuple(posixpath.normpath(posixpath.join(cwd, path)) for path in given)
