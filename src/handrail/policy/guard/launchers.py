"""Programs that run other programs or texts: which of their words is a command, script or file."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from handrail.policy.guard import tools
from handrail.policy.guard.code import check_perl, node_writes, read_python
from handrail.policy.guard.programs import INTERPRETERS
from handrail.policy.guard.words import LISTING, MADE, Unclear, Word, known, unknown
from handrail.policy.programs import Wrapper

if TYPE_CHECKING:
    from handrail.policy.guard.commands import Simple
    from handrail.policy.guard.verdict import Guard

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)
#: Without a command behind them these print, or do nothing.
_ALONE = frozenset({"env", "xargs", "exec", "nice", "command", "builtin", "time"})
_SHELL_LETTERS = re.compile(r"[-+][celuxvfnCEB]*o?")
_SHELL_LONG = frozenset({"--norc", "--noprofile", "--login", "--posix", "--verbose"})
_SET_NAMES = frozenset({"pipefail", "errexit", "nounset", "xtrace", "noglob"})
_PYTHON_FLAGS = frozenset("uBOEsSIqvbdPh")
_PYTHON_MODULES = frozenset({
    "timeit", "pdb", "cProfile", "profile", "trace", "runpy", "code", "codeop", "idlelib", "pty",
    "webbrowser", "this", "antigravity", "turtle", "bdb", "asyncio", "IPython", "sqlite3",
    "doctest",
})  # fmt: skip


def launch(
    guard: Guard, launcher: Wrapper, words: Sequence[Word], first: int, command: Simple
) -> None:
    """Read the command behind the launcher's own words, which begin at ``first``."""
    at, skip = first, launcher.skip
    replaced: str | None = None
    base = posixpath.basename(words[0].value or "")
    while at < len(words):
        word = words[at]
        if word.value is None:
            break
        if word.value == "--":
            at += 1
            break
        if word.value in launcher.inert:
            return
        if word.value == "-" and launcher.dash:
            at += 1
        elif word.value.startswith("-") and len(word.value) > 1:
            if base == "env" and word.value.startswith(("-S", "--split-string")):
                _split_string(guard, words[at:], command)
                return
            taken, value = _option(launcher, base, words, at)
            if base == "xargs" and word.value.startswith(("-I", "--replace")):
                replaced = value or "{}"
            at += taken
        elif launcher.assignments and _ASSIGNMENT.match(word.value):
            guard.environment(word)
            at += 1
        else:
            break
    own = words[at : at + skip]
    for word in own:
        if word.value is None and not word.one:
            raise Unclear(f"{base} has words that only the run can tell")
        guard.require_operand(word, base)
    inner = list(words[at + skip :])
    if base == "flock" and inner and inner[0].value in ("-c", "--command"):
        guard.script(_text(inner[1:2], base), "sh")
        return
    if not inner:
        if base not in _ALONE:
            raise Unclear(f"{base} runs a command that is not read")
        return
    if replaced is not None:
        inner = [_with_unknown(word, replaced, command) for word in inner]
    elif launcher.appends:
        inner.append(unknown(LISTING if command.listed else MADE))
    guard.run(inner, replace(command, writes=[], assignments=[]))


def _with_unknown(word: Word, mark: str, command: Simple) -> Word:
    if word.value is None or mark not in word.value:
        return word
    source = LISTING if command.listed else MADE
    before = word.value.partition(mark)[0]
    return Word(None, before, True, (source,), literal=word.value.replace(mark, ""))


def _option(launcher: Wrapper, base: str, words: Sequence[Word], at: int) -> tuple[int, str | None]:
    """How many words an option takes, and its value."""
    option = words[at].value or ""
    following = words[at + 1] if at + 1 < len(words) else None
    if option.startswith("--"):
        name, equals, value = option.partition("=")
        if equals and name + "=" in launcher.values:
            return 1, value
        if not equals and name in launcher.values:
            return 1, None
        if not equals and name + "=" in launcher.values and base != "xargs":
            return _value(base, following)
        raise Unclear(f"{base} has an option that is not known: {name}")
    if base == "nice" and re.fullmatch(r"-\d+", option):
        return 1, None
    for place, letter in enumerate(option[1:], 1):
        found = launcher.letters.find(letter)
        if found < 0 or letter == ":":
            raise Unclear(f"{base} has an option that is not known: {option}")
        if launcher.letters[found + 1 : found + 2] == ":":
            rest = option[place + 1 :]
            return (1, rest) if rest else _value(base, following)
    return 1, None


def _value(base: str, following: Word | None) -> tuple[int, str | None]:
    if following is None or (following.value is None and not following.one):
        raise Unclear(f"{base} has words that only the run can tell")
    return 2, following.value


def _text(words: Sequence[Word], program: str) -> str:
    if not words or words[0].value is None:
        raise Unclear(f"{program} is given a text that only the run can tell")
    return words[0].value


def _split_string(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    option = words[0].value or ""
    rest = list(words[1:])
    text = option.removeprefix("--split-string").removeprefix("-S").removeprefix("=")
    text = text or _text([rest.pop(0)] if rest else [], "env")
    if re.search(r"[\\$#'\"]", text):
        raise Unclear("env splits a text that is not followed")
    inner = [known(part) for part in shlex.split(text)] + rest
    while inner and _ASSIGNMENT.match(inner[0].value or ""):
        guard.environment(inner.pop(0))
    guard.run(inner, replace(command, writes=[], assignments=[]))


def _shell(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    """``bash -c TEXT``, ``bash FILE`` or a text on stdin."""
    name = posixpath.basename(words[0].value or "")
    at, has_text, from_stdin = 1, False, False
    only_checks = False
    while at < len(words):
        value = words[at].value
        if value is None or not value.startswith(("-", "+")):
            break
        at += 1
        if value in ("--", "-"):
            break
        if value in _SHELL_LONG:
            continue
        if value == "-s":
            from_stdin = True
            continue
        if not _SHELL_LETTERS.fullmatch(value):
            raise Unclear(f"{name} has an option that is not known: {value}")
        has_text |= "c" in value
        only_checks = "n" in value if value[0] == "-" else False
        if value.endswith("o"):
            if at >= len(words) or words[at].value not in _SET_NAMES:
                raise Unclear(f"{name} has an option that is not known: {value}")
            at += 1
    operands = words[at:]
    if has_text:
        _script(guard, operands[0] if operands else unknown(), name)
    elif operands and not from_stdin:
        if not only_checks:
            guard.run_file(operands[0], name)
    elif command.body is not None and command.inputs == 1:
        _script(guard, command.body, name)
    elif command.reads and command.inputs == 1:
        guard.run_file(command.reads[0], name)
    else:
        raise Unclear(f"{name} reads a text that is fed at the run")


def _script(guard: Guard, text: Word, shell: str) -> None:
    """Read the text that a shell is given, at once or when the values in it are known."""
    guard.require_text(text, shell, lambda one: guard.script(one, shell))


def _python(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    at = 1
    while at < len(words):
        word = words[at]
        value = word.value
        if value is None or not value.startswith("-") or value == "-":
            break
        if value in ("--version", "--help", "-V", "-VV"):
            return
        at += 1
        for place, letter in enumerate(value[1:], 1):
            rest = value[place + 1 :]
            if letter in "WX":
                at += not rest
                break
            if letter in "cm":
                given = known(rest) if rest else (words[at] if at < len(words) else unknown())
                if letter == "c":
                    _python_text(guard, given)
                    return
                text = _text([given], "python")
                _python_module(guard, text, words[at + (not rest) :], command)
                return
            if letter not in _PYTHON_FLAGS:
                raise Unclear(f"python has an option that is not known: {value}")
    if at < len(words) and words[at].value != "-":
        guard.run_file(words[at], "python")
        return
    if command.body is not None and command.inputs == 1:
        _python_text(guard, command.body)
        return
    if command.reads and command.inputs == 1 and at >= len(words):
        guard.run_file(command.reads[0], "python")
        return
    raise Unclear("python reads a text that is fed at the run")


def _python_text(guard: Guard, text: Word) -> None:
    def check(text: str) -> None:
        writes, modules = read_python(text)
        guard.files.load_modules(modules)
        if writes:
            guard.files.writes_anything()

    guard.require_text(text, "python", check)


def _python_module(guard: Guard, module: str, rest: Sequence[Word], command: Simple) -> None:
    if module.partition(".")[0] in _PYTHON_MODULES:
        raise Unclear(f"what python -m {module} runs is not read")
    if module in ("pytest", "pip", "tox", "mypy", "coverage"):
        guard.run([known(module), *rest], replace(command, writes=[], assignments=[]))
        return
    guard.files.load("python")
    guard.files.run_project()


def _node(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    at = 1
    while at < len(words):
        value = words[at].value
        if value is None or not value.startswith("-"):
            guard.run_file(words[at], "node")
            return
        at += 1
        if value in ("--version", "-v", "--help", "-h", "--check", "-c"):
            return  # the last two only parse a file
        if value in ("-e", "-p", "-pe", "--eval", "--print"):
            guard.files.load("node")
            if node_writes(_text(words[at : at + 1], "node")):
                guard.files.writes_anything()
            return
        if not re.fullmatch(r"--(?:test|no-warnings|max[-_]old[-_]space[-_]size=\d+)", value):
            raise Unclear(f"node has an option that is not known: {value}")
        if value == "--test":
            guard.files.run_project()
    if "--test" not in [word.value for word in words]:
        raise Unclear("node reads a text that is fed at the run")


def _perl(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    at, has_text = 1, False
    while at < len(words):
        value = words[at].value
        if value is None or not value.startswith("-"):
            break
        at += 1
        if value in ("-v", "--version"):
            return
        found = re.fullmatch(r"-([nplwas]|0\d*|i(?:\.\w+)?(?=e|\Z))*([eE]?)(.*)", value, re.DOTALL)
        if not found or (found[3] and not found[2]):
            raise Unclear(f"perl has an option that is not known: {value}")
        if found[2]:
            has_text = True
            if found[3]:
                check_perl(found[3])
            else:
                check_perl(_text(words[at : at + 1], "perl"))
                at += 1
    if has_text:
        for word in words[at:]:
            guard.require_operand(word, "perl")
            if word.value is not None and re.search(r"[|<>]", word.value):
                raise Unclear("perl opens an operand that may be a command")
        if any(re.match(r"-[a-z0]*i", word.value or "") for word in words[1:at]):
            guard.files.edited(words[at:])
    elif at < len(words):
        guard.run_file(words[at], "perl")
    else:
        raise Unclear("perl reads a text that is fed at the run")


def _interpreter(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    for word in words[1:]:
        if word.value in ("--version", "-v", "-version", "--help", "-h"):
            return
        if word.value is not None and word.value.startswith("-"):
            raise Unclear(f"{words[0].value} has an option that is not known: {word.value}")
        guard.run_file(word, "file")
        return
    raise Unclear(f"{words[0].value} reads a text that is fed at the run")


HANDLERS: dict[str, Callable[[Guard, Sequence[Word], Simple], None]] = {
    **dict.fromkeys(INTERPRETERS, _interpreter),
    **dict.fromkeys(("bash", "sh", "dash", "zsh", "ash"), _shell),
    "python": _python,
    **dict.fromkeys(("node", "nodejs"), _node),
    "perl": _perl,
    **tools.HANDLERS,
}
