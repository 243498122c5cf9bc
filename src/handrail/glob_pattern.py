"""The pattern language of paths, as a regular expression.  Pure.

``**`` stands for any number of directories, ``*`` and ``?`` stay within one name, ``[...]`` is a
set, ``{a,b}`` a choice.  ``?`` and a set match one character of UTF-8, or one byte that is none.
"""

from __future__ import annotations

import re

#: What choices may multiply to.
MOST_CHOICES = 1024
#: A set with a named class of characters, whose letters would be taken for themselves.
_CLASS = re.compile(r"\[[^]]*\[:[a-z]+:\]")


def as_text(path: bytes) -> str:
    """A path as what ``translate`` returns matches it; once for all patterns."""
    return path.decode("utf-8", "surrogateescape")


def translate(pattern: str) -> re.Pattern[str]:
    """Translate a pattern to a regular expression for relative paths; raises ValueError."""
    if _CLASS.search(pattern):
        raise ValueError(
            f"the glob pattern `{pattern}` has a class of characters, which is not known here; give"
            " a range, as in [a-z]"
        )
    text = "|".join(map(_translate, choices(pattern)))
    try:
        return re.compile(rf"(?s:{text})\Z")
    except re.error:
        raise _malformed(pattern) from None


def escape(path: str) -> str:
    """A pattern that matches this path alone."""
    return re.sub(r"[*?\[{\\]", r"[\g<0>]", path)


def choices(pattern: str) -> list[str]:
    """The patterns without choices that a pattern stands for, each once; raises ValueError."""
    waiting = [pattern]
    found: dict[str, None] = {}
    while waiting:
        one = waiting.pop()
        parts = _first_choice(one)
        if parts is None:
            raise _malformed(pattern)
        if parts:
            waiting += reversed(parts)
        else:
            found[plain(one)] = None
        if len(waiting) + len(found) > MOST_CHOICES:
            raise ValueError(
                f"the glob pattern `{pattern}` has more than {MOST_CHOICES} choices; deny a"
                " directory instead"
            )
    return list(found)


def plain(pattern: str) -> str:
    """Without ``.`` and empty names, which no path has: it would match nothing."""
    start = "/" if pattern.startswith("/") else ""
    return start + "/".join(name for name in pattern.split("/") if name not in ("", "."))


def _first_choice(pattern: str) -> list[str] | None:
    """A pattern with each part of its first choice; nothing without one, None: it has no end."""
    parts: list[str] = []
    start = last = depth = i = 0
    while i < len(pattern):
        c = pattern[i]
        if c == "\\":
            i += 1
        elif c == "[":
            i = _end_of_set(pattern, i) or i
        elif c == "{":
            depth += 1
            if depth == 1:
                start, last = i, i + 1
        elif depth == 1 and c in ",}":
            parts.append(pattern[last:i])
            last = i + 1
            if c == "}":
                return [pattern[:start] + part + pattern[last:] for part in parts]
        elif depth and c == "}":
            depth -= 1
        i += 1
    return None if depth else []


def _end_of_set(pattern: str, start: int) -> int | None:
    """Where the set ends that begins there; None: it is a bracket."""
    first = start + 1 + pattern.startswith(("!", "^"), start + 1)
    end = pattern.find("]", first + 1)
    return None if end < 0 else end


def _translate(pattern: str) -> str:
    """A pattern without choices."""
    out = []
    i, n = 0, len(pattern)
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
        end = _end_of_set(pattern, i) if c == "[" else None
        if c == "*":
            out.append("[^/]*")
        elif c == "?":
            out.append("[^/]")
        elif end is not None:
            out.append(_set(pattern[i + 1 : end]))
            i = end
        elif c == "\\" and i + 1 < n:
            i += 1
            out.append(re.escape(pattern[i]))
        else:
            out.append(re.escape(c))
        i += 1
    return "".join(out)


def _set(body: str) -> str:
    negated = body[0] in "!^"
    inner = re.sub(r"[\\\[\]&~|^]", r"\\\g<0>", body[1:] if negated else body)
    return f"[^{inner}/]" if negated else f"[{inner}]"


def _malformed(pattern: str) -> ValueError:
    return ValueError(f"the glob pattern `{pattern}` is malformed; check its brackets")
