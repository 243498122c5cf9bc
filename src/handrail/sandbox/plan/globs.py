"""Deny patterns, expanded on the host when a command starts.

``**`` stands for any number of directories, ``*`` and ``?`` stay within one name, ``[...]`` is a
set, ``{a,b}`` a choice.  Files that appear later are not covered.
"""

from __future__ import annotations

import os
import re
import time

from handrail.sandbox.plan.git_index import UNSETTLED_NS
from handrail.sandbox.plan.safe_open import Refused
from handrail.sandbox.profile import BadIntent, Glob

MOST_MATCHES = 8192
MOST_ENTRIES = 400_000


def translate(pattern: str) -> re.Pattern[bytes]:
    """Translate a pattern to a regular expression over paths relative to its base."""
    try:
        return re.compile(_translate(pattern).encode("utf-8", "surrogateescape") + rb"\Z")
    except re.error:
        raise BadIntent(f"the glob pattern `{pattern}` is malformed; check its brackets") from None


def _translate(pattern: str) -> str:
    out = []
    i, n = 0, len(pattern)
    choices = 0
    while i < n:
        c = pattern[i]
        if pattern.startswith("**/", i) and (i == 0 or pattern[i - 1] == "/"):
            out.append("(?:[^/]+/)*")
            i += 3
            continue
        if pattern.startswith("**", i):
            out.append(".*")
            i += 2
            continue
        if c == "*":
            out.append("[^/]*")
        elif c == "?":
            out.append("[^/]")
        elif c == "[":
            end = pattern.find("]", i + 2)
            if end < 0:
                out.append(r"\[")
            else:
                body = pattern[i + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
                out.append("[^" + body[1:] + "/]" if body[0] in "!^" else f"[{body}]")
                i = end
        elif c == "{":
            out.append("(?:")
            choices += 1
        elif c == "}" and choices:
            out.append(")")
            choices -= 1
        elif c == "," and choices:
            out.append("|")
        elif c == "\\" and i + 1 < n:
            i += 1
            out.append(re.escape(pattern[i]))
        else:
            out.append(re.escape(c))
        i += 1
    return "(?s:" + "".join(out) + ")"


def expand(
    glob: Glob, depth: int | None, seen: dict[bytes, int]
) -> tuple[list[bytes], list[bytes]]:
    """The paths that match now, and the directories that we cannot read.

    ``seen`` receives the directories read and their ctimes, 0 for one that may have changed since
    within the same clock tick.
    Raises Refused when there is too much to examine.
    """
    start, pattern, below = _start(glob)
    wanted = translate(pattern)
    # Without ** a match is never deeper than the pattern.
    most = None if "**" in pattern else pattern.count("/") + 1
    if depth is not None:
        most = depth if most is None else min(most, depth)
    found: list[bytes] = []
    closed: list[bytes] = []
    budget = MOST_ENTRIES
    todo = [(start, below, 1)]
    while todo:
        path, relative, level = todo.pop()
        try:
            seen[path] = _changed(path)
        except PermissionError:
            closed.append(os.path.dirname(path))  # it can be listed but not searched
            continue
        except OSError:
            continue
        try:
            with os.scandir(path) as entries:
                listed = [(e.path, e.name, e.is_dir(follow_symlinks=False)) for e in entries]
        except PermissionError:
            closed.append(path)
            continue
        except OSError:
            continue
        budget -= len(listed)
        for full, name, is_directory in listed:
            under = relative + name
            if wanted.match(under):
                found.append(full)
            elif is_directory and (most is None or level < most):
                todo.append((full, under + b"/", level + 1))
        if len(found) > MOST_MATCHES or budget < 0:
            raise Refused(
                f"the glob pattern `{glob.pattern}` has too much to look at (more than"
                f" {MOST_MATCHES} matches or {MOST_ENTRIES} names); deny directories by path, or"
                " set glob_scan_max_depth"
            )
    return found, closed


def _changed(path: bytes) -> int:
    # ctime: a command could set mtime back.
    changed = os.stat(path, follow_symlinks=False).st_ctime_ns
    return changed if time.time_ns() - changed > UNSETTLED_NS else 0


def _start(glob: Glob) -> tuple[bytes, str, bytes]:
    """Where the walk begins: the literal prefix of the pattern is opened by name."""
    base = glob.base
    parts = glob.pattern.split("/")
    while len(parts) > 1 and not re.search(r"[*?\[{\\]", parts[0]):
        name = parts.pop(0)
        if name not in ("", "."):
            base = os.path.join(base, name.encode("utf-8", "surrogateescape"))
    return os.path.normpath(base), "/".join(parts), b""
