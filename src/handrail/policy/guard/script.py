"""Reads a shell script into its simple commands, in source order.

Only constructs of an allow-list are read: lists, pipelines, groups, ``if``, ``for``, ``while``,
``case``, functions, ``[[ ]]``, redirections and here-documents.  The first thing that is anything
else raises ``Unclear``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from handrail.bash_syntax import SCRIPT_LIMIT
from handrail.policy.guard.programs import DECLARATIONS, FILTERS, LISTERS, NUMBER_PRINTERS
from handrail.policy.guard.words import (
    LISTING,
    MADE,
    NAME,
    NUMBER,
    Parts,
    Unclear,
    Word,
    WordReader,
    check_bytes,
    known,
    unknown,
)

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[(\d+|[A-Za-z_]\w*)\])?\+?=", re.ASCII)
_REDIRECT = re.compile(r"(\d*)(&>>|&>|<<<|<<-|<<|<>|<&|>>|>&|>\||<(?!\()|>(?!\())", re.ASCII)
_DELIMITER = re.compile(r"[ \t]*(?:'([\w.-]+)'|\"([\w.-]+)\"|\\?([\w.-]+))(?=[ \t\n;&|<>()]|\Z)", re.ASCII)
_FUNCTION = re.compile(r"([A-Za-z_][\w.:-]*)[ \t]*\(\)", re.ASCII)
_NOT_READ = frozenset({
    "select", "coproc", "repeat", "foreach", "end", "always", "noglob", "nocorrect", "-",
})  # fmt: skip
_CLOSING = frozenset({"then", "else", "elif", "fi", "do", "done", "esac", "}", "in"})
_COMPARES_NUMBERS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})


@dataclass(slots=True)
class Simple:
    """One simple command."""

    words: list[Word]
    assignments: list[tuple[str, Word]] = field(default_factory=list)
    #: The text that a here-document or here-string feeds to it; None: none, or not certain.
    text: str | None = None
    #: What is piped into it comes from commands that list what is there.
    listed: bool = False
    #: Files that it reads and writes by redirections.
    reads: list[Word] = field(default_factory=list)
    writes: list[Word] = field(default_factory=list)

    @property
    def name(self) -> str | None:
        return self.words[0].value if self.words else None


@dataclass(slots=True)
class Script:
    """What was read of one script."""

    commands: list[Simple] = field(default_factory=list)
    #: Values that variables are given, wherever that stands.
    assigned: list[tuple[str, Word]] = field(default_factory=list)
    #: Variables whose values must be numbers, for the shell evaluates them.
    numbers: list[str] = field(default_factory=list)


def read_into(text: str, shell: str, found: Script) -> None:
    """Read a script for a shell of this name; what was read before an ``Unclear`` stays."""
    if len(text) > SCRIPT_LIMIT:
        raise Unclear("it is too long to be read")
    check_bytes(text)
    ScriptReader(text, found, shell).list_until(None)


class ScriptReader(WordReader):
    """Recursive descent; every method leaves ``at`` behind what it read."""

    def __init__(self, text: str, found: Script, shell: str, depth: int = 0) -> None:
        super().__init__(text, depth)
        self.found = found
        self.shell = shell
        self.numbers = found.numbers
        self.last_keyword = ""

    def _nested(self, text: str) -> ScriptReader:
        return ScriptReader(text, self.found, self.shell, self.depth + 1)

    def substitution(self) -> str:
        reader = self._nested(self.text)
        reader.at = self.at
        pipelines = reader.list_until(")")
        if self.pending and "\n" in self.text[self.at : reader.at]:
            raise self.refuse("a line break in a word before the text of a here-document")
        self.at = reader.at
        return _output_of(pipelines)

    def nested_text(self, text: str) -> str:
        return _output_of(self._nested(text).list_until(None))

    # Lists and pipelines.

    def list_until(self, closing: str | None) -> list[list[Simple | None]]:
        """Commands up to a closing word or parenthesis, which is read; None: the end."""
        pipelines: list[list[Simple | None]] = []
        while True:
            self._separators()
            if self.at >= len(self.text):
                if closing is None and not self.pending:
                    return pipelines
                raise self.refuse("it ends too early")
            if closing is not None and self._closes(closing):
                return pipelines
            pipelines.append(self._pipeline())
            self._operator(closing)

    def _separators(self) -> None:
        """Blanks, comments and line breaks before a command."""
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

    def _closes(self, closing: str) -> bool:
        if closing == ")":
            if self.peek() != ")":
                return False
            if self.pending:
                raise self.refuse("a here-document has no text")
            self.at += 1
            return True
        if closing == ";;":
            begin = self.at
            ends = self.peek(2) in (";;", ";&") or self._keyword("esac")
            self.at = begin
            return ends
        return any(self._keyword(word) for word in closing.split("|"))

    def _keyword(self, word: str) -> bool:
        end = self.at + len(word)
        if self.text.startswith(word, self.at) and self.text[end : end + 1] in ("", *" \t\n;&|<>()"):
            self.at = end
            self.last_keyword = word
            return True
        return False

    def _operator(self, closing: str | None) -> None:
        """What may stand behind a pipeline."""
        self.blanks()
        two = self.peek(2)
        if two in ("&&", "||"):
            self.at += 2
            self._separators()
            if self.at >= len(self.text):
                raise self.refuse("it ends too early")
        elif two in (";;", ";&"):
            if closing != ";;":
                raise self.refuse("an operator in the wrong place")
        elif self.peek() in (";", "&"):
            self.at += 1
        elif self.peek() not in ("", "\n", ")"):
            raise self.refuse("an operator is expected")
        elif self.peek() == ")" and closing != ")":
            raise self.refuse("a parenthesis in the wrong place")

    def _pipeline(self) -> list[Simple | None]:
        while self._keyword("!") or self._keyword("time"):
            self.blanks()
            if self.last_keyword == "time" and self._keyword("-p"):
                self.blanks()
        elements = [self._command()]
        while True:
            self.blanks()
            if self.peek() != "|" or self.peek(2) == "||":
                break
            self.at += 2 if self.peek(2) == "|&" else 1
            self._separators()
            elements.append(self._command())
            last = elements[-1]
            if last is not None:
                last.listed = _lists(elements[:-1])
        return elements

    def _command(self) -> Simple | None:
        """One command; None for a compound one."""
        self.depth += 1
        if self.depth > 60:
            raise Unclear("it is nested too deeply")
        try:
            if self._compound():
                self._redirects_behind()
                return None
            return self._simple()
        finally:
            self.depth -= 1

    # Compound commands.

    def _compound(self) -> bool:
        if self.peek(2) == "((":
            self._only_in_bash()
            self.at += 2
            self.arithmetic_text()
        elif self.peek() == "(":
            self.at += 1
            self.list_until(")")
        elif self._keyword("{"):
            self.list_until("}")
        elif self._keyword("[["):
            self._only_in_bash()
            self._test()
        elif self._keyword("if"):
            self._if()
        elif self._keyword("while") or self._keyword("until"):
            self.list_until("do")
            self.list_until("done")
        elif self._keyword("for"):
            self._for()
        elif self._keyword("case"):
            self._case()
        elif self._keyword("function"):
            self._only_in_bash()
            self.blanks()
            name = NAME.match(self.text, self.at)
            if not name:
                raise self.refuse("a function has no plain name")
            self.at = name.end()
            self.blanks()
            if self.peek(2) == "()":
                self.at += 2
            self._body()
        elif name := _FUNCTION.match(self.text, self.at):
            if name[1] in _CLOSING or name[1] in _NOT_READ:
                raise self.refuse("a function has the name of a shell word")
            self.at = name.end()
            self._body()
        else:
            return False
        return True

    def _only_in_bash(self) -> None:
        if self.shell not in ("bash", "zsh"):
            raise self.refuse(f"{self.shell} may read this in another way than bash")

    def _body(self) -> None:
        self._separators()
        if self._keyword("{"):
            self.list_until("}")
        elif self.peek() == "(" and self.peek(2) != "((":
            self.at += 1
            self.list_until(")")
        else:
            raise self.refuse("a function has an unusual body")

    def _if(self) -> None:
        self.list_until("then")
        self.list_until("fi|else|elif")
        while self.last_keyword == "elif":
            self.list_until("then")
            self.list_until("fi|else|elif")
        if self.last_keyword == "else":
            self.list_until("fi")

    def _for(self) -> None:
        self.blanks()
        if self.peek(2) == "((":
            self._only_in_bash()
            self.at += 2
            self.arithmetic_text()
        else:
            name = NAME.match(self.text, self.at)
            if not name:
                raise self.refuse("a loop has no plain variable")
            self.at = name.end()
            self._loop_values(name[0])
        self.blanks()
        if self.peek() == ";":
            self.at += 1
        self._separators()
        if not self._keyword("do"):
            raise self.refuse("a loop without do")
        self.list_until("done")

    def _loop_values(self, name: str) -> None:
        self._separators()
        if not self._keyword("in"):
            self._assign(name, unknown())
            return
        while True:
            self.blanks()
            word = self.word()
            if word is None:
                break
            self._assign(name, word)
        if self.peek() not in (";", "\n"):
            raise self.refuse("an operator in the words of a loop")

    def _case(self) -> None:
        self.blanks()
        if self.word() is None:
            raise self.refuse("case without a word")
        self._separators()
        if not self._keyword("in"):
            raise self.refuse("case without in")
        while True:
            self._separators()
            if self._keyword("esac"):
                return
            if self.peek() == "(":
                self.at += 1
            self._patterns()
            self.list_until(";;")
            for operator in (";;&", ";;", ";&"):
                if self.text.startswith(operator, self.at):
                    self.at += len(operator)
                    break

    def _patterns(self) -> None:
        while True:
            self.blanks()
            if self.word() is None:
                raise self.refuse("a pattern is expected")
            self.blanks()
            if self.peek() == ")":
                self.at += 1
                return
            if self.peek() != "|":
                raise self.refuse("a pattern is not closed")
            self.at += 1

    def _test(self) -> None:
        """``[[ .. ]]``: the shell evaluates the operands of ``-v`` and of number comparisons."""
        before: list[Word] = []
        self._no_pending()
        while True:
            self._separators()
            if self._keyword("]]"):
                return
            if self.peek(2) in ("&&", "||"):
                self.at += 2
                continue
            if self.peek() in ("(", ")", "<", ">"):
                self.at += 1
                continue
            pattern = bool(before) and before[-1].value == "=~"
            word = self.word(pattern=pattern)
            if word is None:
                raise self.refuse("a test that is not followed")
            previous = before[-1] if before else None
            if previous is not None and previous.value in ("-v", "-R"):
                if word.value is None or not NAME.fullmatch(word.value):
                    raise self.refuse("a test evaluates a text")
            if word.value in _COMPARES_NUMBERS and previous is not None:
                self._number_operand(previous)
            if previous is not None and previous.value in _COMPARES_NUMBERS:
                self._number_operand(word)
            before.append(word)

    def _number_operand(self, word: Word) -> None:
        if word.value is not None:
            self.arithmetic(word.value)
            return
        if word.literal:
            raise Unclear("a comparison evaluates a text")
        self.found.numbers.extend(word.sources)

    # Simple commands.

    def _simple(self) -> Simple:
        command = Simple([])
        while True:
            self.blanks()
            if self._redirect(command):
                continue
            if self.peek() in ("", "\n", ";", "&", "|", ")"):
                break
            if not command.words and self._assignment(command.assignments):
                continue
            begin = self.at
            if command.words and command.name in DECLARATIONS:
                declared: list[tuple[str, Word]] = []
                if self._assignment(declared):
                    command.words.append(known(declared[0][0]))
                    command.assignments += declared
                    continue
            word = self.word()
            if word is None:
                raise self.refuse("a command that is not followed")
            self._check_name(command, word, begin)
            command.words.append(word)
        if not (command.words or command.assignments or command.writes or command.reads):
            raise self.refuse("a command is expected")
        self.found.commands.append(command)
        return command

    def _check_name(self, command: Simple, word: Word, begin: int) -> None:
        if command.words:
            return
        written = self.text[begin : self.at]
        if "\\\n" in written:
            raise self.refuse("a name is continued on the next line", begin)
        if word.bare and (word.value in _CLOSING or word.value in _NOT_READ):
            raise self.refuse("a word of the shell in an unusual place", begin)

    def _assignment(self, into: list[tuple[str, Word]]) -> bool:
        found = _ASSIGNMENT.match(self.text, self.at)
        if not found:
            return False
        self.at = found.end()
        if found[2] and not found[2].isdigit():
            self.found.numbers.append(found[2])
        if self.peek() == "(":
            self._only_in_bash()
            values = self._array()
        else:
            values = [self.word() or known("")]
        for value in values:
            whole = unknown() if found[0].endswith("+=") else value
            self._assign(found[1], whole)
            into.append((found[1], whole))
        return True

    def _array(self) -> list[Word]:
        self._no_pending()
        self.at += 1
        values: list[Word] = []
        while True:
            self._separators()
            if self.peek() == ")":
                self.at += 1
                return values or [known("")]
            if self.peek() == "[":
                raise self.refuse("an array with keys")
            word = self.word()
            if word is None:
                raise self.refuse("an array that is not followed")
            values.append(word)

    def _no_pending(self) -> None:
        if self.pending:
            raise self.refuse("a here-document begins on the same line")

    def _assign(self, name: str, value: Word) -> None:
        self.found.assigned.append((name, value))

    # Redirections and here-documents.

    def _redirects_behind(self) -> None:
        command = Simple([])
        self.blanks()
        while self._redirect(command):
            self.blanks()
        if command.writes or command.reads:
            self.found.commands.append(command)

    def _redirect(self, command: Simple) -> bool:
        found = _REDIRECT.match(self.text, self.at)
        if not found:
            return False
        operator = found[2]
        if operator.startswith("&"):
            self._only_in_bash()
        self.at = found.end()
        if operator in ("<<", "<<-"):
            self._document_begins(command, strip=operator == "<<-")
            return True
        self.blanks()
        target = self.word()
        if target is None:
            raise self.refuse("a redirection without a target", found.start())
        to_stdin = found[1] in ("", "0")
        if operator == "<<<":
            command.text = target.value if to_stdin else command.text
        elif operator in ("<", "<>"):
            command.reads.append(target)
        elif operator in (">&", "<&") and re.fullmatch(r"\d+-?|-", target.value or ""):
            pass
        elif operator == "<&":
            raise self.refuse("a redirection that is not followed", found.start())
        if operator in ("<>", ">", ">>", ">|", "&>", "&>>") or (
            operator == ">&" and not re.fullmatch(r"\d+-?|-", target.value or "")
        ):
            command.writes.append(target)
        return True

    def _document_begins(self, command: Simple, *, strip: bool) -> None:
        found = _DELIMITER.match(self.text, self.at)
        if not found:
            raise self.refuse("a here-document with an unusual end")
        self.at = found.end()
        literal = found[3] is None or "\\" in found[0]

        def use(body: Word) -> None:
            command.text = body.value

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
        reader = self._nested(body)
        parts = Parts()
        while reader.at < len(body):
            reader.quoted_piece(parts, document=True)
        return parts.word()


def _lists(elements: list[Simple | None]) -> bool:
    """True if this part of a pipeline prints what is there, and nothing of its own making."""
    first, *others = elements
    if first is None or first.name not in LISTERS or not LISTERS[first.name](first.words):
        return False
    return all(one is not None and one.name in FILTERS for one in others)


def _output_of(pipelines: list[list[Simple | None]]) -> str:
    if len(pipelines) != 1:
        return MADE
    last = pipelines[0][-1]
    if last is not None and last.name in NUMBER_PRINTERS and NUMBER_PRINTERS[last.name](last.words):
        return NUMBER
    return LISTING if _lists(pipelines[0]) else MADE
