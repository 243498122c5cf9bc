"""Files that a script writes and then runs: their text has to be certain, or they are unclear."""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from handrail.policy.guard import programs
from handrail.policy.guard.code import python_writes, read_python
from handrail.policy.guard.ordinary import ORDINARY
from handrail.policy.guard.values import CALLERS, UNUSUAL_NAME, variables
from handrail.policy.guard.words import ELEMENTS, LISTING, MADE, NUMBER, Unclear, Word, known
from handrail.policy.tables import names

if TYPE_CHECKING:
    from handrail.policy.guard.commands import Simple
    from handrail.policy.guard.verdict import Guard

_MOVERS = frozenset({"cp", "mv", "ln", "link", "install", "tee", "dd", "rsync"})
#: Programs that write files of names which are not among their words.
_NAMES_OF_ITS_OWN = frozenset(
    {"split", "csplit", "patch", "uudecode", "cpio", "ar", "shar", "zipnote"}
)
_COMPILERS = frozenset({*programs.COMPILERS, *names("other compilers")})
#: ``-o`` names no file here, or the program is among the writers.
_OTHER_O = names("other output option")
_SYSTEM = ("/bin/", "/usr/", "/sbin/")
#: Files that shells, git and other programs read at start-up, and that can run things.
_STARTUP = re.compile(
    r"(?:^|/)(?:\.git/|\.git$|hooks/(?:pre|post|commit|update|prepare|push|reference|applypatch)[\w-]*$|"
    r"\.(?:bash\w*|profile|zsh\w*|zlogin|kshrc|inputrc|gitconfig"
    r"|gitattributes|gitmodules|lesskey|lessfilter|curlrc|wgetrc|vimrc|exrc|pythonrc|sqliterc|perldb"
    r"|gdbinit|tmux\.conf|screenrc|xinitrc|xprofile|envrc|netrc|mailcap|forward)$|\.ssh/|\.config/"
    r"|(?:site|user)customize\.py$)"
)
#: What git reads in a repository without a working tree.
_GIT_FILE = re.compile(
    r"config(?:\.worktree)?|attributes|(?:pre|post|commit|update|prepare)(?:-[\w-]+)?"
)
_LANGUAGES = {
    **dict.fromkeys((".py", ".pth", ".pyc", ".so"), "python"),
    **dict.fromkeys((".js", ".mjs", ".cjs", ".node", ".ts"), "node"),
    **dict.fromkeys((".sh", ".bash", ".zsh", ".env"), "sh"),
    **dict.fromkeys((".pl", ".pm"), "perl"),
    **dict.fromkeys((".rb", ".php", ".lua"), "file"),
}
#: Names of streams, also in a directory that the script has gone to.
_STREAM = re.compile(r"(?:^|/)(?:stdin|stdout|stderr|\d+|environ|cmdline|comm)$")
_SCRIPT_NAME = re.compile(r"\.(?:sh|bash|py|js|mjs|ts|rb|pl)$")
_DEVICES = ("/dev/", "/proc/")


class Files:
    """What is written, and what is run, by base name: a directory may have several names."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        #: Base name -> its whole text if that is certain.
        self._written: dict[str, str | None] = {}
        self._unknown: list[Word] = []
        #: Words of programs that are not known: files that they may write.
        self._given: set[str] = set()
        self._runs: list[tuple[Word, str]] = []
        self._programs: set[str] = set()
        self._by_path = False
        self._runs_project = False
        self._anything = False
        #: Languages whose programs may load others, and modules that Python texts load.
        self._loads: set[str] = set()
        self._modules: set[str] = set()
        self._patches: list[Word] = []
        self._names: list[Word] = []
        self._among_startup = False
        self._done: set[tuple[str, str]] = set()
        self._loaded: set[tuple[str, str | None]] = set()

    def redirections(self, command: Simple) -> None:
        text = _printed(command)
        for target in command.writes:
            self._write(target, text)

    def edited(self, words: Sequence[Word]) -> None:
        """Record files that are changed in place."""
        for word in words:
            self._write(word, None)

    def arguments(self, base: str, words: Sequence[Word], command: Simple) -> None:
        """Note the files that a program may write."""
        if base in ("touch", "mkdir", "mkfifo", "mknod", "ln", "cp", "mv"):
            for word in words[1:]:
                self._check_name(word)
                if (word.value or "").startswith(("./-", "-- -")) or "/-" in (word.value or ""):
                    raise Unclear(f"it makes a file whose name is an option: {word.value}")
            if any(one.value == "--" for one in words) and any(
                (one.value or "").startswith("-") and one.value != "--" for one in words[1:]
            ):
                raise Unclear("it makes a file whose name may be an option")
        if base in _NAMES_OF_ITS_OWN:
            self._anything = True
        values = [word.value or "" for word in words]
        touched = any(self._base(value) in self._written for value in values[1:] if value)
        if base in _COMPILERS:
            # A text of the script's own becomes ``a.out``, ``q.o``, or what ``-o`` says.
            fed = any(value in ("-", "-E") or value.startswith(_DEVICES) for value in values)
            self._anything |= touched or fed or any(MADE in word.sources for word in words)
        elif base not in _OTHER_O:
            self._outputs(words)
        if base in ("tar", "bsdtar") and any(
            value.startswith(("--transform", "--xform", "-s")) for value in values
        ):
            self._anything = True
        if base in programs.WRITERS or (touched and base not in _READERS):
            for word in words[1:]:
                if word.value is None:
                    if base in _MOVERS:
                        self._check_name(word)
                        self._unknown.append(word)
                    continue
                for part in (word.value, word.value.partition("=")[2], *_glued(word.value)):
                    if part and not part.startswith("-"):
                        if base in _MOVERS:
                            self._check_name(known(part))
                        self._write_name(part, None)
                        if base in programs.DECOMPRESSORS:
                            self._write_name(posixpath.splitext(part)[0], None)
        elif base not in KNOWN:
            self._given.update(self._base(value) for value in values[1:])

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

    def enter(self, directory: Word) -> None:
        """Note a directory that the script goes to."""
        self._among_startup |= bool(_STARTUP.search((directory.value or "") + "/"))

    def load(self, language: str) -> None:
        """Note that programs of a language run, which may load others from files."""
        self._loads.add(language)

    def load_modules(self, names: AbstractSet[str]) -> None:
        """Note that a Python text runs, and what it imports."""
        self._loads.add("python text")
        self._modules |= names

    def apply(self, words: Sequence[Word], *, fed: bool) -> None:
        """Note patches, which write files that are not among the words."""
        patches = [word for word in words if not (word.value or "").startswith("-")]
        if fed or not patches or any(word.value is None for word in patches):
            self._anything = True
        self._patches += patches

    def run_file(self, word: Word, language: str) -> None:
        """Record that an interpreter runs a file."""
        value = word.value
        path = posixpath.normpath("/" + value.lstrip("/")) if value else value
        if value is not None and (
            value in ("-", "")
            or CALLERS in value
            or (path or "").startswith(_DEVICES)
            or _STREAM.search(value)
        ):
            raise Unclear("a text is run that is fed at the run")
        self.load("sh" if language in programs.SHELLS else language)
        self._runs.append((word, language))
        if value is not None:
            # A file for an interpreter is a program like any other.
            self._guard.note([word])

    def _write(self, target: Word, text: str | None) -> None:
        if target.value is None:
            self._check_name(target)
            self._unknown.append(target)
            if target.literal:
                self._write_name(target.literal, None)
        elif target.value not in programs.HARMLESS_TARGETS:
            self._check_name(target)
            self._write_name(target.value, text)

    def _check_name(self, name: Word) -> None:
        """Refuse a name that a list of files, or a text with it, would make more of."""
        if UNUSUAL_NAME.search(name.literal):
            raise Unclear(f"it makes a file with an unusual name: {name.literal!r}")
        if name.value is None:
            self._names.append(name)

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

    def read_texts(self) -> None:
        """Read the texts that the script writes and runs."""
        at = 0
        while at < len(self._runs):
            word, language = self._runs[at]
            at += 1
            if word.value is not None:
                self._read(self._base(word.value), language, self._done)

    def finish(self) -> None:
        """Look for texts that are run and cannot be read."""
        values = self._guard.values
        values.makes_any_name = not all(values.is_plain_name(name) for name in self._names)
        self._anything |= any(self._base(word.value) in self._written for word in self._patches)
        for word, language in self._runs:
            self._check_run(word, language, self._done)
        if self._written and self._among_startup:
            raise Unclear("it writes where shells, git or other programs keep what they run")
        if "git" in self._programs and any(_GIT_FILE.fullmatch(base) for base in self._written):
            raise Unclear("it writes what git reads at its start")
        given = self._given if self._by_path else set()
        for base in self._programs & {*self._written, *given}:
            raise Unclear(f"it runs {base}, which it writes itself")
        if self._anything and self._by_path:
            raise Unclear("it runs a file and writes files of unknown names")
        if self._runs_project:
            self._check_project()

    def _read(self, base: str, language: str, done: set[tuple[str, str]]) -> None:
        text = self._written.get(base)
        if text is None or (base, language) in done:
            return
        if language in programs.SHELLS:
            done.add((base, language))
            self._guard.script(text, language)
        elif language == "python":
            done.add((base, language))
            writes, modules = read_python(text)
            self.load_modules(modules)
            self._anything |= writes

    def _resolve_unknown(self) -> None:
        values = self._guard.values
        for word in self._unknown:
            texts = values.texts(word)
            if texts is not None:
                for text in texts:
                    if text not in programs.HARMLESS_TARGETS:
                        self._write_name(text, None)
            elif not values.is_outside(word):
                self._anything = True

    def read_loaded(self) -> bool:
        """Read written programs that one that runs may load; True if a script was among them."""
        self._resolve_unknown()
        for base, text in list(self._written.items()):
            if (base, text) in self._loaded:
                continue
            stem, end = posixpath.splitext(base)
            language = _LANGUAGES.get(end)
            by_file = language in self._loads
            if language == "python" and "python text" in self._loads and not by_file:
                own = stem in self._modules or stem in sys.stdlib_module_names
                by_file = own or stem.startswith("__") or end != ".py"
            if not by_file:
                continue
            self._loaded.add((base, text))
            if text is not None and end == ".py":
                self._anything |= read_python(text)[0]
            elif text is not None and language == "sh":
                self._guard.script(text, "sh")
                return True
            else:
                raise Unclear(f"it writes {base}, which what it runs may load")
        return False

    def _check_run(self, word: Word, language: str, done: set[tuple[str, str]]) -> None:
        if self._anything:
            raise Unclear("it runs a file and writes files of unknown names")
        if word.value is not None:
            base = self._base(word.value)
            known_text = (base, language) in done and self._written.get(base) is not None
            if base in self._given or (base in self._written and not known_text):
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
        plain = [source for source in word.sources if source not in (LISTING, NUMBER)]
        if any(one.startswith("#") and not one.startswith(ELEMENTS) for one in plain):
            return False
        base = self._base(word.suffix)
        if "/" in word.suffix and base:
            self._guard.note([known(f"./{base}")])
            return values.is_quiet(word)
        # A list of files may have the program in it, unless all of them end like scripts.
        open_end = (word.literal or LISTING in word.sources) and not _SCRIPT_NAME.search(
            word.suffix
        )
        if open_end or not values.is_quiet(word):
            return False
        return all(
            self._is_certain(value, seen | {name})
            for source in plain
            for name in variables(source) - seen
            for value in values.assigned.get(name, ())
        )

    def _check_project(self) -> None:
        if self._anything:
            raise Unclear("it runs the project's own programs and writes files of unknown names")
        for base, text in self._written.items():
            if base.lower() in programs.PROJECT_FILES or programs.PROGRAM_FILE.search(base):
                if text is None or not base.endswith(".py"):
                    raise Unclear(f"it runs the project's own programs and writes {base} itself")
                python_writes(text)


#: Programs that write no file, whatever files they are given.
_READERS = names("readers")


#: Of all others it is not known which files they write.
KNOWN = frozenset(
    {
        *_READERS,
        *_COMPILERS,
        *_NAMES_OF_ITS_OWN,
        *ORDINARY,
        *programs.WRITERS,
        *programs.LAUNCHERS,
        *programs.INTERPRETERS,
        *programs.PROJECT_RUNNERS,
        *programs.RUNNING_OPTIONS,
        *programs.SHELLS,
        *(name for name, _ in programs.VERB_LAUNCHERS),
        *("flake8", "isort", "pylint", "shellcheck"),
    }
)


def _glued(word: str) -> list[str]:
    """File names that may stand directly behind their option: ``-os``, ``-qOs``."""
    if not word.startswith("-") or word.startswith("--"):
        return []
    return [word[at:] for at in range(2, len(word)) if word[at - 1] in "oO"]


def _printed(command: Simple) -> str | None:
    """The text that a command certainly prints; None: only the run can tell."""
    words = command.words
    name = words[0].value if words else None
    if name == "cat" and len(words) == 1 and command.inputs == 1:
        return command.text
    values = [word.value for word in words[1:]]
    if not values or None in values or (values[0] or "").startswith("-"):
        return None
    if name == "echo":
        text = " ".join(value or "" for value in values) + "\n"
        return None if "\\" in text else text  # which some shells replace
    if name == "printf" and len(values) == 1:
        text = re.sub(r"\\([nt])", lambda found: "\n\t"["nt".index(found[1])], values[0] or "")
        return None if "\\" in text or "%" in text else text
    return None
