"""Add a rule after a «yes, always»: one line at the end of a rules file.

The one module here that writes.  The line is appended in place, under an advisory lock on the file
itself: replacing the file would lose its ownership and the lines of another writer that waits for
the same lock, the peer among them.  An incomplete write is taken back, so a reader sees the file
with the whole line or without it.  A symbolic link is not followed.

A line that is already there is not written again.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Sequence

from handrail import private_files
from handrail.errors import PolicyError, UsageError
from handrail.policy.load import parse_rules
from handrail.policy.rules import Decision, PrefixRule, Sandbox

#: How long to wait for another writer's lock.
_LOCK_SECONDS = 2.0
_LOCK_PAUSE = 0.01


def prefix_rule_line(
    prefix: Sequence[str],
    decision: Decision = Decision.ALLOW,
    *,
    sandbox: Sandbox | None = None,
    justification: str | None = None,
) -> str:
    """A ``prefix_rule`` as one line; without ``sandbox`` the peer can read it, too."""
    if not prefix:
        raise UsageError("a rule needs at least one word")
    parts = [f"pattern=[{', '.join(_quoted(word) for word in prefix)}]"]
    parts.append(f'decision="{decision.word}"')
    if sandbox is not None:
        parts.append(f'sandbox="{sandbox.value}"')
    if justification is not None:
        parts.append(f"justification={_quoted(justification)}")
    line = f"prefix_rule({', '.join(parts)})"
    _check(line, prefix)
    return line


def network_rule_line(
    host: str, port: int, protocol: str, decision: Decision, *, justification: str
) -> str:
    """A ``network_rule`` for one port of a host as one line; raises UsageError."""
    word = "allow" if decision is Decision.ALLOW else "deny"
    line = (
        f"network_rule(host={_quoted(host)}, protocol={_quoted(protocol)},"
        f" decision={_quoted(word)}, port={port}, justification={_quoted(justification)})"
    )
    found = [(rule.host, rule.port, rule.decision) for rule in parse_rules(line, "(new)").network]
    if found != [(host, port, decision)]:
        raise UsageError(f"no rule can be written for {host!r}")
    return line


def append_line(path: str, line: str) -> bool:
    """Add one statement to a rules file, once; False if it was there already."""
    if "\n" in line or "\r" in line:
        raise UsageError("a statement to be added is one line")
    try:
        private_files.make_above(os.fsencode(os.path.abspath(path)))
        descriptor = _open(path)
    except OSError as error:
        raise _failed(path, error) from None
    try:
        _lock(descriptor)
        return _append_locked(descriptor, line)
    except OSError as error:
        raise _failed(path, error) from None
    finally:
        os.close(descriptor)


def _open(path: str) -> int:
    """Open the file itself: a link could have been planted to redirect the write."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link; name the file it leads to") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EPERM, "it is not a regular file; remove it")
    return descriptor


def _lock(descriptor: int) -> None:
    """Wait for another writer, but not for ever: any program that reads the file can lock it."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise OSError(errno.EBUSY, "another program has locked it; try again") from None
            time.sleep(_LOCK_PAUSE)


def _append_locked(descriptor: int, line: str) -> bool:
    size = os.fstat(descriptor).st_size
    text = os.pread(descriptor, size, 0)
    wanted = line.encode()
    if wanted in text.splitlines():
        return False
    data = (b"" if not text or text.endswith(b"\n") else b"\n") + wanted + b"\n"
    written = 0
    try:
        written = os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        if written != len(data):
            os.ftruncate(descriptor, size)
    if written != len(data):
        raise OSError(0, "the line was only written in part and was taken back")
    return True


def _quoted(text: str) -> str:
    """``text`` as a Starlark string, where the escapes of JSON mean the same."""
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise UsageError(f"{text!r} is not text, a rules file cannot hold it")
    return json.dumps(text, ensure_ascii=False)


def _check(line: str, prefix: Sequence[str]) -> None:
    """Parse the line again: it has to mean what was approved."""
    rules = parse_rules(line, "(new rule)").rules
    wanted = PrefixRule(prefix[0], tuple((word,) for word in prefix[1:]))
    if [(rule.first, rule.rest) for rule in rules] != [(wanted.first, wanted.rest)]:
        raise UsageError(f"no rule can be written for {list(prefix)!r}")


def _failed(path: str, error: OSError) -> PolicyError:
    return PolicyError(f"cannot add a rule to {path}: {error.strerror}")
