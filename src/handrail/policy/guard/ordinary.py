"""Programs that are known to run nothing that their words name.

No table can name every launcher.  Therefore a program that is not on this list is asked about if
one of its words is the name of a program that a rule forbids or prompts for.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Set as AbstractSet

from handrail.policy.guard.programs import LAUNCHERS, VERB_LAUNCHERS
from handrail.policy.rules import Words
from handrail.policy.tables import names

#: Programs that run nothing by their words.
ORDINARY = names("ordinary")

_READ = frozenset({*LAUNCHERS, *(name for name, _ in VERB_LAUNCHERS)})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "eval", "xargs"})
_SPELLED = re.compile(r"[\\'\"`$(){}\[\]@*!]+")


def may_launch(words: Words, names: AbstractSet[str]) -> str | None:
    """The name among ``names`` that a program which is not ordinary may run by its words."""
    first = words[0] if words else None
    if not first or posixpath.basename(first) in ORDINARY:
        return None
    known = posixpath.basename(first) in _READ
    for word in words[1:]:
        for part in re.split(r"[\s=:;|&,'\"`(){}]+", word or ""):
            if posixpath.basename(part) in names:
                return posixpath.basename(part)
        if known:
            continue  # what it runs is read on its own
        if word in _SHELLS:
            return word
        # What it takes for a script of a shell may spell a name in other ways: ``z\ap``.
        for part in re.split(r"[\s=;|&,]+", word or ""):
            if _SPELLED.search(part) and _SPELLED.sub("", posixpath.basename(part)) in names:
                return _SPELLED.sub("", posixpath.basename(part))
    return None
