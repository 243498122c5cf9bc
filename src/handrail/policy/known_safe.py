"""Commands that only read, which earlier agents ran without a question.

An option, not a default: the peer dropped the list, and an allow rule that keeps the sandbox says
the same explicitly.  It judges a command by its words alone, base name included; ``decide.py``
decides which paths are trusted.

The programs are data.  ``git`` was part of the list in one revision and not in the last one.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

from handrail.policy.strict_script_reader import split
from handrail.policy.tables import names

#: With any arguments.
ALWAYS = names("known safe")


@dataclass(frozen=True, slots=True)
class Unless:
    """Safe unless one of these words, or of these prefixes, is among the arguments."""

    words: frozenset[str]
    starts: tuple[str, ...] = ()

    def passes(self, arguments: Sequence[str]) -> bool:
        return not any(word in self.words or word.startswith(self.starts) for word in arguments)


UNLESS = {
    "base64": Unless(frozenset({"--output"}), ("-o", "--output=")),
    "find": Unless(
        frozenset({
            "-exec", "-execdir", "-ok", "-okdir", "-delete", "-fls", "-fprint", "-fprint0",
            "-fprintf",
        })
    ),
    "rg": Unless(
        frozenset({"--search-zip", "-z", "--pre", "--hostname-bin"}),
        ("--pre=", "--hostname-bin="),
    ),
}  # fmt: skip
#: ``sed -n 3p FILE`` and ``sed -n 3,9p FILE``.
_SED_LINES = re.compile(r"[0-9]+(,[0-9]+)?p")

#: A pager or an alias set on the command line runs anything.
GIT_ANYWHERE = Unless(frozenset({"--config-env"}), ("-c", "--config-env="))
GIT_READERS = frozenset({"status", "log", "diff", "show", "branch"})
GIT_ARGUMENTS = Unless(
    frozenset({"--output", "--ext-diff", "--textconv", "--exec", "--paginate"}),
    ("--output=", "--exec="),
)
#: Global options whose value is the next word.
GIT_VALUES = names("git values")
#: ``git branch`` with anything else makes, moves or deletes one.
GIT_BRANCH_LISTING = names("git branch listing")


def is_known_safe(argv: Sequence[str], *, git: bool = True) -> bool:
    """True if ``argv`` only reads: a listed command, or a script of nothing else."""
    if _is_safe(argv, git=git):
        return True
    commands = split(argv)
    return commands is not None and all(_is_safe(command, git=git) for command in commands)


def _is_safe(argv: Sequence[str], *, git: bool) -> bool:
    if not argv:
        return False
    name, arguments = posixpath.basename(argv[0]), argv[1:]
    if name in ALWAYS:
        return True
    if name in UNLESS:
        return UNLESS[name].passes(arguments)
    if name == "sed":
        return len(arguments) in (2, 3) and _is_line_printer(*arguments[:2])
    return git and name == "git" and _is_safe_git(arguments)


def _is_line_printer(flag: str, script: str) -> bool:
    return flag == "-n" and _SED_LINES.fullmatch(script) is not None


def _is_safe_git(arguments: Sequence[str]) -> bool:
    if not GIT_ANYWHERE.passes(arguments):
        return False
    verb, rest = _git_verb(arguments)
    if verb not in GIT_READERS or not GIT_ARGUMENTS.passes(rest):
        return False
    if verb != "branch":
        return True
    return all(word in GIT_BRANCH_LISTING or word.startswith("--format=") for word in rest)


def _git_verb(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The first word that is no option, and what follows it."""
    at = 0
    while at < len(arguments):
        word = arguments[at]
        at += 1
        if word in GIT_VALUES:
            at += 1
        elif not word.startswith("-"):
            return word, arguments[at:]
    return "", ()
