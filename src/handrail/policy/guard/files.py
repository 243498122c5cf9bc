"""Files that a script writes and then runs: their text has to be certain, or they are unclear."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from handrail.policy.guard.code import python_writes
from handrail.policy.guard.programs import (
    HARMLESS_TARGETS,
    PROGRAM_FILE,
    PROJECT_FILES,
    SHELLS,
    WRITERS,
)
from handrail.policy.guard.words import Unclear, Word, known

if TYPE_CHECKING:
    from handrail.policy.guard.commands import Simple
    from handrail.policy.guard.reading import Guard

_MOVERS = frozenset({"cp", "mv", "ln", "link", "install", "tee", "dd", "rsync"})
#: Programs that write files with names that are not among their words.
_NAMES_OF_ITS_OWN = frozenset({"split", "csplit", "patch", "uudecode", "cpio", "ar", "shar"})
_COMPILERS = frozenset({
    "gcc", "g++", "cc", "c++", "clang", "clang++", "rustc", "go", "javac", "tsc", "ld", "as",
    "nvcc",
    "test", "[", "set", "find", "ps", "sort", "ssh", "ls", "grep", "curl", "wget", "bash", "sh",
})  # fmt: skip
_SYSTEM = ("/bin/", "/usr/", "/sbin/")
#: Files that shells, git and other programs read at start-up, and that can run things.
_STARTUP = re.compile(
    r"(?:^|/)(?:\.git/|\.git$|hooks/|\.(?:bash\w*|profile|zsh\w*|zlogin|kshrc|inputrc|gitconfig"
    r"|gitattributes|gitmodules|lesskey|lessfilter|curlrc|wgetrc|vimrc|exrc|pythonrc|sqliterc|perldb"
    r"|gdbinit|tmux\.conf|screenrc|xinitrc|xprofile|envrc|netrc|mailcap|forward)$|\.ssh/|\.config/"
    r"|(?:site|user)customize\.py$)"
)
_SCRIPT_NAME = re.compile(r"\.(?:sh|bash|py|js|mjs|ts|rb|pl)$")
_DEVICES = ("/dev/", "/proc/")


class Files:
    """What is written, and what is run, by base name: a directory may have several names."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        #: Base name -> its whole text if that is certain.
        self._written: dict[str, str | None] = {}
        self._unknown: list[Word] = []
        self._runs: list[tuple[Word, str]] = []
        self._programs: set[str] = set()
        self._by_path = False
        self._runs_project = False
        self._anything = False

    def redirections(self, command: Simple) -> None:
        words = command.words
        whole = len(words) == 1 and words[0].value == "cat" and command.inputs == 1
        for target in command.writes:
            self._write(target, command.text if whole else None)

    def edited(self, words: Sequence[Word]) -> None:
        """Record files that are changed in place."""
        for word in words:
            self._write(word, None)

    def arguments(self, base: str, words: Sequence[Word], command: Simple) -> None:
        """Record the files that a program may write."""
        if base in ("touch", "mkdir", "mkfifo", "mknod"):
            for word in words[1:]:
                if (word.value or "").startswith(("./-", "-- -")) or "/-" in (word.value or ""):
                    raise Unclear(f"it makes a file whose name is an option: {word.value}")
            if any(one.value == "--" for one in words) and any(
                (one.value or "").startswith("-") and one.value != "--" for one in words[1:]
            ):
                raise Unclear("it makes a file whose name may be an option")
        if base in _NAMES_OF_ITS_OWN:
            self._anything = True
        if base not in _COMPILERS:
            self._outputs(words)
        touched = any(self._base(word.value) in self._written for word in words[1:] if word.value)
        if base in WRITERS or (touched and base not in _READERS):
            for word in words[1:]:
                if word.value is None:
                    if base in _MOVERS:
                        self._unknown.append(word)
                    continue
                for part in (word.value, word.value.partition("=")[2]):
                    if part and not part.startswith("-"):
                        self._write_name(part, None)

    def _outputs(self, words: Sequence[Word]) -> None:
        """``-o FILE``, ``--output=FILE``"""
        for at, word in enumerate(words[1:], 1):
            value = word.value or ""
            if value in ("-o", "-O", "-out", "--output", "--out") and at + 1 < len(words):
                self._write(words[at + 1], None)
            elif value.startswith("--out") and "=" in value:
                self._write_name(value.partition("=")[2], None)

    def writes_anything(self) -> None:
        """Record that a program text writes files of unknown names."""
        self._anything = True

    def run_program(self, name: str) -> None:
        self._programs.add(posixpath.basename(name))
        self._by_path |= "/" in name and not name.startswith(_SYSTEM)

    def run_project(self) -> None:
        self._runs_project = True

    def run_file(self, word: Word, language: str) -> None:
        """Record that an interpreter runs a file."""
        value = word.value
        if value is not None and (value.startswith(_DEVICES) or value in ("-", "")):
            raise Unclear("a text is run that is fed at the run")
        self._runs.append((word, language))
        if value is not None:
            # A file for an interpreter is a program like any other.
            self._guard.note([word])

    def _write(self, target: Word, text: str | None) -> None:
        if target.value is None:
            self._unknown.append(target)
            if target.literal:
                self._write_name(target.literal, None)
        elif target.value not in HARMLESS_TARGETS:
            self._write_name(target.value, text)

    def _write_name(self, path: str, text: str | None) -> None:
        if _STARTUP.search(path):
            raise Unclear(
                f"it writes what shells, git or other programs read at their start: {path}"
            )
        base = self._base(path)
        if base.startswith("-") and len(base) > 1:
            raise Unclear(f"it makes a file whose name is an option: {base}")
        self._written[base] = None if base in self._written else text

    @staticmethod
    def _base(path: str | None) -> str:
        return posixpath.basename((path or "").rstrip("/"))

    def finish(self) -> None:
        """Read the texts that are run, then look for those that cannot be read."""
        done: set[tuple[str, str]] = set()
        at = 0
        while at < len(self._runs):
            word, language = self._runs[at]
            at += 1
            if word.value is not None:
                self._read(self._base(word.value), language, done)
        self._resolve_unknown()
        for word, language in self._runs:
            self._check_run(word, language, done)
        for base in self._programs & set(self._written):
            raise Unclear(f"it runs {base}, which it writes itself")
        if self._anything and self._by_path:
            raise Unclear("it runs a file and writes files of unknown names")
        if self._runs_project:
            self._check_project()

    def _read(self, base: str, language: str, done: set[tuple[str, str]]) -> None:
        text = self._written.get(base)
        if text is None or (base, language) in done:
            return
        if language in SHELLS:
            done.add((base, language))
            self._guard.script(text, language)
        elif language == "python":
            done.add((base, language))
            self._anything |= python_writes(text)

    def _resolve_unknown(self) -> None:
        values = self._guard.values
        for word in self._unknown:
            texts = values.texts(word)
            if texts is not None:
                for text in texts:
                    if text not in HARMLESS_TARGETS:
                        self._write_name(text, None)
            elif not values.is_outside(word):
                self._anything = True

    def _check_run(self, word: Word, language: str, done: set[tuple[str, str]]) -> None:
        if self._anything:
            raise Unclear("it runs a file and writes files of unknown names")
        if word.value is not None:
            base = self._base(word.value)
            known_text = (base, language) in done and self._written.get(base) is not None
            if base in self._written and not known_text:
                raise Unclear(f"it runs {base}, which it writes itself")
        elif (
            self._written
            or not self._guard.values.is_there(word)
            or not self._is_certain(word, frozenset())
        ):
            raise Unclear("it runs a file whose name is known only at the run")

    def _is_certain(self, word: Word, seen: frozenset[str]) -> bool:
        """True if the file's base name is certain, or the script cannot have made it."""
        values = self._guard.values
        if word.value is not None:
            self._guard.note([word])
            return True
        base = self._base(word.suffix)
        if "/" in word.suffix and base:
            self._guard.note([known(f"./{base}")])
            return values.is_quiet(word)
        if not values.is_quiet(word) or (word.literal and not _SCRIPT_NAME.search(word.suffix)):
            return False
        return all(
            self._is_certain(value, seen | {source})
            for source in word.sources
            if source not in seen
            for value in values.assigned.get(source, ())
        )

    def _check_project(self) -> None:
        if self._anything:
            raise Unclear("it runs the project's own programs and writes files of unknown names")
        for base, text in self._written.items():
            if base.lower() in PROJECT_FILES or PROGRAM_FILE.search(base):
                if text is None or not base.endswith(".py"):
                    raise Unclear(f"it runs the project's own programs and writes {base} itself")
                python_writes(text)


#: Programs that write no file, whatever files they are given.
_READERS = frozenset({
    "cat", "ls", "head", "tail", "wc", "grep", "diff", "cmp", "stat", "file", "rm", "echo", "test",
    "[", "chmod", "chown", "mkdir", "rmdir", "less", "more", "du", "sed", "cut", "find", "jq",
    "md5sum", "sha256sum", "git", "bash", "sh", "dash", "python", "python3", "node", "source", ".",
    "touch", "cd", "printf", "pytest", "ruff", "mypy", "make", "npm", "unset", "export", "true",
})  # fmt: skip
