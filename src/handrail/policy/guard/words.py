"""Read the words of a shell script: quotes, expansions, patterns.

Reads only what bash, dash and zsh read alike; the first thing that is anything else raises
``Unclear``.  A word keeps what is certain of it: its value, or how it begins and where the rest
comes from.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

#: Nesting of substitutions and compound commands; deeper scripts are not read.
DEPTH_LIMIT = 40
#: Sources of an unknown part, besides variables, which stand for themselves: a list of existing
#: things (files, mostly), a number, or a text that the script makes.
LISTING, NUMBER, MADE = "#listing", "#number", "#made"
#: The path of a program that the script names.
PROGRAM = "#program"
#: In front of a variable of whose value only a part is taken.
PART_OF = "#part of "
#: In front of an array of which elements are taken.
ELEMENTS = "#elements of "
#: In front of variables of whose values a path is made.
PATH_OF = "#path of "
#: Stands for an unknown part in the template of a word; no script has it.
GAP = "\0"
#: Variables that the shell sets to texts of the script.
_SET_BY_SHELL = frozenset({
    "_", "BASH_REMATCH", "BASH_COMMAND", "BASH_EXECUTION_STRING", "BASH_ARGV", "FUNCNAME", "argv",
    "MATCH", "match", "ARGC", "BASH_ARGV0", "COMP_LINE", "COMP_WORDS",
})  # fmt: skip

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BLANK = " \t"
_ENDS = frozenset(" \t\n;&|<>()")
_LITERAL = re.compile(r"[^\s;&|<>()'\"\\$`*?\[\]{}~]+", re.ASCII)
_QUOTED = re.compile(r'[^"\\$`]+')
_ANSI = re.compile(r"\$'((?:[^'\\]|\\[^'])*)'")
_BRACES = re.compile(
    r"\$\{(?:(?P<length>#)(?:[A-Za-z_]\w*|[@*]|\d+)(?:\[[@*]\])?"
    r"|(?P<keys>!)[A-Za-z_]\w*\[[@*]\]"
    r"|(?P<name>[A-Za-z_]\w*|[@*#?$!-]|\d+)"
    r"(?P<index>\[(?:[@*]|-?\d+|\$?[A-Za-z_]\w*|\$\{[A-Za-z_]\w*\})\])?"
    r"(?P<op>:?[-+?]|%%?|##?|//?|\^\^?|,,?|:(?=\d))?"
    r"(?P<rest>(?:[^'\"`\\${}]|\$'(?:[^'\\\"`${}]|\\[ntr])*')*))\}",
    re.ASCII,
)
_ARITHMETIC = re.compile(r"[\w\s+\-*/%<>=!&|^~?:,;()$]*", re.ASCII)
_ARITHMETIC_VALUE = re.compile(r"\$(?:\{(\w+)\}|(\w+|[#?]))", re.ASCII)
_NUMERAL = re.compile(r"\b\d\w*", re.ASCII)
#: Bytes that shells and terminals interpret differently.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Unclear(Exception):
    """A part of the script that is not read with certainty; the text says which."""


@dataclass(slots=True)
class Word:
    """One word: its value if that is certain, else its beginning and its sources."""

    value: str | None
    prefix: str = ""
    #: Its expansions never split it into several words.
    one: bool = True
    sources: tuple[str, ...] = ()
    #: Written without quotes, escapes and expansions.
    bare: bool = False
    #: All literal text in it, and the part of that behind the last unknown part.
    literal: str = ""
    suffix: str = ""
    #: The literal text with a gap for each source.
    template: str = ""


def known(value: str) -> Word:
    return Word(value, value, literal=value)


def unknown(source: str = MADE) -> Word:
    return Word(None, "", False, (source,))


def check_bytes(script: str) -> None:
    """Refuse control characters other than line feeds and tabs."""
    found = _CONTROL.search(script)
    if found:
        raise Unclear(f"it has the control character {found[0]!r}")


@dataclass(slots=True)
class Parts:
    """A word while it is read."""

    text: list[str] = field(default_factory=list)
    prefix: str | None = None
    one: bool = True
    sources: list[str] = field(default_factory=list)
    bare: bool = True
    #: Where in the text the unknown parts are.
    marks: list[int] = field(default_factory=list)

    def unknown(self, source: str, *, one: bool) -> None:
        if self.prefix is None:
            self.prefix = "".join(self.text)
        self.one &= one
        self.sources.append(source)
        self.bare = False
        self.marks.append(len(self.text))

    def word(self) -> Word:
        text = "".join(self.text)
        if self.prefix is None:
            return Word(text, text, True, (), self.bare, text)
        between = zip([0, *self.marks], [*self.marks, len(self.text)], strict=True)
        pieces = ["".join(self.text[begin:end]) for begin, end in between]
        sources = tuple(self.sources)
        return Word(None, self.prefix, self.one, sources, False, text, pieces[-1], GAP.join(pieces))


class WordReader:
    """The text, the position in it, and the words from there on."""

    def __init__(self, text: str, depth: int = 0) -> None:
        if depth > DEPTH_LIMIT:
            raise Unclear("it is nested too deeply")
        self.text = text
        self.at = 0
        self.depth = depth
        #: Variables that arithmetic evaluates: their values must be numbers.
        self.numbers: list[str] = []
        #: Here-documents whose text has not begun yet.
        self.pending: list[tuple[str, bool, bool, Callable[[Word], None]]] = []

    def substitution(self) -> str:
        """Read a nested script and its closing parenthesis; return the source of its output."""
        raise NotImplementedError

    def nested_text(self, text: str) -> str:
        """Read a whole nested script in backquotes."""
        raise NotImplementedError

    def peek(self, length: int = 1) -> str:
        return self.text[self.at : self.at + length]

    def refuse(self, why: str, start: int | None = None) -> Unclear:
        begin = self.at if start is None else start
        shown = self.text[begin : begin + 30].splitlines()
        return Unclear(f"{why}: `{shown[0] if shown else ''}`")

    def blanks(self) -> bool:
        """Skip blanks, continued lines and a comment; True if there were any."""
        begin = self.at
        text, end = self.text, len(self.text)
        while self.at < end:
            if text[self.at] in _BLANK:
                self.at += 1
            elif text.startswith("\\\n", self.at):
                self.at += 2
                if self.peek() == "#":
                    raise self.refuse("a continued line begins with #")
            else:
                break
        if self.peek() == "#" and (self.at == 0 or text[self.at - 1] in " \t\n;&|()"):
            stop = text.find("\n", self.at)
            self.at = end if stop < 0 else stop
        return self.at > begin

    def word(self, *, pattern: bool = False) -> Word | None:
        """The word that begins here; None if none does.  ``pattern``: a regular expression."""
        parts = Parts()
        begin = self.at
        groups = 0
        if self.peek() == "#":
            raise self.refuse("a word begins with #")
        while self.at < len(self.text):
            char = self.text[self.at]
            if char not in _ENDS:
                self._piece(char, parts)
            elif pattern and char in "()|" and (char != ")" or groups):
                groups += (char == "(") - (char == ")")
                parts.unknown(MADE, one=True)
                self.at += 1
            elif char in "<>" and self.peek(2)[1:] == "(" and self.at == begin:
                self.at += 2
                self.substitution()
                parts.text.append("/dev/fd/")
                parts.unknown(MADE, one=True)
            elif char in "<>" and self.peek(2)[1:] == "(":
                raise self.refuse("a process substitution inside a word")
            else:
                break
        if groups:
            raise self.refuse("a group of a pattern is not closed", begin)
        return parts.word() if self.at > begin else None

    def _piece(self, char: str, parts: Parts) -> None:
        literal = _LITERAL.match(self.text, self.at)
        if literal:
            parts.text.append(literal[0])
            self.at = literal.end()
        elif char == "'":
            self._single_quoted(parts)
        elif char == '"':
            self._double_quoted(parts)
        elif char == "\\":
            self._escaped(parts)
        elif char == "$":
            self._dollar(parts, quoted=False)
        elif char == "`":
            self._backquotes(parts, quoted=False)
        elif char in "[]" and parts.bare and not parts.text and self._ends_here():
            parts.text.append(char)
            self.at += 1
        elif char in "*?[]":
            parts.unknown(LISTING, one=False)
            self.at += 1
        elif char in "{}":
            self._brace(parts)
        elif char == "~":
            if not parts.text and parts.prefix is None:
                parts.text.append("~")
                parts.unknown("HOME", one=True)
            else:
                parts.text.append("~")
            self.at += 1
        else:
            raise self.refuse("a character that is no part of a word")

    def _ends_here(self) -> bool:
        return self.peek(2)[1:] in ("", *_ENDS)

    def _escaped(self, parts: Parts) -> None:
        following = self.peek(2)[1:]
        if not following:
            raise self.refuse("a backslash ends the script")
        parts.bare = False
        if following != "\n":
            parts.text.append(following)
        elif self.pending:
            raise self.refuse("a continued line before the text of a here-document")
        self.at += 2

    def _brace(self, parts: Parts) -> None:
        """``{}`` and single braces are literal; anything else may be several words."""
        if self.peek(2) == "{}":
            parts.text.append("{}")
            self.at += 2
            return
        alone = not parts.text and parts.prefix is None
        if not alone or not self._ends_here():
            parts.unknown(MADE, one=False)
        parts.text.append(self.peek())
        self.at += 1

    def _single_quoted(self, parts: Parts) -> None:
        stop = self.text.find("'", self.at + 1)
        if stop < 0:
            raise self.refuse("a quote is not closed")
        inside = self.text[self.at + 1 : stop]
        self._check_lines(inside)
        parts.text.append(inside)
        parts.bare = False
        self.at = stop + 1

    def _check_lines(self, text: str) -> None:
        if self.pending and "\n" in text:
            raise self.refuse("a line break in a word before the text of a here-document")

    def _double_quoted(self, parts: Parts) -> None:
        begin = self.at
        parts.bare = False
        self.at += 1
        while self.peek() != '"':
            if self.at >= len(self.text):
                raise self.refuse("a quote is not closed", begin)
            self.quoted_piece(parts)
        self.at += 1
        self._check_lines(self.text[begin : self.at])

    def quoted_piece(self, parts: Parts, *, document: bool = False) -> None:
        """One piece of a double-quoted string or of a here-document."""
        char = self.text[self.at]
        if char == "$":
            self._dollar(parts, quoted=True)
        elif char == "`":
            self._backquotes(parts, quoted=not document)
        elif char == "\\":
            following = self.peek(2)[1:]
            special = "$`\\\n" if document else '$`\\\n"'
            if following and following in special:
                parts.text.append("" if following == "\n" else following)
                self.at += 2
            else:
                parts.text.append("\\")
                self.at += 1
        else:
            literal = _QUOTED.match(self.text, self.at)
            parts.text.append(literal[0] if literal else char)
            self.at = literal.end() if literal else self.at + 1

    def _dollar(self, parts: Parts, *, quoted: bool) -> None:
        following = self.peek(2)[1:]
        if following == "(":
            parts.unknown(self._parenthesized(), one=quoted)
        elif following == "{":
            self._braced(parts, quoted=quoted)
        elif following == "'" and not quoted:
            self._ansi_quoted(parts)
        elif following == "[" or (following == '"' and not quoted) or self.peek(3) == "$\\\n":
            raise self.refuse("an expansion that is not followed")
        elif name := NAME.match(self.text, self.at + 1):
            self.at = name.end()
            if self.peek() == "[":
                raise self.refuse("an index behind a variable", name.start() - 1)
            parts.unknown(MADE if name[0] in _SET_BY_SHELL else name[0], one=quoted)
        elif following and following in "0123456789@*_-":
            parts.unknown(MADE, one=quoted and following != "@")
            self.at += 2
        elif following and following in "#?$!":
            parts.unknown(NUMBER, one=True)
            self.at += 2
        else:
            parts.text.append("$")
            self.at += 1

    def _parenthesized(self) -> str:
        if self.peek(3) == "$((":
            self.at += 3
            self.arithmetic_text()
            return NUMBER
        self.at += 2
        return self.substitution()

    def _ansi_quoted(self, parts: Parts) -> None:
        found = _ANSI.match(self.text, self.at)
        if not found:
            raise self.refuse("a quoted text that shells read differently")
        self._check_lines(found[0])
        parts.unknown(MADE, one=True)
        self.at = found.end()

    def _backquotes(self, parts: Parts, *, quoted: bool) -> None:
        stop = self.text.find("`", self.at + 1)
        inside = self.text[self.at + 1 : stop]
        if stop < 0 or "\\" in inside or (quoted and '"' in inside):
            raise self.refuse("backquotes that shells read differently")
        self._check_lines(inside)
        parts.unknown(self.nested_text(inside), one=quoted)
        self.at = stop + 1

    def _braced(self, parts: Parts, *, quoted: bool) -> None:
        found = _BRACES.match(self.text, self.at)
        if not found:
            raise self.refuse("an expansion that is not followed")
        self._check_lines(found[0])
        self.at = found.end()
        if found["length"]:
            parts.unknown(NUMBER, one=True)
            return
        if found["keys"]:
            # Keys that are read are numbers, or names whose values have to be numbers.
            parts.unknown(NUMBER, one=False)
            return
        name, index, operator, rest = found.group("name", "index", "op", "rest")
        digits = re.fullmatch(r"\d+(:\d+)?", rest, re.ASCII)
        if (rest and not operator) or (operator == ":" and not digits):
            raise self.refuse("an expansion that is not followed", found.start())
        if index and not re.fullmatch(r"-?\d+|[@*]", index[1:-1]):
            self.numbers.append(index[1:-1].strip("${}"))
        several = name == "@" or index == "[@]"
        source = name if NAME.fullmatch(name) else NUMBER if name in "#?$!" else MADE
        if name in _SET_BY_SHELL:
            source = MADE
        elif operator and operator[-1] in "#%/:^," and source == name:
            source = PART_OF + name
        elif (operator or index) and source == name:
            source = ELEMENTS + name
        parts.unknown(source, one=quoted and not several)
        if operator and operator[-1] not in "#%:^,":
            # The text in the braces may become the value, or its beginning.
            option = rest.lstrip("/").startswith("-") or (not quoted and "-" in rest)
            parts.unknown(MADE if option or operator[0] == "/" else LISTING, one=quoted)

    def arithmetic_text(self) -> None:
        """Read an arithmetic expression and the two parentheses that close it."""
        begin, level = self.at, 0
        inside = ""
        while level or self.peek(2) != "))":
            char = self.peek()
            if self.peek(2) == "$(" and self.peek(3) != "$((":
                self.at += 2
                if self.substitution() != NUMBER:
                    raise self.refuse("arithmetic evaluates what a command prints", begin)
                inside += " 0 "
                continue
            level += (char == "(") - (char == ")")
            if not char or char == "\n" or level < 0:
                raise self.refuse("arithmetic that is not followed", begin)
            inside += char
            self.at += 1
        self.at += 2
        self.arithmetic(inside)

    def arithmetic(self, inside: str) -> None:
        """Record the variables of an expression of names, numbers and operators."""
        bare = _ARITHMETIC_VALUE.sub(self._number, inside)
        # ``a$i`` is a name that only the run can tell.
        joined = re.search(r"\w\$|[}#?]\w", inside, re.ASCII)
        if joined or not _ARITHMETIC.fullmatch(bare) or "$" in bare:
            raise Unclear(f"arithmetic that is not followed: `{inside[:30]}`")
        self.numbers.extend(NAME.findall(_NUMERAL.sub(" ", bare)))

    def _number(self, found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in ("#", "?"):
            self.numbers.append(name)
        return " 0 "
