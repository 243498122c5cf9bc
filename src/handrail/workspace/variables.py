"""The variables of a workspace's commands: what is inherited, what is set, and secrets.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from handrail.errors import UsageError
from handrail.process.env_policy import Inherit
from handrail.secret_masks import Secrets
from handrail.workspace.arguments import Env, Environment

#: What commands inherit of their machine's variables: all that do not look like a secret, the few
#: that programs need to work (``core``), or none.
InheritEnv: TypeAlias = Literal["all", "core", "none"]


class Variables:
    """What every command of one workspace gets; raises UsageError for what is invalid."""

    __slots__ = ("_last", "env", "inherit", "secrets")

    def __init__(
        self,
        env: Env | None = None,
        inherit_env: InheritEnv = "all",
        secrets: Mapping[str, str | bytes] | None = None,
        known: Iterable[str] = (),
    ) -> None:
        try:
            self.inherit = Inherit(inherit_env)
        except ValueError:
            raise UsageError(
                f"inherit_env is 'all', 'core' or 'none', not {inherit_env!r}"
            ) from None
        mappings: dict[str, object] = {"env": env, "secrets": secrets}
        for name, given in mappings.items():
            if given is not None and not isinstance(given, Mapping):
                kind = type(given).__name__  # never the value, which may be a secret
                raise UsageError(f"{name} is a mapping of names to values, not a {kind}")
        self.env: Env = dict(env or {})
        self.secrets = Secrets(secrets or {}, known)
        self._last: tuple[Env | None, Environment] = None, self._made()  # refuses bad names now

    def __repr__(self) -> str:
        return f"<Variables {self.inherit.value}, {self.secrets!r}>"

    def environment(self, hidden: Env | None = None, of_command: Env | None = None) -> Environment:
        """The environment of one command: ``hidden`` is laid under, ``of_command`` over it all."""
        if of_command is not None:
            return self._made(hidden, of_command)
        if self._last[0] != hidden:
            self._last = hidden, self._made(hidden)
        return self._last[1]

    def _made(self, hidden: Env | None = None, of_command: Env | None = None) -> Environment:
        return Environment(hidden, self.env, self.secrets.values, of_command, inherit=self.inherit)
