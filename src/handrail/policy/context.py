"""What an answer depends on besides the command and the rules.

The orchestrator fills this in from its settings and the call; ``decide.py`` reads it.
"""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field

from handrail.policy.dangerous import Effect
from handrail.policy.rules import Sandbox, normal_path

#: Where a base name may stand for a path: directories that only root can write.
TRUSTED_DIRECTORIES = (
    "/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin",
)  # fmt: skip


class Approval(enum.Enum):
    """When the user is asked."""

    UNTRUSTED = "untrusted"
    ON_FAILURE = "on-failure"
    ON_REQUEST = "on-request"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Granular:
    """«On request» with kinds of questions switched off: False refuses instead of asking."""

    sandbox_approval: bool = True
    rules: bool = True


@dataclass(frozen=True, slots=True)
class Lookup:
    """How programs are found: the command's environment and working directory."""

    env: Mapping[str, str] = field(repr=False)
    #: On this machine, so that its directories can be examined.
    local: bool = True


@dataclass(frozen=True, slots=True)
class Situation:
    """What the answer depends on besides the command and the rules."""

    cwd: str = "/"
    approval: Approval = Approval.ON_REQUEST
    granular: Granular | None = None
    #: Files are restricted by a sandbox (read-only or workspace-write).
    restricted: bool = True
    #: The caller asks to run outside the sandbox, or with more than it grants.
    escalates: bool = False
    #: The shell that scripts are run with; others are judged as commands of their own.
    shell: str = "/bin/bash"
    trusted_directories: tuple[str, ...] = TRUSTED_DIRECTORIES
    #: Programs below these never get a rule by base name, trusted directory or not.
    writable_roots: tuple[str, ...] = ()
    #: Reading commands run without a question under ``untrusted`` (an earlier behaviour).
    trust_known_safe: bool = False
    #: Effects that need a question although nothing else does.
    ask_about: frozenset[Effect] = frozenset()
    #: What an allow rule without ``sandbox=`` means; the peer's rules mean OFF.
    unset_sandbox: Sandbox = Sandbox.KEEP
    #: How a rule that leaves the sandbox is checked; None: not at all, nothing is run.
    lookup: Lookup | None = None

    @property
    def may_ask_to_escalate(self) -> bool:
        """True if the user may be asked for more permissions at all."""
        if self.granular is not None:
            return self.granular.sandbox_approval
        return self.approval is not Approval.NEVER

    def trusts(self, path: str) -> bool:
        """True if the program at this absolute path is what its name says."""
        if posixpath.dirname(path) not in self.trusted_directories or normal_path(path) != path:
            return False
        return not any(
            path.startswith(normal_path(root).rstrip("/") + "/") for root in self.writable_roots
        )
