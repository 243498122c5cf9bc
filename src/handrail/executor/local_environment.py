"""The environment of a child of this machine; what it inherits is worked out anew when it changes.

Commands follow each other with the same policy and the same variables of this program: choosing
and encoding them took a tenth of the time of a short command.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from handrail import secret_variables
from handrail.errors import ExecutorSpawnFailed
from handrail.executor.base import SpawnRequest
from handrail.process import env_policy
from handrail.process.env_policy import EnvPolicy


class LocalEnvironment:
    """Makes environments of children; remembers what the last of them has inherited."""

    __slots__ = ("_inherited", "_last")

    def __init__(self) -> None:
        self._last: tuple[EnvPolicy, dict[bytes, bytes]] | None = None
        self._inherited: dict[bytes, bytes] = {}

    def of(self, request: SpawnRequest) -> dict[bytes, bytes]:
        """The variables of a child; raises ExecutorSpawnFailed for a name that none can have."""
        overlay: Mapping[str, str] = secret_variables.without(request.env)
        if request.env_policy is None:
            return _encoded(overlay)
        env = self._under(request.env_policy)
        if overlay:
            env.update(_encoded(env_policy.build(None, overlay, {})))
        return env

    def _under(self, policy: EnvPolicy) -> dict[bytes, bytes]:
        """A copy of what children inherit of this program's variables."""
        own: dict[bytes, bytes] | None = getattr(os.environ, "_data", None)
        if own is None or policy.set:  # not the environment of CPython; or it may be changed
            return _encoded(env_policy.build(policy, {}, os.environ))
        if (policy, own) != self._last:
            now = own.copy()
            names = {os.fsdecode(name): os.fsdecode(value) for name, value in now.items()}
            self._inherited = _encoded(env_policy.build(policy, {}, names))
            self._last = policy, now
        return self._inherited.copy()


def _encoded(env: Mapping[str, str]) -> dict[bytes, bytes]:
    bad = env_policy.bad_name(env)
    if bad is not None:
        raise ExecutorSpawnFailed(
            f"the environment holds the name {bad[:80]!r}: a name must not be empty or hold = or"
            " NUL"
        )
    return {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
