"""Which rule to offer with a question: «yes, and always for commands that start like this».

Some prefixes are never offered nor accepted, because almost anything may follow them:

  an interpreter or a shell without its program       ``python3.11 -X dev``, ``bash -xc``
  a wrapper without a narrow command behind it        ``env -i``, ``timeout 5``, ``sudo -n bash``
  a program with verbs without its verb               ``git -C``, ``docker``
  a program that can be told to run another           ``find .``, ``ssh host``, ``tar``
  an option or a verb that a command follows          ``git rebase -x``, ``asdf exec``

A prefix too long to be read with a question is not offered either.  Names count without directory
and version.  The programs are in ``tables.txt``.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence

from handrail.policy import programs
from handrail.policy.guard.ordinary import may_launch
from handrail.policy.guard.programs import OPAQUE
from handrail.policy.programs import (
    INTERPRETERS,
    Wrapper,
    is_shell,
    plain_name,
    wrapper_of,
    wrappers,
)
from handrail.policy.rules import Argv, Decision, Policy, PrefixRule, Words, strictest
from handrail.policy.tables import entries, names

#: Any word behind these may be an option that runs a program, however they begin.
_RUNS_ANYTHING = names("runs anything") | programs.READS_SCRIPT
#: Of those above: a first operand names what is run, and the rest are its arguments.
_NARROWED_BY_OPERAND = frozenset({"make", "gmake", "bmake", "sed"})
#: Programs with verbs beyond those whose options are known, and programs that change any file: a
#: prefix without an operand says nothing.
_NEEDS_OPERAND = names("needs operand")
#: Verbs behind which a command, or the name of any script, comes.
_VERBS = entries("verbs")
#: What the guard never reads, unless a prefix with an operand is narrow enough.
_UNREAD = OPAQUE - programs.WRAPPERS.keys() - _NEEDS_OPERAND - _VERBS.keys()
#: Beside ``npx``: what is behind them is a package, and the rest its arguments.
_PACKAGE_RUNNERS = wrappers("package runners")
#: A command comes behind such a last word, whatever program with verbs it belongs to ..
_COMMAND_FOLLOWS = names("command follows")
#: .. except for those that run the project's own program, or a step that the project names.
_RUNS_PROJECT = frozenset({"cargo", "dotnet", "swift", "flutter", "pre-commit", "lefthook"})
#: Modules of Python that run what is named behind them, or any code.
_RUNS_MODULE = names("runs module")
#: GNU programs beside those of another system: ``gxargs``, ``gtimeout``.
_GNU = "g"
#: So many characters of a rule can be read with a question.
_READABLE = 500
_SHELL_VALUES = frozenset(f"-{letter}" for letter in programs.SHELL_VALUE_FLAGS) | {"--rcfile"}
_LIMIT = 16


def is_too_broad(prefix: Sequence[str]) -> bool:
    """True if a rule with this prefix would allow almost anything."""
    return _is_broad(tuple(prefix), 0)


def _is_broad(words: Argv, depth: int) -> bool:
    if not words or not words[0] or depth > _LIMIT or programs.ASSIGNMENT.match(words[0]):
        return True
    name, rest = _known_name(words[0]), words[1:]
    if _command_follows(name, words):
        return True
    if programs.LOADER.fullmatch(posixpath.basename(words[0])):
        return True
    if is_shell(name) or (name in INTERPRETERS and name not in _VERBS):
        return _has_no_program(name, rest) or _is_broad_module(rest, depth)
    if name in _RUNS_ANYTHING or name in _UNREAD:
        return name not in _NARROWED_BY_OPERAND or not _operands(rest, wrapper_of("CfjneIW"))
    verb_wrapper = programs.VERB_WRAPPERS.get((name, rest[0])) if rest else None
    if verb_wrapper is not None:
        return _is_broad(_behind(rest[1:], verb_wrapper), depth + 1)
    wrapper = _PACKAGE_RUNNERS.get(name) or programs.WRAPPERS.get(name)
    if wrapper is not None:
        scripted = programs.SCRIPT_OPTIONS.get(name, frozenset())
        if any(word.partition("=")[0] in scripted or word[:2] in scripted for word in rest):
            return True
        return _is_broad(_behind(rest, wrapper), depth + 1)
    if name in programs.VERB_PROGRAMS or name in _NEEDS_OPERAND or name in _VERBS:
        operands = _operands(rest, programs.VERB_PROGRAMS.get(name, wrapper_of()))
        if not operands:
            return True
        return operands[0] in _VERBS.get(name, ()) and not _operands(operands[1:], wrapper_of())
    return False


def _known_name(program: str) -> str:
    """The name that the tables have for a program."""
    name = plain_name(program)
    bare = name.removeprefix(_GNU)
    return bare if name != bare and (bare in programs.WRAPPERS or bare in _RUNS_ANYTHING) else name


def _command_follows(name: str, words: Argv) -> bool:
    """True if the last word asks for a command behind it, or for an option's value that is one."""
    last, between = words[-1], words[1:-1]
    verbs = name in _VERBS or may_launch((words[0], last), _COMMAND_FOLLOWS)
    follows = last in _COMMAND_FOLLOWS and not any(word.startswith("-") for word in between)
    if len(words) > 1 and follows and verbs and name not in _RUNS_PROJECT:
        return True
    if not last.startswith("-") or last == "-":
        return False
    from handrail.policy.guard.verdict import read

    # Judged with a value that is nothing: what is unclear is then the option.
    return bool(read((*words, "x")).unclear) and not read((*words[:-1], "x")).unclear


def _is_broad_module(words: Argv, depth: int) -> bool:
    """``python3 -m pip install`` is as broad as ``pip install``."""
    for at, word in enumerate(words[:-1]):
        if not word.startswith("-"):
            return False
        if word[1:2] != "-" and word.endswith("m"):
            module, rest = words[at + 1], words[at + 2 :]
            if module.lower() in _RUNS_MODULE:
                return not _operands(rest, wrapper_of())
            return module in _VERBS and _is_broad((module, *rest), depth + 1)
    return False


def _has_no_program(name: str, words: Argv) -> bool:
    """True if an interpreter's words name neither a file nor the text of a program."""
    values = _SHELL_VALUES if is_shell(name) else INTERPRETERS[name]
    at = 0
    while at < len(words):
        word = words[at]
        if word in values:
            at += 2
        elif not word or word[0] in "-+" or (word[0] == "/" and len(word) == 2):
            if is_shell(name) and word[:1] == "-" and word[1:2] != "-" and "s" in word:
                return True  # the script comes from standard input, whatever follows
            at += 1
        else:
            return word in programs.STDIN_NAMES
    return True


def _operands(words: Argv, wrapper: Wrapper) -> Argv:
    """The words that follow the options and their values."""
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return words[at + 1 :]
        if not word.startswith("-"):
            return words[at:]
        short = word[1:] if len(word) == 2 else word
        at += 2 if word in wrapper.values or short in wrapper.values else 1
    return ()


def _behind(words: Argv, wrapper: Wrapper) -> Argv:
    """The command behind a wrapper's own words."""
    words = _operands(words, wrapper)
    skip = wrapper.skip
    while words and (skip or (wrapper.assignments and programs.ASSIGNMENT.match(words[0]))):
        skip -= not (wrapper.assignments and programs.ASSIGNMENT.match(words[0]))
        words = _operands(words[1:], wrapper) if wrapper.assignments else words[1:]
    return words


def proposed_prefix(
    policy: Policy,
    commands: Iterable[Argv],
    asked: Sequence[Words],
    wanted: Sequence[str] | None,
) -> Argv | None:
    """The prefix to offer: the wanted one if it is narrow and settles all, else the first
    command that asks, whole."""
    if wanted and not is_too_broad(wanted):
        rule = PrefixRule(wanted[0], tuple((word,) for word in wanted[1:]))
        extended = policy.extended([rule])
        settles = all(
            strictest(extended.matches(command)) is Decision.ALLOW for command in commands
        )
        if settles and _is_readable(wanted):
            return tuple(wanted)
    return first_of(asked)


def first_of(commands: Sequence[Words]) -> Argv | None:
    """The first command that is known word by word, unless it would be too broad as a prefix."""
    for command in commands:
        words = tuple(word for word in command if word is not None)
        if words and len(words) == len(command):
            return None if is_too_broad(words) or not _is_readable(words) else words
    return None


def _is_readable(prefix: Sequence[str]) -> bool:
    """Whether a person can read all of the rule: a longer one moves the question out of sight."""
    return sum(len(word) + 1 for word in prefix) <= _READABLE
