"""Variables that look like secrets, which no child gets or inherits.

Standard library only and cheap to import: ``handrail run`` needs it before a command starts.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_OWN_WORDS = ("TOKEN", "SECRET", "KEY", "PASSWORD")
#: A variable with one of these in its name looks like a secret: what the peer leaves out by
#: default, and ours.
_PEER_WORDS = ("KEY", "SECRET", "TOKEN")
_OUR_WORDS = ("PASSWORD", "PASSWD", "PASSPHRASE", "PASSCODE", "CREDENTIAL", "COOKIE")
_SECRET_WORDS = _PEER_WORDS + _OUR_WORDS
#: So does one whose name ends with one of these.
_SECRET_ENDINGS = (
    *("_PASS", "_PWD", "_PAT", "_JWT", "_AUTH", "_AUTH_CONFIG", "_DSN", "CONNECTION_STRING"),
    *("DATABASE_URL", "REDIS_URL", "MONGODB_URI", "MONGO_URL", "AMQP_URL", "WEBHOOK_URL"),
)
#: They as patterns of an environment policy, ``*KEY*`` and so on: those of every policy that does
#: not say ``ignoreDefaultExcludes``, and those that our own surfaces add.
PEER_EXCLUDES = tuple(f"*{word}*" for word in _PEER_WORDS)
OUR_EXCLUDES = (
    *(f"*{word}*" for word in _OUR_WORDS),
    *(f"*{ending}" for ending in _SECRET_ENDINGS),
)


def is_credential(name: str) -> bool:
    """Whether a variable of this name is a credential for a handrail server.

    ``HANDRAIL_TOKEN`` and ``HANDRAIL_MCP_TOKEN`` are, and so is every later one named like them.
    """
    folded = name.upper()
    return folded.startswith("HANDRAIL_") and any(word in folded for word in _OWN_WORDS)


def looks_secret(name: str) -> bool:
    """Whether a variable of this name is not inherited; the same as both excludes."""
    folded = name.upper()
    return folded.endswith(_SECRET_ENDINGS) or any(word in folded for word in _SECRET_WORDS)


def without(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without credentials, for a child."""
    # Most begin otherwise, and this is asked for every command.
    return {
        name: value
        for name, value in environ.items()
        if name[:1] not in "hH" or not is_credential(name)
    }


def forget_variables() -> None:
    """Remove them from this process's environment, before a command inherits it."""
    _forget(is_credential)


def forget_secrets() -> None:
    """Remove everything that looks like a secret, as an environment policy would."""
    _forget(looks_secret)


def _forget(is_meant: Callable[[str], bool]) -> None:
    for name in [name for name in os.environ if is_meant(name)]:
        del os.environ[name]
