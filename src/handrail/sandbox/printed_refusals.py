"""What programs print when something was refused, and the paths that they blame.  Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

_PHRASE = r"(?P<phrase>read-only file system|permission denied|operation not permitted)"
_QUOTES = r"'([^'\n]+)'|\"([^\"\n]+)\"|‘([^’\n]+)’|`([^`'\n]+)[`']"
#: ``tool: cannot touch '/usr/x': Read-only file system``: of several the last is the target.
_BEFORE = re.compile(rf"(?:{_QUOTES})\s*(?:\([^)\n]*\))?:\s*{_PHRASE}", re.IGNORECASE)
#: ``OSError: [Errno 30] Read-only file system: '/usr/x'`` and ``EROFS: ..., open '/usr/x'``.
_BEHIND = re.compile(rf"{_PHRASE}\s*[:,][^'\"\n]*(?:{_QUOTES})", re.IGNORECASE)
#: ``bash: line 1: /etc/x: Permission denied`` and ``cannot create /etc/x: ...``.
_PLAIN = re.compile(rf"(?:^(?=[^\s:]*/)|[\s:])(?P<path>[^\s:'\"]+):\s*{_PHRASE}", re.IGNORECASE)
#: ``mkdir: cannot create directory ‘.codex’: File exists``.
EXISTS = re.compile(rf"(?:{_QUOTES}|(?<=\s)(?P<path>[^\s:'\"]+)):\s*file exists", re.IGNORECASE)
#: ``mv: cannot move 'a' to 'b': Device or resource busy``: of several the first is what is busy.
_BUSY = re.compile(rf"(?:{_QUOTES}).*device or resource busy", re.IGNORECASE)
_BUSY_BEHIND = re.compile(rf"device or resource busy[^'\"\n]*(?:{_QUOTES})", re.IGNORECASE)
#: ``cat: /tmp/x: No such file or directory``, and as Python says it.
GONE = re.compile(
    r"(?<![\w./-])(?P<path>/(?:var/)?tmp/[^\s:'\"’`]+)['\"’`]?: no such file"
    r"|no such file or directory[^'\"\n]*'(?P<quoted>/(?:var/)?tmp/[^'\n]+)'",
    re.IGNORECASE,
)
#: ``tool: what it did: Operation not permitted`` as the last line, and the like of Python.
LAST = re.compile(rf"^[\w./+-]+:\s(?:.*:\s)?(?:\[Errno \d+\] )?{_PHRASE}\.?$", re.IGNORECASE)
#: What the kernel says of a mount that is read-only, and of nothing else.
READ_ONLY = "read-only file system"
NOT_PERMITTED = "operation not permitted"

#: What programs print when a name cannot be resolved or nothing can be reached.
NETWORK = re.compile(
    r"could not resolve (?:host|proxy)|couldn't resolve host|temporary failure in name resolution"
    r"|temporary failure resolving|name or service not known|nodename nor servname"
    r"|network is unreachable|\beai_again\b|\benotfound\b|\benetunreach\b|unknown host"
    r"|dial tcp: lookup|unable to resolve host address|failed to lookup address information",
    re.IGNORECASE,
)
#: ``... Docker daemon at unix:///var/run/docker.sock`` and ``dial unix /run/x.sock: connect: ...``.
SOCKET = re.compile(
    r"(?:connect|dial)[^\n]*?\bunix:(?://)?(?P<url>/[^\s'\",;]+)|dial unix (?P<path>/[^\s:]+):",
    re.IGNORECASE,
)


def busy(line: str) -> re.Match[str] | None:
    """Where a line of output says that a path cannot be moved or removed."""
    return _BUSY.search(line) or _BUSY_BEHIND.search(line)


def blamed(line: str, hidden: Callable[[str], bool]) -> re.Match[str] | None:
    """Where a line of output says that a path was refused; ``hidden`` knows a path by its rules."""
    for pattern in (_BEFORE, _BEHIND, _PLAIN):
        for found in reversed(list(pattern.finditer(line))):
            path = path_of(found)
            plain = pattern is _PLAIN and "/" not in path
            if plain and found["phrase"].lower() != READ_ONLY and not hidden(path):
                continue  # a word of the sentence
            if path and "\0" not in path and len(path) < 4096:
                return found
    return None


def path_of(found: re.Match[str]) -> str:
    named = found.groupdict().get("path")
    if named:
        return named
    phrases = found.re.groupindex.values()
    quoted = (text for at, text in enumerate(found.groups(), 1) if text and at not in phrases)
    return next(quoted, "")
