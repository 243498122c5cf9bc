"""Read an argv with certainty: every command that it starts, or the part that stays unclear."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from handrail.policy.guard import programs
from handrail.policy.guard.builtins import BUILTINS
from handrail.policy.guard.commands import Script, Simple
from handrail.policy.guard.files import KNOWN, Files
from handrail.policy.guard.launchers import HANDLERS, launch
from handrail.policy.guard.script import read_into
from handrail.policy.guard.values import Values, variables
from handrail.policy.guard.words import MADE, Unclear, Word, WordReader, known
from handrail.policy.programs import ABBREVIATED_VERBS, SAME_VERBS
from handrail.policy.rules import Words

#: Limit of commands read in one argv.
COMMAND_LIMIT = 3000
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_./+:@,\[-]+")
#: Base names of versioned programs: ``python3.12``, ``gcc-13``.
_VERSION = re.compile(r"(?<=[a-z+])-?\d[\d.]*$")
#: Further parts of names that say which build of a program it is: ``x86_64-linux-gnu-gcc-12``,
#: ``perl5.36-x86_64-linux-gnu``, ``vim.basic``.
_BUILD = re.compile(
    r"^\w+-(?:\w+-)?linux-(?:gnu|musl)\w*-|-\w+-linux-(?:gnu|musl)\w*$|^c[89]9-(?=gcc)"
    r"|(?:\.|-)(?:basic|tiny|nox|huge|gtk\d?|athena|static|real|distrib|openbsd|traditional)$"
)
_WITH_VERBS = frozenset(name for name, _ in (*programs.VERB_LAUNCHERS, *programs.OPAQUE_VERBS))
#: Limit of nested launchers and shells.
_NESTING_LIMIT = 24


@dataclass(frozen=True, slots=True)
class Reading:
    """The commands an argv certainly starts, and what is unclear; None: nothing is."""

    commands: tuple[Words, ...]
    unclear: str | None
    #: Names of functions, whose bodies are among the commands.
    functions: frozenset[str] = frozenset()


def read(argv: Sequence[str]) -> Reading:
    """Read an argv; nothing in it is run."""
    guard = Guard()
    unclear: str | None = None
    try:
        guard.run([known(word) for word in argv], Simple([]))
        guard.finish()
    except Unclear as e:
        unclear = str(e)
    except RecursionError:
        unclear = "it is nested too deeply"
    return Reading(tuple(guard.commands), unclear, frozenset(guard.functions))


class Guard:
    """What was read so far; every method raises ``Unclear`` at what it cannot prove."""

    def __init__(self) -> None:
        self.commands: dict[Words, None] = {}
        self.functions: set[str] = set()
        self.values = Values()
        self.files = Files(self)
        self.shell = "bash"
        self._numbers: list[str] = []
        self._operands: list[tuple[Word, str]] = []
        self._without_index: list[tuple[Word, str]] = []
        self._outside: list[Word] = []
        self._flags: list[tuple[Word, str]] = []
        self._later: list[tuple[Word, str, Callable[[str], None]]] = []
        self._nesting = 0

    def script(self, text: str, shell: str) -> None:
        """Read the script of a shell."""
        before, self.shell = self.shell, shell
        self._nest(+1)
        found = Script()
        try:
            read_into(text, shell, found)
        finally:
            for name, value in found.assigned:
                self.values.assigned[name].append(value)
            self._numbers += found.numbers
            self.functions |= found.functions
            self._note_all(found)
        for name, value in found.assigned:
            self._check_variable(name, value)
        for command in found.commands:
            self._simple(command)
        self._nest(-1)
        self.shell = before

    def _note_all(self, found: Script) -> None:
        for command in found.commands:
            if command.words:
                self.note(command.words)

    def _nest(self, change: int) -> None:
        self._nesting += change
        if self._nesting > _NESTING_LIMIT:
            raise Unclear("commands are nested too deeply")

    def _simple(self, command: Simple) -> None:
        self.files.redirections(command)
        if command.words:
            self.run(command.words, command)

    def _check_variable(self, name: str, value: Word) -> None:
        if programs.FLAG_VARIABLES.fullmatch(name):
            self._flags.append((value, name))
        if not programs.LIVE_VARIABLES.fullmatch(name) or programs.QUIET_VARIABLES.fullmatch(name):
            return
        if value.value not in programs.QUIET_VALUES:
            raise Unclear(f"the variable {name} says what programs run or load")

    def assign(self, name: str, value: Word) -> None:
        """Record a value that a command gives a variable."""
        self._check_variable(name, value)
        self.values.assigned[name].append(value)

    def environment(self, word: Word) -> None:
        """Record ``NAME=VALUE`` in front of a command of ``env``."""
        name, _, value = (word.value or "").partition("=")
        self.assign(name, known(value))

    def run(self, words: Sequence[Word], command: Simple) -> None:
        """Read one command by its words."""
        if not words:
            raise Unclear("a command has no certain name")
        words = [*words]
        words[0] = self._certain_name(words[0])
        name = words[0].value or ""
        self.note(words)
        base = posixpath.basename(name)
        self._nest(+1)
        self.files.run_program(name)
        self._dispatch(base, "/" in name, words, command)
        self.files.arguments(base if base in KNOWN else _general(base), words, command)
        self._nest(-1)

    def note(self, words: Sequence[Word]) -> None:
        """Record a command for the rules."""
        self.commands[tuple(word.value for word in words)] = None
        if len(self.commands) > COMMAND_LIMIT:
            raise Unclear("it has too many commands")

    def _certain_name(self, word: Word) -> Word:
        """The name of a command; below the home directory only its end has to be certain."""
        if word.value is None:
            place, slash, base = word.literal.rpartition("/")
            home = word.sources in (("HOME",), ("PWD",), ("VIRTUAL_ENV",))
            at_start = word.prefix in ("", "~")
            split = not word.one and word.sources != ("HOME",)
            if not home or not at_start or not slash or not base or split:
                raise Unclear("the name of a command is known only at the run")
            self._outside.append(word)
            word = known(f"./{place.lstrip('~/')}/{base}")
        if not word.value or not _PLAIN_NAME.fullmatch(word.value):
            raise Unclear(f"the name of a command is unusual: {word.value!r}")
        return word

    def _dispatch(self, base: str, by_path: bool, words: Sequence[Word], command: Simple) -> None:
        general = _general(base)
        if base in ("npm", "pnpm") and any(word.value == "env" for word in words[1:]):
            raise Unclear(f"{base} may run a command by its script `env`")
        at = _verb(base, words)
        verb = words[at].value if at < len(words) else None
        if len(words) == 2 and verb in ("--version", "--help") and not by_path:
            return
        verbs = ABBREVIATED_VERBS.get(base, frozenset())
        if verb and verb not in verbs and (base, verb) not in SAME_VERBS:
            for whole in sorted(one for one in verbs if one.startswith(verb)):
                raise Unclear(f"{base} {verb} may be short for {whole}")
        if (
            base in programs.OPAQUE
            or general in programs.OPAQUE
            or (base in ("", ".", "..") and by_path)
        ):
            raise Unclear(f"what {base} runs is not read")
        if base in BUILTINS and (not by_path or base in ("test", "[", "printf")):
            BUILTINS[base](self, words, command)
        elif general in HANDLERS:
            HANDLERS[general](self, words, command)
        elif base in programs.LAUNCHERS:
            launch(self, programs.LAUNCHERS[base], words, 1, command)
        elif verb is not None and (base, verb) in programs.VERB_LAUNCHERS:
            launch(self, programs.VERB_LAUNCHERS[base, verb], words, at + 1, command)
        elif verb is None and at < len(words) and base in _WITH_VERBS:
            raise Unclear(f"the verb of {base} is known only at the run")
        elif (base, verb) in programs.OPAQUE_VERBS:
            raise Unclear(f"what {base} {verb} runs is not read")
        elif general in programs.RUNNING_OPTIONS:
            self.check_options(general, words)
        if base.startswith(("ld-linux", "ld-musl", "ld.so")):
            raise Unclear(f"what {base} runs is not read")
        if general in programs.PROJECT_RUNNERS:
            self.files.run_project()

    def check_options(self, base: str, words: Sequence[Word]) -> None:
        letters, long = programs.RUNNING_OPTIONS[base]
        for at, word in enumerate(words[1:], 1):
            value = word.value
            if value is None:
                if base == "tar" and at == 1:
                    raise Unclear("tar has words that only the run can tell")
                self.require_operand(word, base)
            elif value == "--":
                return
            elif base in programs.COMPILERS and value.startswith("@"):
                raise Unclear(f"{base} reads options from a file")
            elif base in ("less", "more", "man", "pager") and value.startswith("+"):
                raise Unclear(f"{base} {value} may run something")
            elif (value.startswith("-") and len(value) > 1) or (base == "tar" and at == 1):
                option = value.partition("=")[0]
                short = not value.startswith("--") and any(letter in option for letter in letters)
                if short or any(
                    (one.startswith(option) and len(option) > 2) or option.startswith(one)
                    for one in long
                ):
                    raise Unclear(f"{base} {option} may run something")

    def check_flags(self, word: Word, name: str, seen: frozenset[str] = frozenset()) -> None:
        """Refuse options of compilers in a variable that run something."""
        if programs.RUNNING_FLAGS.search(word.literal) or MADE in word.sources:
            raise Unclear(f"the variable {name} may say what compilers run")
        for source in {name for one in word.sources for name in variables(one)} - seen:
            for value in self.values.assigned.get(source, ()):
                self.check_flags(value, name, seen | {source})

    # What is checked at the end, when all values are known.

    def require_operand(self, word: Word, program: str) -> None:
        if word.value is None:
            self._operands.append((word, program))

    def require_text(self, word: Word, program: str, check: Callable[[str], None]) -> None:
        """Check a program text; at the end if it has values, which are known only then."""
        if word.value is not None:
            check(word.value)
        else:
            self._later.append((word, program, check))

    def require_flags(self, word: Word, name: str) -> None:
        """Check at the end that a variable has no options of compilers that run something."""
        self._flags.append((word, name))

    def require_number(self, source: str) -> None:
        self._numbers.append(source)

    @staticmethod
    def nothing() -> Simple:
        """A command without redirections."""
        return Simple([])

    def require_no_index(self, words: Sequence[Word], program: str) -> None:
        self._without_index += [(word, program) for word in words]

    def arithmetic(self, text: str) -> None:
        reader = WordReader(text)
        reader.arithmetic(text)
        self._numbers += reader.numbers

    def run_file(self, word: Word, language: str) -> None:
        self.files.run_file(word, language)

    def _read_texts(self) -> None:
        """Read the program texts whose values had to be known first."""
        self.files.read_texts()
        while self._later:
            word, program, check = self._later.pop(0)
            texts = self.values.renderings(word)
            if texts is None:
                raise Unclear(f"{program} is given a text that only the run can tell")
            for text in texts:
                check(text)
            self.files.read_texts()

    def finish(self) -> None:
        """Check what depends on all values and files."""
        self._read_texts()
        while self.files.read_loaded():
            self._read_texts()
        self.files.finish()
        for word, name in self._flags:
            self.check_flags(word, name)
        for name in self._numbers:
            if not self.values.is_number(name):
                raise Unclear(f"arithmetic evaluates a value that is no certain number: {name}")
        for word, program in self._operands:
            if not self.values.is_operand(word):
                raise Unclear(f"{program} is given words that may be options which run something")
        for word, program in self._without_index:
            if not self.values.has_no_index(word):
                raise Unclear(f"{program} is given a text that the shell may evaluate")
        for word in self._outside:
            if not self.values.is_outside(word):
                raise Unclear("the name of a command is known only at the run")


def _general(base: str) -> str:
    """A program's name without version and build."""
    return _VERSION.sub("", _BUILD.sub("", base))


def _verb(base: str, words: Sequence[Word]) -> int:
    """Where the verb stands: behind options, some of which have a word of their own as a value."""
    at = 1
    while base in _WITH_VERBS and at < len(words):
        value = words[at].value or ""
        before = words[at - 1].value or ""
        following = (words[at + 1].value or "") if at + 1 < len(words) else ""
        if not value.startswith("-"):
            has_value = before.startswith("-") and "=" not in before
            behind = following.startswith("-") or _is_verb(base, following)
            if _is_verb(base, value) or not has_value or not behind:
                break
        at += 1
    return at


def _is_verb(base: str, word: str) -> bool:
    return (base, word) in programs.VERB_LAUNCHERS or (base, word) in programs.OPAQUE_VERBS
