"""Check that a name leads to the program a rule means, before the rule takes it out of the sandbox.

A rule with ``sandbox="off"`` is about a program.  Commands write files, so a program of that name
may be theirs: in a directory that PATH names first, or behind a link.  And some programs run what
they find in the directory they are started in: a repository's settings, a Makefile, a test.  For
these the rule allows the run and keeps the sandbox; leaving it is asked.  What leaves gets a PATH
without the directories that commands can write: the program may start others by their names.

Examines the file system of this machine, and only for a command that a rule would let out.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import posixpath
import re
import stat
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from handrail.policy import programs
from handrail.policy.context import Lookup, Situation
from handrail.policy.rules import Argv, Words, is_within, normal_path
from handrail.policy.strict_script_reader import shell_call, split
from handrail.policy.wrappers import sightings

#: Device and inode.
_Identity = tuple[int, int]
#: What shells search where nothing says otherwise.
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: The kernel's limit of links in one path.
_MOST_LINKS = 40
#: As many scripts as the kernel follows by their first lines.
_MOST_INTERPRETERS = 5
#: So many bytes of a first line the kernel reads.
_FIRST_LINE = 256
#: So many names of one call are looked up for a question.
_MOST_NAMES = 32
#: So many directories that words name, each relative to those before it, are followed.
_MOST_PLACES = 64


def objection(
    argv: Argv, commands: Sequence[Argv], situation: Situation, named: Collection[str]
) -> str | None:
    """Why ``sandbox="off"`` is not followed for this call, as a sentence; None: it is.

    ``named``: the words of the rules, which therefore say what they let the program do.
    """
    lookup = situation.lookup
    if lookup is None or not situation.restricted:
        return None
    try:
        for text in _Judgement(argv, situation, lookup, named).objections(commands):
            return f"a rule lets this leave the sandbox, but {text}"
    except (OSError, ValueError) as error:
        return f"a rule lets this leave the sandbox, but its program cannot be looked at: {error}"
    return None


def clean_path(situation: Situation) -> str | None:
    """PATH for a run that leaves by a rule; None: as it is, nothing in it is a command's work."""
    lookup = situation.lookup
    given = lookup.env.get("PATH") if lookup is not None else None
    if lookup is None or given is None or not lookup.local:
        return None
    judgement = _Judgement((), situation, lookup)
    directories = given.split(":")
    kept = [directory for directory in directories if judgement.is_clean(directory)]
    # An empty PATH is the working directory for some shells.
    return None if kept == directories else ":".join(kept) or _DEFAULT_PATH


class WrittenProgram(NamedTuple):
    """A program of a call that is a file which sandboxed commands can write, as it is now."""

    name: str
    path: str
    #: Device, inode, time of the last change of any kind, size: another file, or another content.
    state: tuple[int, ...]


def written_programs(argv: Argv, situation: Situation) -> tuple[WrittenProgram, ...]:
    """The programs whose content is up to sandboxed commands; examines this machine alone."""
    lookup = situation.lookup
    if lookup is None or not lookup.local or not situation.restricted:
        return ()
    judgement = _Judgement(argv, situation, lookup)
    names = dict.fromkeys(words[0] for words, _ in sightings(argv).commands if words[0])
    found = []
    for name in itertools.islice(names, _MOST_NAMES):
        with contextlib.suppress(OSError, ValueError):
            path = judgement.written(name or "")
            if path is not None:
                status = os.stat(path)
                state = (status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size)
                found.append(WrittenProgram(name or "", path, state))
    return tuple(found)


class _Judgement:
    """One call: where it starts, its environment, and what commands can write."""

    def __init__(
        self, argv: Argv, situation: Situation, lookup: Lookup, named: Collection[str] = ()
    ) -> None:
        self._argv = argv
        self._named_by_rules = named
        self._cwd = situation.cwd
        self._shell = situation.shell
        self._env = lookup.env
        self._local = lookup.local
        self._trusted = situation.trusted_directories
        roots = [normal_path(root) for root in situation.writable_roots]
        if self._local:
            roots += [os.path.realpath(root) for root in roots]
        self._roots = tuple(dict.fromkeys(roots))
        self._same = _identities(self._roots) if self._local else frozenset[_Identity]()
        self._in_shell = split(argv) is not None

    def is_clean(self, directory: str) -> bool:
        """Whether what PATH finds in this directory is no command's work."""
        return directory.startswith("/") and self._directory(directory) is None

    def written(self, name: str) -> str | None:
        """The file that a name leads to, if commands can write it."""
        places = self._env.get("PATH", _DEFAULT_PATH).split(":")
        for directory in [""] if "/" in name else places:
            path = normal_path(posixpath.join(directory, name), self._cwd)
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return path if self._is_writable(path) else None
        return None

    def objections(self, commands: Sequence[Argv]) -> Iterator[str]:
        """All objections to it."""
        if self._argv and programs.is_shell(self._argv[0]) and not self._in_shell:
            yield "its script is more than plain commands"
        # What tells one program to run another is not what the rule is about.
        from handrail.policy.guard.verdict import read

        unclear = read(self._argv).unclear
        if unclear:
            yield f"it may run something else: {unclear}"
        yield from self._environment()
        if self._in_shell:
            yield from self._starting_shell(self._argv[0])
        for command in commands:
            yield from self._command(command, commands)

    def _environment(self) -> Iterator[str]:
        for name in programs.CODE_VARIABLES:
            for place in self._env.get(name, "").replace(" ", ":").split(":"):
                if place and (not place.startswith("/") or self._is_writable(place)):
                    yield f"{name} names {place}, where commands can write"
        for name in programs.COMMAND_VARIABLES:
            for word in re.split(r"[\s:=|]+", self._env.get(name, "")):
                if "/" in word and self._is_writable(word):
                    yield f"{name} names {word}, where commands can write"

    def _starting_shell(self, shell: str) -> Iterator[str]:
        """Check the shell that runs the commands: what it is, and what it reads before them."""
        if shell != self._shell:
            yield from self._program(shell)
        elif self._is_writable(shell):
            yield f"commands can write {shell}"
        call = shell_call(self._argv)
        quiet = programs.plain_name(shell) in programs.QUIET_SHELLS
        if not quiet or (call is not None and "l" in call.flag):
            yield from self._home("the shell reads")

    def _home(self, reads: str) -> Iterator[str]:
        for name in ("HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
            home = self._env.get(name)
            if home and self._is_writable(home):
                yield f"{reads} {home}, where commands can write"

    def _command(self, command: Argv, commands: Sequence[Argv]) -> Iterator[str]:
        found = [words for words, certain in sightings(command).commands if certain]
        if len(found) > 1 and any(programs.ASSIGNMENT.match(word) for word in command):
            yield "it sets variables for the program it starts"
        moved = any(one and one[0] in programs.CHANGES_DIRECTORY for one in commands)
        for words in found:
            name = words[0]
            if name is None:
                yield "the program it starts is not known before it runs"
                continue
            if _is_told_by_a_word(words, command):
                yield f"one of its words tells it to run `{name}`"
            if name in programs.CHANGES_LOOKUP:
                yield f"`{name}` can change what the names behind it mean"
            if not (self._in_shell and name in programs.BUILTINS):
                yield from self._program(name)
            yield from self._written(name, words[1:])
            if programs.runs_what_it_finds(name):
                yield from self._surroundings(name, (*command, *words), moved=moved)

    def _written(self, name: str, words: Words) -> Iterator[str]:
        """``git log --output=FILE``: a rule about a program that reads says nothing of files."""
        letters, long = programs.WRITING_OPTIONS.get(programs.plain_name(name), ("", ()))
        for word in words:
            option = (word or "").partition("=")[0]
            if not option.startswith("-") or word in self._named_by_rules:
                continue
            short = not option.startswith("--") and set(option[1:2]) & set(letters)
            if short or (len(option) > 2 and any(one.startswith(option) for one in long)):
                yield f"`{name} {option}` writes a file, and no rule names that option"

    def _surroundings(self, name: str, words: Words, *, moved: bool) -> Iterator[str]:
        """Check the directory, the files it is given, and the user's own settings for it."""
        program = programs.plain_name(name)
        reads = f"`{program}` runs what it finds in its working directory"
        if moved:
            yield f"{reads}, and the script goes to another one"
        if self._is_writable(self._cwd):
            yield f"{reads}, and commands can write in {self._cwd}"
        for place in self._named(words[1:]):
            if self._is_writable(place):
                yield f"`{program}` runs what it finds in {place}, where commands can write"
        yield from self._home(f"`{program}` reads its settings from")

    def _named(self, words: Words) -> Iterator[str]:
        """The paths that words may name, also relative to a directory before (``-C a -C b``)."""
        starts = {normal_path(self._cwd)}
        for word in words:
            for place in _places(word or ""):
                found = {normal_path(place, start) for start in starts}
                yield from found
                starts |= {path for path in found if not self._local or os.path.isdir(path)}
            if len(starts) > _MOST_PLACES:
                raise ValueError("its words name too many directories")

    def _program(self, name: str) -> Iterator[str]:
        if "/" in name:
            if not name.startswith("/") or normal_path(name) != name:
                yield f"`{name}` is another program in every directory"
            else:
                yield from self._file(name)
            return
        for directory in self._env.get("PATH", _DEFAULT_PATH if self._local else "").split(":"):
            if not directory.startswith("/"):
                shown = directory or "the working directory"
                yield f"PATH looks for `{name}` in {shown} before it is found"
                return
            refusal = self._directory(directory)
            if refusal:
                yield f"PATH looks for `{name}` in {directory} first, and {refusal}"
                return
            path = posixpath.join(directory, name)
            if self._local and os.path.isfile(path) and os.access(path, os.X_OK):
                yield from self._file(path)
                return
        if self._local:
            yield f"PATH leads to no `{name}`"

    def _file(self, path: str) -> Iterator[str]:
        refusal = self._directory(posixpath.dirname(path)) or self._way(path)
        if refusal is None and self._local:
            refusal = self._other_name(path) or self._interpreter(path)
        if refusal:
            yield f"{path} may be another program: {refusal}"

    def _other_name(self, path: str) -> str | None:
        """Why a file with another hard link may be written by that name."""
        real = os.path.realpath(path)
        found = os.stat(real)
        directory = posixpath.dirname(real)
        if found.st_nlink < 2 or found.st_uid != os.geteuid() or directory in self._trusted:
            return None
        with os.scandir(directory) as entries:
            here = sum(entry.inode() == found.st_ino for entry in entries)
        return None if here >= found.st_nlink else "it has another name elsewhere (a hard link)"

    def _interpreter(self, path: str) -> str | None:
        """Why what a script's first line names may be a command's work."""
        for _ in range(_MOST_INTERPRETERS):
            try:
                with open(path, "rb") as file:
                    line = file.read(_FIRST_LINE).split(b"\n")[0]
            except PermissionError:
                return None  # an interpreter could not read it either
            if not line.startswith(b"#!"):
                return None
            path = os.fsdecode(line[2:].strip().split(maxsplit=1)[0]) if line[2:].strip() else ""
            if not path.startswith("/"):
                return f"it is run by {path or 'nothing'}"
            refusal = self._directory(posixpath.dirname(path)) or self._way(path)
            refusal = refusal or self._other_name(path)
            if refusal:
                return f"it is run by {path}, and {refusal}"
        return "it is run by a script that is run by a script, and so on"

    def _directory(self, path: str) -> str | None:
        """Why a command may have made what is in this directory; None: it cannot."""
        path = normal_path(path)
        if self._is_writable(path):
            return "commands can write there"
        if not self._local:
            return None if path in self._trusted else "it is no directory of the system"
        if path not in self._trusted and _is_open_to_all(path):
            return "every user can write there"
        return self._way(path)

    def _way(self, path: str) -> str | None:
        """Like `_directory`, for every directory and every link on the way to ``path``."""
        if not self._local:
            return None
        for at, found in _steps(path):
            if is_within(at, self._roots):
                return f"commands can write {at}"
            if (found.st_dev, found.st_ino) in self._same:
                return f"commands can write {at}, which is mounted where they write"
            if stat.S_ISLNK(found.st_mode) or at in self._trusted:
                continue
            if found.st_uid not in (0, os.geteuid()):
                return f"{at} belongs to another user"
            if _is_writable_by_others(found):
                return f"other users can write {at}"
        return None

    def _is_writable(self, path: str) -> bool:
        """Whether a sandboxed command may write there, by this name or its target."""
        path = normal_path(path, self._cwd)
        names = {path, os.path.realpath(path)} if self._local else {path}
        if any(is_within(name, self._roots) for name in names):
            return True
        return self._local and any(
            (found.st_dev, found.st_ino) in self._same for _, found in _steps(path)
        )


def _is_open_to_all(path: str) -> bool:
    try:
        return bool(os.stat(path).st_mode & stat.S_IWOTH)
    except FileNotFoundError:
        return False  # the way to it shows where it could be made


def _is_writable_by_others(found: os.stat_result) -> bool:
    """Whether other users can change it; a sticky directory keeps entries that are not theirs."""
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX:
        return False
    own_groups = (0, os.getegid())
    of_group = found.st_mode & stat.S_IWGRP and found.st_gid not in own_groups
    return bool(found.st_mode & stat.S_IWOTH or of_group)


def _identities(roots: Sequence[str]) -> frozenset[_Identity]:
    """The directories where commands write, as the kernel knows them: the roots and what is
    mounted below them, which may be mounted at other places as well."""
    found = set()
    for place in (*roots, *_mounted_below(roots)):
        with contextlib.suppress(OSError):
            status = os.stat(place)
            found.add((status.st_dev, status.st_ino))
    return frozenset(found)


def _mounted_below(roots: Sequence[str]) -> Iterator[str]:
    try:
        with open("/proc/self/mountinfo", "rb") as table:
            lines = table.read().splitlines()
    except OSError:
        return
    for line in lines:
        # Blanks and their like stand there as octal numbers.
        escaped = line.split(b" ", 5)[4]
        point = re.sub(rb"\\([0-7]{3})", lambda octal: bytes((int(octal[1], 8),)), escaped)
        place = os.fsdecode(point)
        if is_within(place, roots):
            yield place


def _is_told_by_a_word(words: Words, command: Argv) -> bool:
    """Whether a command stands inside a word of another (``-e 'sh x'``), not behind it."""
    behind = command[len(command) - len(words) :] == words
    return not behind and programs.plain_name(words[0] or "") != programs.plain_name(command[0])


def _places(word: str) -> Iterator[str]:
    """The paths a word may name: itself, a value behind ``=``, a value joined to ``-C``."""
    if word and not word.startswith("-"):
        yield word
    elif len(word) > 2 and word[1] != "-":
        yield word[2:]
    _, found, value = word.partition("=")
    if found and value:
        yield value


def _steps(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every component on the way to ``path``, links and their targets included."""
    rest = _parts(path)
    at, links = "/", 0
    while rest:
        part = rest.pop()
        if part == "..":
            at = posixpath.dirname(at)
            continue
        here = posixpath.join(at, part)
        try:
            found = os.lstat(here)
        except FileNotFoundError:
            return
        yield here, found
        if not stat.S_ISLNK(found.st_mode):
            at = here
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(f"{path} leads in a circle")
        target = os.readlink(here)
        at = "/" if target.startswith("/") else at
        rest += _parts(target)


def _parts(path: str) -> list[str]:
    """The components of a path, the first one last."""
    return [part for part in path.split("/") if part not in ("", ".")][::-1]
