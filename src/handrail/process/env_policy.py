"""Which environment a child gets: inherit, exclude, set, keep, overlay.  Pure.

The order of the steps is the wire's (exec-server 4.2); names are matched without regard to
case by patterns that know ``*`` and ``?`` only.  Which names look like secrets, and are not
inherited, is in ``handrail/secret_variables.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from handrail.secret_variables import OUR_EXCLUDES, PEER_EXCLUDES, without

CORE = frozenset(
    {"PATH", "SHELL", "TMPDIR", "TEMP", "TMP", "HOME", "USER", "LOGNAME"}
    | {"LANG", "LC_ALL", "LC_CTYPE"}
)

#: Never handed to a child, besides our own credentials: exact case, and without regard to case.
_NEVER = frozenset(("CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE",))
IDENTITY = frozenset(
    (
        "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
        "NODE_REPL_AUTH_TOKEN",
        "OPENAI_FEDERATION_RULE_ID",
        "OPENAI_IDENTITY_TOKEN_FILE",
        "OPENAI_WORKLOAD_IDENTITY_CONTEXT",
    ),
)

#: How many names are remembered for each set of patterns, and the longest.
_MOST_NAMES = 256
_LONGEST_NAME = 100
#: For how many policies the inherited part is remembered.
_MOST_POLICIES = 16
#: For how many places the whole environment is remembered.
_MOST_PLACES = 128


class NulInValue(ValueError):
    """No environment can hold such a value."""


class Inherit(Enum):
    """How much of the server's own environment a child starts from."""

    ALL = "all"
    CORE = "core"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class EnvPolicy:
    """The steps before the overlay."""

    inherit: Inherit
    ignore_default_excludes: bool
    exclude: tuple[str, ...]
    set: Mapping[str, str]
    include_only: tuple[str, ...]


def without_secrets(inherit: Inherit, exclude: Iterable[str] = ()) -> EnvPolicy:
    """The policy of our own surfaces: what looks like a secret is not inherited.

    A server that knows nothing of it applies it too: its patterns are sent.
    """
    return EnvPolicy(
        inherit,
        ignore_default_excludes=False,
        exclude=(*OUR_EXCLUDES, *exclude),
        set={},
        include_only=(),
    )


def build(
    policy: EnvPolicy | None, overlay: Mapping[str, str], own: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment of a child."""
    env: dict[str, str] = {}
    if policy is not None:
        if policy.inherit is Inherit.ALL:
            env.update(own)
        elif policy.inherit is Inherit.CORE:
            env.update((k, v) for k, v in own.items() if k.upper() in CORE)
        if not policy.ignore_default_excludes:
            _drop(env, PEER_EXCLUDES)
        _drop(env, policy.exclude)
        env.update(policy.set)
        if policy.include_only:
            keep = _matcher(tuple(policy.include_only))
            env = {k: v for k, v in env.items() if keep[k]}
    env.update(overlay)
    kept = {k: v for k, v in env.items() if k not in _NEVER and k.upper() not in IDENTITY}
    return without(kept)


class BuiltEnvironments:
    """Environments of the children of one program; what they inherit is built once a policy."""

    def __init__(self, own: Mapping[str, str]) -> None:
        """``own``: what they inherit from, which does not change."""
        self._own = own
        self._inherited: dict[tuple[object, ...], dict[bytes, bytes]] = {}
        self._of_places: dict[tuple[object, ...], tuple[EnvPolicy, dict[bytes, bytes]]] = {}

    def build(self, policy: EnvPolicy | None, overlay: Mapping[str, str]) -> dict[bytes, bytes]:
        """``build``, as bytes; raises NulInValue."""
        if policy is None or policy.set:  # what a client sets may be secret, and is not kept
            return _encoded(build(policy, overlay, self._own))
        key = (
            policy.inherit, policy.ignore_default_excludes, policy.exclude, policy.include_only
        )  # fmt: skip
        inherited = self._inherited.get(key)
        if inherited is None:
            if len(self._inherited) >= _MOST_POLICIES:
                self._inherited.clear()
            inherited = self._inherited[key] = _encoded(build(policy, {}, self._own))
        return inherited | _encoded(build(None, overlay, {}))

    def of_place(self, policy: EnvPolicy, variables: Mapping[str, str]) -> dict[bytes, bytes]:
        """``build`` with variables of our own, such as those of a workspace; not to be changed.

        Of one policy for each place, the same object from one command to the next.
        """
        key = tuple(variables.items())
        known = self._of_places.get(key)
        if known is not None and known[0] is policy:
            return known[1]
        env = self.build(policy, variables)
        if not policy.set:
            if len(self._of_places) >= _MOST_PLACES:
                self._of_places.clear()
            self._of_places[key] = policy, env
        return env


def _encoded(env: Mapping[str, str]) -> dict[bytes, bytes]:
    if any("\0" in value for value in env.values()):
        raise NulInValue("the value of a variable holds a NUL character")
    return {
        name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
        for name, value in env.items()
    }


def bad_name(names: Iterable[str]) -> str | None:
    """The first name no environment can hold: no text, empty, or with ``=`` or NUL."""
    for name in names:
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            return name
    return None


def _drop(env: dict[str, str], patterns: Iterable[str]) -> None:
    patterns = tuple(patterns)
    if patterns:
        hit = _matcher(patterns)
        for name in [k for k in env if hit[k]]:
            del env[name]


class _Matches(dict[str, bool]):
    """Whether a name matches one of some patterns; commands mostly inherit the same names."""

    __slots__ = ("_fits",)

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._fits = re.compile(
            "|".join(
                "(?:" + "".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in p) + ")"
                for p in patterns
            ),
            re.IGNORECASE | re.DOTALL,
        ).fullmatch

    def __missing__(self, name: str) -> bool:
        found = self._fits(name) is not None
        if len(self) < _MOST_NAMES and len(name) <= _LONGEST_NAME:
            self[name] = found
        return found


@lru_cache(maxsize=64)
def _matcher(patterns: tuple[str, ...]) -> _Matches:
    return _Matches(patterns)
