"""Reads simple commands: assignments, words, redirections and here-documents."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from handrail.policy.guard.programs import DECLARATIONS
from handrail.policy.guard.words import Parts, Word, WordReader, known, unknown

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[(\d+|[A-Za-z_]\w*)\])?\+?=", re.ASCII)
_KEY = re.compile(r"\[(['\"]?)(\d+|[A-Za-z_]\w*)\1\]=", re.ASCII)
_REDIRECT = re.compile(r"(\d*)(&>>|&>|<<<|<<-|<<|<>|<&|>>|>&|>\||<(?!\()|>(?!\())", re.ASCII)
_DELIMITER = re.compile(
    r"[ \t]*(?:'([\w.-]+)'|\"([\w.-]+)\"|\\?([\w.-]+))(?=[ \t\n;&|<>()]|\Z)", re.ASCII
)
NOT_READ = frozenset({
    "select", "coproc", "repeat", "foreach", "end", "always", "noglob", "nocorrect", "-",
})  # fmt: skip
CLOSING = frozenset({"then", "else", "elif", "fi", "do", "done", "esac", "}", "in"})
_PLAIN_PATH = re.compile(r"[\w./+:@,-]+", re.ASCII)
_WRITES = frozenset({"<>", ">", ">>", ">|", "&>", "&>>"})


@dataclass(slots=True)
class Simple:
    """One simple command."""

    words: list[Word]
    assignments: list[tuple[str, Word]] = field(default_factory=list)
    #: The text of a here-document or here-string for it; None: none, or not certain.
    text: str | None = None
    #: The same as a word, where variables stand in it.
    body: Word | None = None
    #: Its stdin comes from other commands, or from a redirection around it.
    fed: bool = False
    #: What is piped into it comes from commands that list what is there.
    listed: bool = False
    #: How often its stdin is redirected.
    inputs: int = 0
    #: Files that it reads and writes by redirections.
    reads: list[Word] = field(default_factory=list)
    writes: list[Word] = field(default_factory=list)
    #: Values of a declaration that are no arrays.
    declared: list[Word] = field(default_factory=list)

    @property
    def name(self) -> str | None:
        return self.words[0].value if self.words else None


@dataclass(slots=True)
class Script:
    """What was read of one script."""

    commands: list[Simple] = field(default_factory=list)
    #: Values that variables are given, anywhere.
    assigned: list[tuple[str, Word]] = field(default_factory=list)
    #: Names of functions; their bodies are among the commands.
    functions: set[str] = field(default_factory=set)
    #: Variables that must hold numbers, because the shell evaluates them.
    numbers: list[str] = field(default_factory=list)


class CommandReader(WordReader):
    """Reads one simple command at a time, and records it."""

    def __init__(self, text: str, found: Script, shell: str, depth: int = 0) -> None:
        super().__init__(text, depth)
        self.found = found
        self.shell = shell
        self.numbers = found.numbers
        self.last_keyword = ""

    def nested(self, text: str) -> CommandReader:
        """A reader of a nested text, which records into the same Script."""
        raise NotImplementedError

    def separators(self) -> None:
        """Skip blanks, comments and line breaks before a command."""
        while True:
            self.blanks()
            if self.peek() != "\n":
                return
            self._line_break()

    def _line_break(self) -> None:
        self.at += 1
        pending, self.pending = self.pending, []
        for delimiter, strip, literal, use in pending:
            use(self._document(delimiter, strip=strip, literal=literal))

    def only_in_bash(self) -> None:
        if self.shell not in ("bash", "zsh"):
            raise self.refuse(f"{self.shell} may read this in another way than bash")

    # Simple commands.

    def simple(self) -> Simple:
        command = Simple([])
        while True:
            self.blanks()
            if self.redirect(command):
                continue
            if self.peek() in ("", "\n", ";", "&", "|", ")"):
                break
            if not command.words and self._assignment(command.assignments):
                continue
            begin = self.at
            if command.words and command.name in DECLARATIONS:
                declared: list[tuple[str, Word]] = []
                if self._assignment(declared, command.declared):
                    command.words.append(known(declared[0][0]))
                    command.assignments += declared
                    continue
            word = self.word()
            if word is None:
                raise self.refuse("a command that is not followed")
            self._check_name(command, word, begin)
            command.words.append(word)
        if not (command.words or command.assignments or command.writes or command.inputs):
            raise self.refuse("a command is expected")
        self.found.commands.append(command)
        return command

    def _check_name(self, command: Simple, word: Word, begin: int) -> None:
        if command.words:
            return
        written = self.text[begin : self.at]
        if "\\\n" in written:
            raise self.refuse("a name is continued on the next line", begin)
        if word.bare and (word.value in CLOSING or word.value in NOT_READ):
            raise self.refuse("a word of the shell in an unusual place", begin)

    def _assignment(self, into: list[tuple[str, Word]], declared: list[Word] | None = None) -> bool:
        found = _ASSIGNMENT.match(self.text, self.at)
        if not found:
            return False
        self.at = found.end()
        if found[2]:
            self.only_in_bash()
        if found[2] and not found[2].isdigit():
            self.found.numbers.append(found[2])
        if self.peek() == "(":
            self.only_in_bash()
            values = self._array()
        else:
            values = [self.word() or known("")]
            if declared is not None:
                declared += values
        for value in values:
            whole = unknown() if found[0].endswith("+=") else value
            self.assign(found[1], whole)
            into.append((found[1], whole))
        return True

    def _array(self) -> list[Word]:
        self.no_pending()
        self.at += 1
        values: list[Word] = []
        while True:
            self.separators()
            if self.peek() == ")":
                self.at += 1
                return values or [known("")]
            if self.peek() == "[":
                values.append(self._keyed())
                continue
            word = self.word()
            if word is None:
                raise self.refuse("an array that is not followed")
            values.append(word)

    def _keyed(self) -> Word:
        """``[key]=value`` in an array; in one with numbers bash evaluates the key."""
        found = _KEY.match(self.text, self.at)
        if not found:
            raise self.refuse("an array with keys")
        if not found[2].isdigit():
            self.found.numbers.append(found[2])
        self.at = found.end()
        return self.word() or known("")

    def no_pending(self) -> None:
        if self.pending:
            raise self.refuse("a here-document begins on the same line")

    def assign(self, name: str, value: Word) -> None:
        self.found.assigned.append((name, value))

    # Redirections and here-documents.

    def _redirects_behind(self, first: int) -> None:
        """Redirections of a compound command, whose commands begin at ``first``."""
        command = Simple([])
        self.blanks()
        while self.redirect(command):
            self.blanks()
        if command.inputs:
            for inner in self.found.commands[first:]:
                inner.fed = True
        if command.writes:
            self.found.commands.append(command)

    def redirect(self, command: Simple) -> bool:
        found = _REDIRECT.match(self.text, self.at)
        if not found:
            return False
        operator = found[2]
        if operator.startswith("&"):
            self.only_in_bash()
        self.at = found.end()
        if operator in ("<<", "<<-"):
            self._document_begins(command, strip=operator == "<<-", stdin=found[1] in ("", "0"))
            return True
        self.blanks()
        target = self.word()
        if target is None:
            raise self.refuse("a redirection without a target", found.start())
        descriptor = bool(re.fullmatch(r"\d+-?|-", target.value or "", re.ASCII))
        # bash expands the word behind ``>&`` a second time if it is no number.
        plain = operator == ">&" and _PLAIN_PATH.fullmatch(target.value or "")
        if operator in ("<&", ">&") and not descriptor and not plain:
            raise self.refuse("a redirection that is not followed", found.start())
        if found[1] == "0" or (not found[1] and operator.startswith("<")):
            command.inputs += 1
            if operator == "<<<":
                command.text, command.body = target.value, target
            elif operator == "<":
                command.reads.append(target)
        if operator in _WRITES or (operator == ">&" and not descriptor):
            command.writes.append(target)
        return True

    def _document_begins(self, command: Simple, *, strip: bool, stdin: bool) -> None:
        found = _DELIMITER.match(self.text, self.at)
        if not found:
            raise self.refuse("a here-document with an unusual end")
        self.at = found.end()
        literal = found[3] is None or "\\" in found[0]

        command.inputs += stdin

        def use(body: Word) -> None:
            if stdin:
                command.text, command.body = body.value, body

        self.pending.append((found[1] or found[2] or found[3], strip, literal, use))

    def _document(self, delimiter: str, *, strip: bool, literal: bool) -> Word:
        lines: list[str] = []
        while True:
            if self.at >= len(self.text):
                raise self.refuse("a here-document has no end")
            stop = self.text.find("\n", self.at)
            end = len(self.text) if stop < 0 else stop
            line = self.text[self.at : end]
            line = line.lstrip("\t") if strip else line
            self.at = end if stop < 0 else stop + 1
            if line == delimiter:
                break
            if line.endswith("\\") and not literal:
                raise self.refuse("a here-document joins lines")
            lines.append(line + "\n")
        body = "".join(lines)
        if literal:
            return known(body)
        reader = self.nested(body)
        parts = Parts()
        while reader.at < len(body):
            reader.quoted_piece(parts, document=True)
        return parts.word()
