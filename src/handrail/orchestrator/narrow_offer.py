"""Find the permission that would have avoided a sandbox denial, to offer a retry.  Pure.

The evidence of the sandbox comes first; the program's error text is only a hint.  Nothing here
opens anything: it makes the narrow offer that the approver may accept.  Whether there is a retry at
all is decided by ``call_flow.CallFlow.after`` and ``requirement.wants_retry``.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from handrail.executor.base import Denied
from handrail.orchestrator.settings import (
    Grants,
    Settings,
    is_writable,
    rules_paths,
    writable_roots,
)

_PHRASES = "read-only file system|permission denied|operation not permitted"
#: ``touch: cannot touch '/usr/x': Read-only file system``, with any kind of quotes.
_QUOTED = re.compile(rf"['\"‘`]([^'\"’`\n]+)['\"’`]\s*:\s*(?:{_PHRASES})", re.IGNORECASE)
#: ``OSError: [Errno 30] Read-only file system: '/usr/x'``.
_BEHIND = re.compile(rf"(?:{_PHRASES})\s*:\s*['\"]([^'\"\n]+)['\"]", re.IGNORECASE)
#: ``bash: line 1: /etc/x: Permission denied``.
_COLON = re.compile(rf"(?:^|: )([^:'\"\n]*[^:'\"\s]): (?:{_PHRASES})", re.IGNORECASE | re.MULTILINE)
#: Only the end of long output is searched.
_LOOKED_AT = 16_384


@dataclass(frozen=True, slots=True)
class Offer:
    """What to open, and its name in the question."""

    grants: Grants
    shown: str


def refused_path(denied: Denied, output: bytes, cwd: str) -> str | None:
    """The path that was refused, absolute, if there is evidence of one."""
    for evidence in denied.evidence:
        path = evidence.get("path")
        if isinstance(path, str) and path and evidence.get("kind") != "network":
            return posixpath.normpath(posixpath.join(cwd, path))
    text = output[-_LOOKED_AT:].decode("utf-8", "replace")
    for pattern in (_QUOTED, _BEHIND, _COLON):
        found = pattern.search(text)
        if found and "\0" not in found[1]:
            return posixpath.normpath(posixpath.join(cwd, found[1].strip()))
    return None


def refused_network(denied: Denied) -> bool:
    """Whether a network connection was refused."""
    return any(
        evidence.get("kind") == "network" or "host" in evidence for evidence in denied.evidence
    )


def without_hosts(denied: Denied) -> Denied:
    """What was refused besides hosts; these are decided about one by one, and open no sandbox."""
    rest = tuple(one for one in denied.evidence if one.get("kind") != "network")
    return Denied(denied.likely and bool(rest), rest)


def ancestors(path: str) -> list[str]:
    """The path and its parents, without the root."""
    found = []
    while path != "/":
        found.append(path)
        path = posixpath.dirname(path)
    return found


def offer(denied: Denied, path: str | None, settings: Settings) -> Offer | None:
    """The narrowest permission that would let the command do what it was refused.

    ``path`` is what was refused or, since what does not exist cannot be opened, the nearest folder
    above it.  Never the root, and nothing that is writable already, for then it was not the
    sandbox.
    """
    if refused_network(denied):
        return Offer(Grants(network=True), "network access")
    if path is None or path == "/":
        return None
    if is_writable(path, writable_roots(settings), settings.grants.write, rules_paths(settings)):
        return None
    hidden = settings.sandbox.deny_read
    if any(path == one or path.startswith(one + "/") for one in hidden):
        return None
    return Offer(Grants(write=(path,)), path)
