"""Programs that run other programs: the command behind ``sudo``, ``timeout``, ``bash -c``, ...

``sightings`` returns every command an argv may start, itself first, through wrappers and scripts of
any nesting (bounded).  Like ``lenient_script_reader.py`` it serves forbid and ask only; the guard
asks about what it misses, and what it sees too much costs a question.

The programs themselves are data, in ``tables.txt`` under ``[wrappers]``, read by ``programs.py``.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from handrail.policy import programs
from handrail.policy.expansions import Variables, positional
from handrail.policy.lenient_script_reader import Glimpse, Glimpses, glimpses
from handrail.policy.programs import Wrapper, wrapper_of
from handrail.policy.rules import Words

#: Nested wrappers are followed this far; deeper ones are unclear.
DEPTH_LIMIT = 32
#: Limit of different commands recorded for one argv.
SIGHTING_LIMIT = 5000
#: So many texts of scripts are read for one argv: each may have several readings, which are read
#: again where something is fed to them.
TEXT_LIMIT = 500
#: So many words of a program with unknown options may be its command.
FLAGS_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Sightings:
    """The commands an argv may start, each with «for certain»: False behind an unknown program,
    as in ``$SUDO rm x``.  ``clear`` is False if there may be others; ``cut`` is True if that is
    so because a limit ended the search, which a script can be written to reach."""

    commands: tuple[tuple[Words, bool], ...]
    clear: bool
    cut: bool = False


@dataclass(slots=True)
class _Search:
    """The commands found so far."""

    seen: dict[Words, bool] = field(default_factory=dict)
    cut: bool = False
    texts: int = 0

    def read(self, script: str, given: Variables) -> Glimpses:
        """The commands of a script, as long as the limit is not reached."""
        self.texts += 1
        if self.texts > TEXT_LIMIT:
            self.cut = True
            return Glimpses((), clear=False)
        return glimpses(script, given)


def sightings(argv: Words) -> Sightings:
    """Every command that ``argv`` may start, itself first."""
    search = _Search()
    clear = _look(Glimpse(argv), {}, 0, search, certain=True)
    return Sightings(tuple(search.seen.items()), clear, search.cut)


def _look(
    command: Glimpse, variables: Variables, depth: int, search: _Search, *, certain: bool
) -> bool:
    """Record a command and whatever it wraps; True if nothing stayed hidden."""
    words, seen = command.words, search.seen
    if not words:
        return True
    if depth > DEPTH_LIMIT or (len(seen) >= SIGHTING_LIMIT and words not in seen):
        search.cut = True
        return False
    search.cut |= _beyond_limits(command)
    if words[0] is None:
        _look(replace(command, words=words[1:]), variables, depth + 1, search, certain=False)
        return False
    plain = command.stdin is None and not command.files
    if plain and (seen.get(words) or (words in seen and not certain)):
        return True
    seen[words] = certain or seen.get(words, False)
    clear = True
    variables = {**variables, **_set_before(words)}
    for inner in _wrapped(words):
        # The input of ``sudo sh`` is read by ``sh``.
        below = replace(command, words=inner)
        clear &= _look(below, variables, depth + 1, search, certain=certain)
    for script, arguments in _scripts(command):
        found = search.read(script, {**variables, **positional(arguments)})
        clear &= found.clear
        search.cut |= found.cut
        for glimpse in found.commands:
            clear &= _look(glimpse, found.variables, depth + 1, search, certain=certain)
    for text in _strings_of_code(command):
        # A program in another language may hand any of its strings to a shell, or none.
        for glimpse in search.read(text, {}).commands:
            _look(glimpse, {}, depth + 1, search, certain=False)
    return clear


def _beyond_limits(command: Glimpse) -> bool:
    """True if the script determines what this command runs, but it is too much to follow."""
    words = command.words
    if words[0] is None:
        return command.many
    name = posixpath.basename(words[0])
    if name == "bwrap":
        return len(words) > FLAGS_LIMIT
    if command.far and command.stdin is None:
        return name in programs.SHELLS or name in programs.READS_SCRIPT or name in programs.SOURCES
    takes_script = (
        name in ("eval", "trap", "watch", "hyperfine", "ssh") or name in programs.SCRIPT_OPTIONS
    )
    if name in programs.SHELLS:
        takes_script = any(word and word.startswith("-") and "c" in word for word in words[1:])
    return command.many and takes_script and None in words


def _set_before(words: Words) -> dict[str, tuple[str, ...]]:
    """``env X=rm sh -c '$X y'``"""
    pairs = [
        word.partition("=")
        for word in words
        if word is not None and programs.ASSIGNMENT.match(word)
    ]
    return {name.rstrip("+"): (value,) for name, _, value in pairs if value}


def _wrapped(words: Words) -> Iterator[Words]:
    """The commands that are words behind this program."""
    name = posixpath.basename(words[0] or "")
    if name == "find":
        yield from _find_commands(words)
    if name in ("fd", "fdfind"):
        yield from _behind_any(words, ("-x", "-X", "--exec", "--exec-batch"))
    if name == "bwrap":
        yield from _behind_flags(words)
    if programs.LOADER.fullmatch(name):
        yield _behind_options(words[1:], programs.LOADER_OPTIONS)
    if name == "screen":
        yield _behind_options(words[1:], wrapper_of(["S", "c", "s", "t", "h", "e", "T"]))
    if name == "coproc" and words[2:3] == ("{",):  # coproc NAME { X; }
        yield words[3:]
    if name == "git" and words[1:3] == ("bisect", "run"):
        yield words[3:]
    if name.startswith("git-"):  # /usr/lib/git-core/git-push
        yield ("git", name.removeprefix("git-"), *words[1:])
    for count in (2, 3):
        known = tuple(word or "" for word in (name, *words[1:count]))
        yield from ((*other, *words[count:]) for other in programs.SAME_VERBS.get(known, ()))
    if name in programs.VERB_PROGRAMS:
        inner = _behind_options(words[1:], programs.VERB_PROGRAMS[name])
        if inner and inner != words[1:]:
            yield (words[0], *inner)
    verb = words[1] if len(words) > 1 else None
    wrapper = programs.WRAPPERS.get(name)
    rest = words[1:]
    if wrapper is None and verb is not None and (name, verb) in programs.VERB_WRAPPERS:
        wrapper, rest = programs.VERB_WRAPPERS[name, verb], words[2:]
    if wrapper is None:
        return
    inner = _behind_options(rest, wrapper)
    if inner:
        yield (*inner, None) if wrapper.appends else inner


def _behind_any(words: Words, options: tuple[str, ...]) -> Iterator[Words]:
    for at, word in enumerate(words):
        if word in options:
            yield tuple(words[at + 1 :])


def _behind_flags(words: Words) -> Iterator[Words]:
    """What may be the command of a program with more options than can be known: any tail."""
    for at in range(2, min(len(words), FLAGS_LIMIT)):
        before, word = words[at - 1], words[at]
        if word is not None and not word.startswith("-") and before is not None:
            yield words[at:]


def _behind_options(words: Words, wrapper: Wrapper) -> Words:
    skip, at = wrapper.skip, 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            return words[at + skip :]
        if word is not None and word.startswith("-") and (len(word) > 1 or wrapper.dash):
            if word in wrapper.inert:
                return ()
            at += _takes_next(word, wrapper.values)
        elif word is not None and wrapper.assignments and programs.ASSIGNMENT.match(word):
            continue
        elif skip:
            skip -= 1
        else:
            return words[at - 1 :]
    return ()


def _takes_next(option: str, values: frozenset[str]) -> bool:
    """True if the value of this option is the next word."""
    if option.startswith("--"):
        return option in values
    for at, letter in enumerate(option[1:], 2):
        if letter in values:
            return at == len(option)
    return False


def _find_commands(words: Words) -> Iterator[Words]:
    for at, word in enumerate(words):
        if word in programs.FIND_ACTIONS:
            rest = list(words[at + 1 :])
            ends = [rest.index(mark) for mark in (";", "+") if mark in rest]
            yield tuple(None if part == "{}" else part for part in rest[: min(ends, default=None)])


def _scripts(command: Glimpse) -> Iterator[tuple[str, Words]]:
    """The shell scripts among the words of a command, or on its stdin, each with its arguments."""
    words, stdin = command.words, command.stdin
    name = posixpath.basename(words[0] or "")
    if name in programs.SHELLS:
        yield from _shell_scripts(words, stdin)
    elif name in ("eval", "watch", "hyperfine"):
        yield " ".join(word for word in words[1:] if word is not None), ()
    elif name == "trap":
        actions = [word for word in words[1:] if word != "--"]
        if actions and actions[0]:
            yield actions[0], ()
    elif name == "ssh":
        yield from ((script, ()) for script in _ssh_scripts(words))
    elif name == "git":
        yield from ((script, ()) for script in _git_scripts(words))
    elif stdin is not None and (
        name in programs.READS_SCRIPT
        or (name in programs.SOURCES and words[1:2] in programs.STDIN_FILES)
    ):
        yield stdin, words[1:]
    if name in programs.SHELLS or name in programs.SOURCES:
        yield from ((text, ()) for text in command.files)
    for option in programs.SCRIPT_OPTIONS.get(name, ()):
        yield from ((script, ()) for script in _option_scripts(words, option))


def _option_scripts(words: Words, option: str) -> Iterator[str]:
    short = len(option) == 2
    for at, word in enumerate(words):
        following = words[at + 1] if at + 1 < len(words) else None
        if word is None or len(word) < 2 or word[0] != "-":
            continue
        joined = short and word[1] != "-" and word[1:-1].isalpha() and word.endswith(option[1])
        if (word == option or joined) and following:
            yield following
        elif word.startswith(option) and word != option:
            yield word[len(option) :].removeprefix("=")


def _ssh_scripts(words: Words) -> Iterator[str]:
    behind = _behind_options(words[1:], programs.SSH)
    if len(behind) > 1:
        yield " ".join(word for word in behind[1:] if word is not None)


def _git_scripts(words: Words) -> Iterator[str]:
    """``git -c alias.x='!rm y' x``, ``git -c core.pager=rm log``, ``git submodule foreach x``"""
    if words[1:3] == ("submodule", "foreach"):
        yield " ".join(word for word in words[3:] if word is not None and word != "--recursive")
    for at, word in enumerate(words[1:], 1):
        if word == "-c" and at + 1 < len(words):
            key, _, value = (words[at + 1] or "").partition("=")
            if value.startswith("!"):
                yield value[1:]
            elif key.lower() in programs.GIT_PROGRAMS:
                yield value


def _strings_of_code(command: Glimpse) -> Iterator[str]:
    """The strings in the program text that an interpreter gets as an argument or on stdin."""
    words = command.words
    name = posixpath.basename(words[0] or "").rstrip("0123456789.")
    if name not in programs.CODE_OPTIONS:
        return
    options = programs.CODE_OPTIONS[name]
    given_file = any(word is None or not word.startswith("-") for word in words[1:])
    from_stdin = not given_file or "-" in words[1:] or bool(programs.STDIN_NAMES & set(words[1:]))
    if command.stdin is not None and options and from_stdin:
        yield from (found[2] for found in programs.STRING.finditer(command.stdin))
    for at, word in enumerate(words[1:], 1):
        before = words[at - 1] or ""
        given = before in options or (before.startswith("-") and before[-1:] in _letters(options))
        if word is not None and (given or not options):
            for found in programs.STRING.finditer(word):
                yield found[2]


def _letters(options: frozenset[str]) -> set[str]:
    return {option[1] for option in options if len(option) == 2}


def _shell_scripts(words: Words, stdin: str | None) -> Iterator[tuple[str, Words]]:
    has_script = False
    rest = iter(range(1, len(words)))
    for at in rest:
        word = words[at]
        if word is None:
            continue
        if word.startswith(("-", "+")) and word not in ("-", "--"):
            if word.startswith("--"):
                continue
            has_script |= word.startswith("-") and "c" in word
            if programs.SHELL_VALUE_FLAGS & set(word[1:]):
                next(rest, None)
        elif word not in ("-", "--"):
            if has_script:
                yield word, words[at + 1 :]
            elif stdin is not None and (word in programs.STDIN_NAMES or "-s" in words):
                yield stdin, (None, *words[at + 1 :])
            return
    if stdin is not None and not has_script:
        yield stdin, ()
