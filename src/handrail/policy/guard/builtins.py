"""Shell builtins that evaluate texts, set variables or change how a script is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from handrail.policy.guard.values import UNUSUAL_NAME
from handrail.policy.guard.words import LISTING, MADE, NAME, Unclear, Word, unknown

if TYPE_CHECKING:
    from handrail.policy.guard.commands import Simple
    from handrail.policy.guard.verdict import Guard

_SET_LETTERS = re.compile(r"[-+][euxvfnCEmbhTB]+")
_SET_NAMES = frozenset({
    "pipefail", "errexit", "nounset", "xtrace", "noglob", "noclobber", "verbose", "errtrace",
    "monitor", "braceexpand",
})  # fmt: skip
_SHOPT_NAMES = frozenset({
    "nullglob", "globstar", "dotglob", "failglob", "nocaseglob", "nocasematch", "inherit_errexit",
    "lastpipe", "pipefail",
})  # fmt: skip
_ASSIGNS_BY_FORMAT = re.compile(r"%[^a-zA-Z%]*n")
_DECLARE_LETTERS = re.compile(r"[-+][rxgaAfFplut]+")


def _texts(words: Sequence[Word], what: str) -> list[str]:
    found = [word.value for word in words]
    if None in found:
        raise Unclear(f"{what} is given a text that only the run can tell")
    return [one for one in found if one is not None]


def _eval(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    guard.script(" ".join(_texts(words[1:], "eval")), guard.shell)


def _trap(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    actions = [word for word in words[1:] if word.value != "--"]
    if actions:
        text = _texts(actions[:1], "trap")[0]
        if text not in ("-", "-p", "-l"):
            guard.script(text, guard.shell)


def _source(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    operands = [word for word in words[1:] if word.value != "--"]
    if not operands:
        raise Unclear("a script is read from nowhere")
    guard.run_file(operands[0], "sh" if words[0].value == "." else guard.shell)


def _set(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if word.value in ("--", "-"):
            return
        if word.value is None:
            raise Unclear("set has words that only the run can tell")
        if word.value in ("-o", "+o") or re.fullmatch(r"[-+][euxvfnCEmbhTB]*o", word.value):
            if not rest or rest.pop(0).value not in _SET_NAMES:
                raise Unclear("set changes how the script is read")
        elif word.value.startswith(("-", "+")) and not _SET_LETTERS.fullmatch(word.value):
            raise Unclear("set changes how the script is read")


def _shopt(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    for word in words[1:]:
        if word.value not in _SHOPT_NAMES and word.value not in ("-s", "-u", "-q", "-p", "-o"):
            raise Unclear("shopt changes how the script is read")


def _setopt(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    raise Unclear(f"{words[0].value} changes how the script is read")


def _name(guard: Guard, word: Word, source: str = MADE) -> None:
    if word.value is None or not NAME.fullmatch(word.value):
        raise Unclear("a variable has a name that the shell evaluates")
    guard.assign(word.value, unknown(source))


def _read(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    """``read`` and ``mapfile``: words behind the options are names of variables."""
    rest = list(words[1:])
    source = LISTING if command.listed else MADE
    takes = "acCnOsuk" if words[0].value in ("mapfile", "readarray") else "adinNptu"
    while rest:
        word = rest.pop(0)
        if word.value is None:
            raise Unclear(f"{words[0].value} has words that only the run can tell")
        if not word.value.startswith("-") or word.value == "-":
            _name(guard, word, source)
            continue
        letters = word.value[1:]
        if words[0].value != "read" and set(letters) & set("cC"):
            raise Unclear(f"{words[0].value} calls a command back")
        if letters[-1:] and letters[-1] in takes and rest and not set(letters[:-1]) & set(takes):
            value = rest.pop(0)
            if letters[-1] == "a" and words[0].value == "read":
                _name(guard, value, source)
    if words[0].value == "read":
        guard.assign("REPLY", unknown(source))
    else:
        guard.assign("MAPFILE", unknown())


def _printf(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    rest = list(words[1:])
    if rest and rest[0].value is not None and rest[0].value.startswith("-v"):
        if rest[0].value != "-v" or len(rest) < 2:
            raise Unclear("printf sets a variable that the shell evaluates")
        _name(guard, rest[1])
        rest = rest[2:]
    if rest and rest[0].value == "--":
        rest = rest[1:]
    if not rest:
        return
    if rest[0].value is None:
        guard.require_operand(rest[0], "printf")
        guard.require_no_index(rest, "printf")
    elif _ASSIGNS_BY_FORMAT.search(rest[0].value):
        raise Unclear("printf sets a variable that the shell evaluates")


def _test(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    operands = list(words[1:])
    before: Word | None = None
    for word in operands:
        by_name = before is not None and before.value in ("-v", "-R")
        if by_name and not NAME.fullmatch(word.value or "["):
            raise Unclear("a test evaluates a text")
        if before is not None and before.value is None:
            guard.require_no_index([word] if "[" in (word.value or "[") else [], "test")
        if word.value is None and not word.one:
            guard.require_no_index([word], "test")
        before = word
    if guard.shell == "zsh" and any(
        word.value in ("-eq", "-ne", "-lt", "-gt", "-le", "-ge") for word in operands
    ):
        guard.require_no_index(operands, "test")


def _declare(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    letters = "".join(word.value or "" for word in words[1:] if (word.value or "").startswith("-"))
    guard.values.changes_case |= bool(set(letters) & set("lu"))
    for word in command.declared:
        # bash evaluates a value in parentheses as an array, also if it is quoted.
        made = word.value is None and not word.prefix and set(letters) & set("aA")
        if made or word.prefix.startswith("("):
            raise Unclear(f"{words[0].value} makes the shell evaluate values")
    for word in words[1:]:
        value = word.value
        if value is None:
            raise Unclear(f"{words[0].value} has words that only the run can tell")
        if value.startswith(("-", "+")):
            if not _DECLARE_LETTERS.fullmatch(value) and value != "--":
                raise Unclear(f"{words[0].value} {value} makes the shell evaluate values")
        elif not NAME.fullmatch(value):
            raise Unclear("a variable has a name that the shell evaluates")
    if guard.shell not in ("bash", "zsh"):
        for _, value_word in command.assignments:
            if not value_word.one:
                guard.require_operand(value_word, str(words[0].value))


def _cd(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    for word in words[1:]:
        guard.files.enter(word)
        if word.value is None or UNUSUAL_NAME.search(word.value):
            guard.assign("PWD", word)
            guard.assign("OLDPWD", word)


def _unset(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    for word in words[1:]:
        if word.value not in ("-f", "-v", "--") and not NAME.fullmatch(word.value or "["):
            raise Unclear("a variable has a name that the shell evaluates")


def _let(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    for text in _texts(words[1:], "let"):
        guard.arithmetic(text)


def _getopts(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    if len(words) < 3:
        raise Unclear("getopts without a variable")
    _name(guard, words[2])
    guard.assign("OPTARG", unknown())


def _wait(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    for word in words[1:]:
        if word.value is not None and word.value.startswith("-") and word.value != "-n":
            raise Unclear("wait sets a variable that the shell evaluates")
        guard.require_operand(word, "wait")


def _jobs(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    if any(word.value not in ("-l", "-p", "-r", "-s", "-n") for word in words[1:]):
        raise Unclear("jobs may run a command")


def _print(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    if guard.shell == "zsh":
        raise Unclear("print evaluates prompts")


BUILTINS: dict[str, Callable[[Guard, Sequence[Word], Simple], None]] = {
    "eval": _eval,
    "trap": _trap,
    "source": _source,
    ".": _source,
    "set": _set,
    "shopt": _shopt,
    "setopt": _setopt,
    "unsetopt": _setopt,
    "read": _read,
    "mapfile": _read,
    "readarray": _read,
    "printf": _printf,
    "test": _test,
    "[": _test,
    **dict.fromkeys(("declare", "typeset", "local", "export", "readonly"), _declare),
    "integer": _setopt,
    "float": _setopt,
    "unset": _unset,
    **dict.fromkeys(("cd", "pushd"), _cd),
    "let": _let,
    "getopts": _getopts,
    "wait": _wait,
    "print": _print,
    "jobs": _jobs,
}
