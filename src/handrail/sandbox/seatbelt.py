"""macOS: a resolved profile as the text that ``sandbox-exec`` reads.  Pure but for ``command``.

In that language the last rule that matches decides, so entries are written in the order of their
depth and the deepest one wins, as in the profile itself.  Paths are matched after links are
resolved, and the system's own aliases (``/tmp``) must be spelt as what they lead to.  A directory
above something protected cannot be renamed or removed: else the rule would stay with the old name.
Globs become regular expressions and so also hold for files that appear later.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from handrail.errors import SandboxUnavailable

PROGRAM = "/usr/bin/sandbox-exec"

_ALIASES = ("/tmp", "/var", "/etc")  # noqa: S108  (names that lead to /private)

#: Characters that a quoted expression cannot hold for certain.
_AWKWARD = frozenset('"\\')

#: What any program needs to run at all; nothing here reads or writes a user's file.
_BASE = """\
(version 1)
(deny default)
(allow process-exec process-fork)
(allow signal process-info* (target same-sandbox))
(allow file-read-metadata)
(allow file-ioctl (regex #"^/dev/tty"))
(allow sysctl-read)
(allow mach-lookup (global-name "com.apple.system.opendirectoryd.libinfo")
                   (global-name "com.apple.system.logger")
                   (global-name "com.apple.SecurityServer"))
(allow ipc-posix-sem ipc-posix-shm*)
(allow pseudo-tty)
(allow file-read* file-write-data file-ioctl
  (literal "/dev/null") (literal "/dev/zero") (literal "/dev/tty") (literal "/dev/ptmx")
  (regex #"^/dev/ttys[0-9]+$"))
(allow file-read* (literal "/dev/random") (literal "/dev/urandom") (literal "/"))
"""

_NETWORK = """\
(allow network*)
(allow system-socket)
(allow mach-lookup (global-name "com.apple.SystemConfiguration.configd")
                   (global-name "com.apple.trustd.agent"))
"""


def profile(
    entries: Sequence[tuple[bytes, str]], globs: Sequence[str] = (), network: str = "restricted"
) -> str:
    """The text for absolute paths with ``read``, ``write`` or ``deny``, and denied patterns.

    The entries hold what protects metadata below writable roots as well.
    """
    named = [(real_path(path), access) for path, access in entries]
    rank = {"read": 0, "write": 1, "deny": 2}
    named.sort(key=lambda entry: (_depth(entry[0]), rank[entry[1]], entry[0]))
    lines = [_BASE]
    lines += [_rule(path, access) for path, access in named]
    lines += [_pin(path) for path in _ancestors(named)]
    lines += [
        f'(deny file-read* file-write* (regex #"{regex}"))' for regex in map(glob_regex, globs)
    ]
    if network == "enabled":
        lines.append(_NETWORK)
    return "\n".join(lines) + "\n"


def _rule(path: str, access: str) -> str:
    where = f"(subpath {_quoted(path)})"
    if access == "write":
        return f"(allow file-read* file-write* {where})"
    if access == "deny":
        return f"(deny file-read* file-write* {where})"
    return f"(allow file-read* {where})\n(deny file-write* {where})"


def _pin(path: str) -> str:
    return f"(deny file-write-unlink (literal {_quoted(path)}))"


def _ancestors(entries: Sequence[tuple[str, str]]) -> list[str]:
    """Directories between a writable root and what is protected below it, and that itself."""
    found: dict[str, None] = {}
    writable = [path for path, access in entries if access == "write"]
    for path, access in entries:
        if access == "write":
            continue
        for root in writable:
            if path != root and path.startswith(root.rstrip("/") + "/"):
                step = path
                while len(step) > len(root):
                    found[step] = None
                    step = os.path.dirname(step)
    return sorted(found)


def _depth(path: str) -> int:
    return sum(1 for part in path.split("/") if part)


def real_path(path: bytes) -> str:
    """The path as the kernel compares it; raises SandboxUnavailable for what has no spelling."""
    try:
        text = path.decode()
    except UnicodeDecodeError:
        text = ""
    if not text.startswith("/") or any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise SandboxUnavailable(
            f"the path {path!r} cannot be written in a Seatbelt profile, so nothing was run;"
            " use a path of printable UTF-8"
        )
    for alias in _ALIASES:
        if text == alias or text.startswith(alias + "/"):
            return "/private" + text
    return text


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def glob_regex(pattern: str) -> str:
    """A denied pattern, absolute, as an expression over whole paths and all below them."""
    parts = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if pattern.startswith("**/", at):
            parts.append("(.*/)?")
            at += 3
            continue
        if pattern.startswith("**", at):
            parts.append(".*")
            at += 2
            continue
        if char == "*":
            parts.append("[^/]*")
        elif char == "?":
            parts.append("[^/]")
        elif char == "[" and (end := pattern.find("]", at + 2)) > 0:
            inner = pattern[at + 1 : end]
            if set(inner) & _AWKWARD:
                inner = "!/"
            parts.append("[" + ("^" + inner[1:] if inner[0] in "!^" else inner) + "]")
            at = end
        else:
            parts.append(_literal(char))
        at += 1
    return "^" + "".join(parts) + "(/.*)?$"


def _literal(char: str) -> str:
    """One character that means itself, without a backslash: those are read in two ways."""
    if char in _AWKWARD or char == "^":
        return "."  # any character: more is denied, never less
    return char if char.isalnum() or char in "/_-~ " else f"[{char}]"


def command(text: str, argv: Sequence[bytes]) -> tuple[bytes, ...]:
    """The command inside; raises SandboxUnavailable where the program is missing."""
    if not os.access(PROGRAM, os.X_OK):
        raise SandboxUnavailable(
            f"the sandbox of macOS needs {PROGRAM}, which is not here, so nothing was run;"
            " on Linux install bubblewrap instead"
        )
    return (PROGRAM.encode(), b"-p", text.encode(), b"--", *argv)


def platform_refusal(platform: str) -> str:
    """Why commands are not confined on a system that is not Linux."""
    if platform == "darwin":
        if os.access(PROGRAM, os.X_OK):
            return (
                f"handrail writes profiles for {PROGRAM} but runs no commands on macOS yet, so this"
                " one is not run; use a Linux container or another executor"
            )
        return (
            f"the sandbox of macOS needs {PROGRAM}, which is not here, so nothing was run; use a"
            " Linux container or another executor"
        )
    name = "Windows" if platform in ("win32", "cygwin") else platform
    return (
        f"handrail has no sandbox for {name}, so a command that asks for one is not run;"
        " run it in a Linux container or on another executor"
    )
