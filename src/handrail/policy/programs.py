"""Programs that run other programs, or code that is not theirs; their names are in ``tables.txt``.

Of those that run a command behind their own words: which options take a value, how many words come
first, which options carry a whole script.  Of the others: what they run without being told.  Pure.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass

from handrail.policy.tables import entries, names, words

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
    #: A lone ``-`` is an option.
    dash: bool = False
    #: These options mean that nothing is run.
    inert: frozenset[str] = frozenset()
    #: The program adds words of its own behind the command.
    appends: bool = False
    #: For the guard, which has to know all options: their letters, a colon behind one that takes a
    #: value.  ``values`` are all long ones then, with ``=`` if they take a value.
    letters: str = ""


def wrapper_of(entry: Iterable[str] = ()) -> Wrapper:
    """A wrapper by the words of its entry in ``tables.txt``."""
    values, inert, letters, skip = set(), set(), "", 0
    for word in entry:
        if word.startswith("!"):
            inert.add(word[1:])
        elif word.startswith("skip="):
            skip = int(word[5:])
        elif word.startswith("-") and not word.startswith("--"):
            letters = word[1:]
        else:
            values.add(word)
    marks = {"assignments", "appends", "dash"}
    return Wrapper(
        frozenset(values - marks),
        skip,
        assignments="assignments" in values,
        dash="dash" in values,
        inert=frozenset(inert),
        appends="appends" in values,
        letters=letters,
    )


def wrappers(section: str) -> dict[str, Wrapper]:
    return {name: wrapper_of(entry) for name, entry in entries(section).items()}


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


def option_table(section: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """The letters and the long options of each program of a section."""
    found = {}
    for program, (first, *others) in entries(section).items():
        letters = first.removeprefix("letters=")
        plain = letters == first
        found[program] = ("", (first, *others)) if plain else (letters, tuple(others))
    return found


#: Options that name a file to write, of programs that otherwise only read or print.
WRITING_OPTIONS = option_table("writing options")


def _same_verbs() -> dict[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """What a program with a verb does as well, as the words of another command."""
    found: dict[tuple[str, ...], tuple[tuple[str, ...], ...]] = {}
    for program, entry in entries("same verbs").items():
        for group in " ".join(entry).split(" | "):
            from_verb, does, to_verb = group.partition(" > ")
            verbs = [(program, *verb.split()) for verb in from_verb.split(" = ")]
            others = [(program, *to_verb.split())] if does else verbs
            for verb in verbs:
                more = tuple(other for other in others if other != verb)
                found[verb] = found.get(verb, ()) + more
    return found


#: ``git send-pack`` does what ``git push`` does.
SAME_VERBS = _same_verbs()
#: Programs of which the beginning of a verb is enough.
ABBREVIATED_VERBS = {name: frozenset(found) for name, found in entries("abbreviated verbs").items()}

# --- code that is not theirs ---------------------------------------------------------------------

#: ``python3.11``, ``perl5.36``, ``clang-15``, ``node20``, ``python3.11-dbg``.
_VERSION = re.compile(r"(?<=[a-z])[-_.]?[0-9][0-9.]*(-?dbg|d|m|t|w)?$")

#: Shells beyond those whose scripts are read.
FURTHER_SHELLS = frozenset({"cmd", "pwsh", "powershell", "xonsh", "elvish", "nu", "yash", "rksh"})
#: Shells that read no file of the user's before a script, unless they are login shells.
QUIET_SHELLS = frozenset({"bash", "sh", "dash", "ksh", "mksh", "ash", "rbash"})
#: Interpreters: the options whose value is the next word, those with the program's text left out.
INTERPRETERS = {name: frozenset(v) for name, v in entries("interpreters").items()}
#: Programs that run code from their working directory, or from files they are given: settings of a
#: repository, build files, tests, plugins.
_FINDS_CODE = names("finds code")
#: Builtins, not looked up in PATH, that do not change the meaning of other names.
BUILTINS = names("builtins")
CHANGES_DIRECTORY = frozenset({"cd", "pushd", "popd"})
#: After these a name may mean another program, or the program may get other variables.
CHANGES_LOOKUP = names("changes lookup")
#: Variables that hold code, or where code is loaded from, for every program or for many.
CODE_VARIABLES = words("code variables")
#: Variables whose value is a command or options, in which files may be named.
COMMAND_VARIABLES = words("command variables")


def plain_name(program: str) -> str:
    """The name of a program without its directory, its version and its case."""
    name = posixpath.basename(program.replace("\\", "/")).lower().removesuffix(".exe")
    return _VERSION.sub("", name)


def is_shell(program: str) -> bool:
    """True if this is a shell by its name."""
    return plain_name(program) in SHELLS | FURTHER_SHELLS


def runs_what_it_finds(program: str) -> bool:
    """True if this program is known to run code from its working directory or its files."""
    name = plain_name(program)
    return name in _FINDS_CODE or name in INTERPRETERS or is_shell(name)
