"""Read a shell script into its simple commands, in source order.

Only constructs of an allow-list are read: lists, pipelines, groups, ``if``, ``for``, ``while``,
``case``, functions, ``[[ ]]``, redirections and here-documents.  The first thing that is anything
else raises ``Unclear``.
"""

from __future__ import annotations

import re

from handrail.bash_syntax import SCRIPT_LIMIT
from handrail.policy.guard import programs
from handrail.policy.guard.commands import CLOSING, NOT_READ, CommandReader, Script, Simple
from handrail.policy.guard.values import variables
from handrail.policy.guard.words import (
    ELEMENTS,
    LISTING,
    MADE,
    NAME,
    NUMBER,
    PATH_OF,
    PROGRAM,
    Unclear,
    Word,
    check_bytes,
    unknown,
)

_FUNCTION = re.compile(r"([A-Za-z_][\w.:-]*)[ \t]*\(\)", re.ASCII)
_COMPARES_NUMBERS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})


def read_into(text: str, shell: str, found: Script) -> None:
    """Read a script for a shell of this name; what was read before an ``Unclear`` stays."""
    if len(text) > SCRIPT_LIMIT:
        raise Unclear("it is too long to be read")
    check_bytes(text)
    ScriptReader(text, found, shell).list_until(None)


class ScriptReader(CommandReader):
    """Recursive descent; every method leaves ``at`` behind what it read."""

    def nested(self, text: str) -> ScriptReader:
        return ScriptReader(text, self.found, self.shell, self.depth + 1)

    def substitution(self) -> str:
        reader = self.nested(self.text)
        reader.at = self.at
        pipelines = reader.list_until(")")
        if self.pending and "\n" in self.text[self.at : reader.at]:
            raise self.refuse("a line break in a word before the text of a here-document")
        self.at = reader.at
        return _output_of(pipelines)

    def nested_text(self, text: str) -> str:
        return _output_of(self.nested(text).list_until(None))

    # Lists and pipelines.

    def list_until(self, closing: str | None) -> list[list[Simple | None]]:
        """Commands up to a closing word or parenthesis, which is consumed; None: the end."""
        pipelines: list[list[Simple | None]] = []
        while True:
            self.separators()
            if self.at >= len(self.text):
                if closing is None and not self.pending:
                    return pipelines
                raise self.refuse("it ends too early")
            if closing is not None and self._closes(closing):
                return pipelines
            pipelines.append(self._pipeline())
            self._operator(closing)

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
        if self.text.startswith(word, self.at) and self.text[end : end + 1] in (
            "",
            *" \t\n;&|<>()",
        ):
            self.at = end
            self.last_keyword = word
            return True
        return False

    def _operator(self, closing: str | None) -> None:
        """Read what may follow a pipeline."""
        self.blanks()
        two = self.peek(2)
        if two in ("&&", "||"):
            self.at += 2
            self.separators()
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
            first = len(self.found.commands)
            self.blanks()
            if self.peek() != "|" or self.peek(2) == "||":
                break
            self.at += 2 if self.peek(2) == "|&" else 1
            self.separators()
            before = list(elements)
            elements.append(self._command())
            self._feed(elements[-1], self.found.commands[first:], listed=_lists(before))
        return elements

    @staticmethod
    def _feed(last: Simple | None, inside: list[Simple], *, listed: bool) -> None:
        """Note what a part of a pipeline gets; of a compound one, its ``read`` gets it."""
        if last is not None:
            last.fed, last.listed = True, listed
            return
        own = any(one.name == "exec" and one.inputs for one in inside)
        for one in inside:
            if not one.fed and not one.inputs:
                one.listed = listed and one.name == "read" and not own
            one.fed = True

    def _command(self) -> Simple | None:
        """One command; None for a compound one."""
        self.depth += 1
        if self.depth > 60:
            raise Unclear("it is nested too deeply")
        first = len(self.found.commands)
        try:
            if self._compound():
                self._redirects_behind(first)
                return None
            return self.simple()
        finally:
            self.depth -= 1

    # Compound commands.

    def _compound(self) -> bool:
        if self.peek(2) == "((":
            self.only_in_bash()
            self.at += 2
            self.arithmetic_text()
        elif self.peek() == "(":
            self.at += 1
            self.list_until(")")
        elif self._keyword("{"):
            self.list_until("}")
        elif self._keyword("[["):
            self.only_in_bash()
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
            self.only_in_bash()
            self.blanks()
            name = NAME.match(self.text, self.at)
            if not name:
                raise self.refuse("a function has no plain name")
            self._check_function(name[0])
            self.at = name.end()
            self.blanks()
            if self.peek(2) == "()":
                self.at += 2
            self._body()
        elif name := _FUNCTION.match(self.text, self.at):
            self._check_function(name[1])
            self.at = name.end()
            self._body()
        else:
            return False
        return True

    def _check_function(self, name: str) -> None:
        """Refuse a function with the name of a command that the guard relies on."""
        if name in CLOSING or name in NOT_READ or name in programs.RELIED_ON:
            raise self.refuse("a function takes the name of a known command")
        self.found.functions.add(name)

    def _body(self) -> None:
        self.separators()
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
            self.only_in_bash()
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
        self.separators()
        if not self._keyword("do"):
            raise self.refuse("a loop without do")
        self.list_until("done")

    def _loop_values(self, name: str) -> None:
        self.separators()
        if not self._keyword("in"):
            self.assign(name, unknown())
            return
        while True:
            self.blanks()
            word = self.word()
            if word is None:
                break
            self.assign(name, word)
        if self.peek() not in (";", "\n"):
            raise self.refuse("an operator in the words of a loop")

    def _case(self) -> None:
        self.blanks()
        if self.word() is None:
            raise self.refuse("case without a word")
        self.separators()
        if not self._keyword("in"):
            raise self.refuse("case without in")
        while True:
            self.separators()
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
        self.no_pending()
        while True:
            self.separators()
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
            by_name = previous is not None and previous.value in ("-v", "-R")
            if by_name and not NAME.fullmatch(word.value or "["):
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


def _lists(elements: list[Simple | None]) -> bool:
    """True if this part of a pipeline prints existing things, and no text of the script."""
    first, *others = elements
    if (
        first is None
        or first.name not in programs.LISTERS
        or not programs.LISTERS[first.name](first.words)
    ):
        return False
    return all(one is not None and programs.filters(one.words) for one in others)


def _output_of(pipelines: list[list[Simple | None]]) -> str:
    if len(pipelines) != 1:
        return MADE
    last = pipelines[0][-1]
    if (
        last is not None
        and last.name in programs.NUMBER_PRINTERS
        and programs.NUMBER_PRINTERS[last.name](last.words)
    ):
        return NUMBER
    if len(pipelines[0]) == 1 and last is not None:
        if last.name in programs.PATH_PRINTERS:
            return _path_of(last.words)
        if last.words and programs.names_a_program(last.words):
            return PROGRAM
    return LISTING if _lists(pipelines[0]) else MADE


def _path_of(words: list[Word]) -> str:
    """What a program prints that makes a path of another."""
    sources = [source for word in words[1:] for source in word.sources]
    if any(re.search(r"\s", word.literal) for word in words[1:]) or MADE in sources:
        return MADE
    known = [source for source in sources if source not in (LISTING, NUMBER)]
    if any(
        source.startswith("#") and not source.startswith((ELEMENTS, PATH_OF)) for source in known
    ):
        return MADE
    names = {name for source in known for name in variables(source)}
    return PATH_OF + " ".join(sorted(names)) if names else PROGRAM
