"""The pattern language of paths, as a regular expression.  Pure.

``**`` stands for any number of directories, ``*`` and ``?`` stay within one name, ``[...]`` is a
set, ``{a,b}`` a choice.
"""

from __future__ import annotations

import re


def translate(pattern: str) -> re.Pattern[bytes]:
    """Translate a pattern to a regular expression over relative paths; raises ValueError."""
    try:
        return re.compile(_translate(pattern).encode("utf-8", "surrogateescape") + rb"\Z")
    except re.error:
        raise ValueError(f"the glob pattern `{pattern}` is malformed; check its brackets") from None


def escape(path: str) -> str:
    """A pattern that matches this path alone."""
    return re.sub(r"[*?\[{\\]", r"[\g<0>]", path)


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
