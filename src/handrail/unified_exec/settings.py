"""Settings of unified exec, frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from handrail.executor.output.head_tail import DEFAULT_CAP
from handrail.process.env_policy import EnvPolicy, Inherit, without_secrets
from handrail.process.spec import DEFAULT_COLS, DEFAULT_ROWS
from handrail.unified_exec.prune import MAX_PROCESSES, PROTECTED, WARN_AT
from handrail.unified_exec.truncate import DEFAULT_TOKENS, Budget, tokens
from handrail.unified_exec.yield_time import DEFAULT_MAX_POLL_MS

DEFAULT_MODEL_BUDGET = tokens(DEFAULT_TOKENS)
#: Everything but names that look like a secret.
DEFAULT_ENV_POLICY = without_secrets(Inherit.ALL)


@dataclass(frozen=True, slots=True)
class Settings:
    """``cwd`` is absolute, on the executor's machine.

    ``shell`` is the path of the shell to use (None: that machine's default).  ``base_env`` is
    what the environment policy starts from (None: that machine's own).  ``env`` is set for every
    child after the policy.  ``remote`` says that the machine is not this one, so that shells are
    not looked up here.
    """

    cwd: str
    shell: str | None = None
    allow_login: bool = True
    remote: bool = False
    base_env: Mapping[str, str] | None = field(default=None, repr=False)
    env_policy: EnvPolicy = DEFAULT_ENV_POLICY
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: The model's own limit for one answer; a caller can ask for less.
    model_budget: Budget = DEFAULT_MODEL_BUDGET
    max_poll_ms: int = DEFAULT_MAX_POLL_MS
    buffer_bytes: int = DEFAULT_CAP
    #: Kept on disk per process: half from its start, half of the newest.
    transcript_bytes: int = 8 * 1024 * 1024
    transcript_dir: str | None = None
    max_processes: int = MAX_PROCESSES
    warn_at: int = WARN_AT
    protected: int = PROTECTED
    #: How many ended sessions stay readable, and how many bytes of them.
    ended_kept: int = 64
    ended_bytes: int = 128 * 1024 * 1024
    size: tuple[int, int] = (DEFAULT_ROWS, DEFAULT_COLS)
    #: Ids count up from 1000 instead of being random; for tests.
    deterministic_ids: bool = False
    #: False leaves the «Note:» lines out of the text; they stay in the structured answer.
    notes_in_text: bool = True
