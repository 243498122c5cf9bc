"""Programs that run other programs: where their own words end and a command's begin.

Which options take a value, how many words come first, which options carry a whole script.  The
programs are in ``tables.txt``; ``wrappers.py`` and the guard use them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from handrail.policy.tables import entries, names

#: Shells by file name; more than the strict reader parses, since seeing is free here.
SHELLS = frozenset(
    {"bash", "sh", "zsh", "dash", "ksh", "mksh", "ash", "rbash", "fish", "csh", "tcsh"}
)
#: Letters that may stand in one word with ``-c`` before a script.
SHELL_VALUE_FLAGS = frozenset("oO")
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")


@dataclass(frozen=True, slots=True)
class Wrapper:
    """How a program's own words end and the command's begin."""

    #: Options whose value is the next word: single letters, and long names with their dashes.
    values: frozenset[str] = frozenset()
    #: Words of its own before the command, options apart.
    skip: int = 0
    #: NAME=VALUE words may stand before the command.
    assignments: bool = False
    #: These options mean that nothing is run.
    inert: frozenset[str] = frozenset()
    #: The program adds words of its own behind the command.
    appends: bool = False
    #: For the guard, which has to know all options: their letters, a colon behind one that takes a
    #: value.  ``values`` are all long ones then, with ``=`` if they take a value.
    letters: str = ""


def wrapper_of(words: Iterable[str] = ()) -> Wrapper:
    """A wrapper by the words of its entry in ``tables.txt``."""
    values, inert, letters, skip = set(), set(), "", 0
    for word in words:
        if word.startswith("!"):
            inert.add(word[1:])
        elif word.startswith("skip="):
            skip = int(word[5:])
        elif word.startswith("-") and not word.startswith("--"):
            letters = word[1:]
        else:
            values.add(word)
    assignments, appends = "assignments" in values, "appends" in values
    values -= {"assignments", "appends"}
    return Wrapper(frozenset(values), skip, assignments, frozenset(inert), appends, letters)


def wrappers(section: str) -> dict[str, Wrapper]:
    return {name: wrapper_of(words) for name, words in entries(section).items()}


def verb_wrappers(section: str) -> dict[tuple[str, str], Wrapper]:
    """By the program and its verb."""
    found = wrappers(section)
    return {(key.split()[0], key.split()[1]): wrapper for key, wrapper in found.items()}


WRAPPERS = wrappers("wrappers")
#: Wrappers with a verb: ``uv run X``.
VERB_WRAPPERS = verb_wrappers("verb wrappers")
#: Programs with verbs, whose own options come first: ``git -C x push`` is a ``git push``, too.
VERB_PROGRAMS = wrappers("verb programs")
#: Options of these programs that carry a whole script.
SCRIPT_OPTIONS = {name: frozenset(found) for name, found in entries("script options").items()}
FIND_ACTIONS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
#: Programs that take a command from their stdin to run it later.
READS_SCRIPT = frozenset({"at", "batch"})
SOURCES = frozenset({".", "source"})
STDIN_NAMES = frozenset({"/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})
STDIN_FILES = tuple((name,) for name in STDIN_NAMES)
#: The program that starts programs: ``/lib64/ld-linux-x86-64.so.2 /bin/rm``.
LOADER = re.compile(r"ld(-linux[\w.-]*|-musl[\w.-]*|\.so|64)?\.so\.\d+|ld\.so")
_OTHERS = wrappers("other options")
LOADER_OPTIONS, SSH = _OTHERS["ld.so"], _OTHERS["ssh"]
GIT_PROGRAMS = names("git programs")
#: Interpreters and the options that carry a program; none: any argument may.
CODE_OPTIONS = {name: frozenset(found) for name, found in entries("code options").items()}
STRING = re.compile(r"""(["'`])((?:(?!\1)[^\\\n]|\\.)+)\1""")
