"""Files and folders of rules -> one policy.  Reads the files of rules (``amend.py`` writes them,
and ``tables.py`` reads the one table of programs).

Layers go from low to high precedence, files of a folder by name; since rules only add up, order
shows in reports alone.  Administrator layers come last and cannot be switched off.

A broken file is left out alone, with its place; the others stay in force.  What it may have
forbidden is lost then, and ``Policy.lost`` says so, for ``decide.py`` to refuse unattended runs.
A broken administrator file, or one that cannot be read, is an error: nothing should start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from handrail.policy.language import RulesFileError, Statements, read_statements
from handrail.policy.rules import HostExecutable, Policy, Resolver, normal_path

SUFFIX = ".rules"
#: Larger files are refused before anything is parsed.
SIZE_LIMIT = 4 * 1024 * 1024
_NONE = Policy()
#: Words that show that a broken file meant to forbid or prompt.
_HOLDS_BACK = re.compile(r"\b(forbidden|prompt|deny)\b")


@dataclass(frozen=True, slots=True)
class Layer:
    """One directory of rules files.  ``name`` is for people: system, user, project."""

    name: str
    folder: str
    administrator: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that was left out, and whether it seems to forbid or prompt for something."""

    error: RulesFileError
    holds_back: bool

    def __str__(self) -> str:
        return f"{self.error} (file left out)"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The policy in force and what is missing from it."""

    policy: Policy
    problems: tuple[Problem, ...] = ()


def working_directory() -> str:
    """The directory of this process; ``/`` if it was removed, for only relative names need it."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


def resolver(cwd: str, home: str) -> Resolver:
    """Program names as the peer resolves them: against ``cwd``, a leading ``~/`` to ``home``."""

    def resolve(program: str) -> str | None:
        if program == "~" or program.startswith("~/"):
            program = home + program[1:]
        return normal_path(program, cwd)

    return resolve


def parse_rules(
    text: str, path: str, earlier: Mapping[str, HostExecutable] | None = None
) -> Policy:
    """The policy of one file's text; raises RulesFileError at its first mistake.

    ``earlier`` are host lists of earlier files, which examples may rely on.
    """
    return _checked(read_statements(text, path), earlier or {})


def load_files(paths: Iterable[str], before: Policy = _NONE) -> Policy:
    """The policy of exactly these files; the first broken or missing one raises RulesFileError.

    ``before`` is what was loaded earlier, and is part of the answer.
    """
    policy = before
    for path in paths:
        policy = policy.merged(parse_rules(read_text(path), path, policy.hosts))
    return policy


def load_layers(layers: Sequence[Layer], before: Policy = _NONE) -> Loaded:
    """The policy of all layers, without the files that are broken; ``before`` as in ``load_files``.

    Raises RulesFileError for an unreadable directory or file and for a broken administrator file.
    """
    policy = before
    problems: list[Problem] = []
    for layer in sorted(layers, key=lambda layer: layer.administrator):
        for path in rules_files(layer.folder):
            text = read_text(path)
            try:
                policy = policy.merged(parse_rules(text, path, policy.hosts))
            except RulesFileError as error:
                if layer.administrator:
                    raise
                problems.append(Problem(error, bool(_HOLDS_BACK.search(text))))
    lost = tuple(problem.error.path for problem in problems if problem.holds_back)
    return Loaded(policy.merged(Policy(lost=lost)), tuple(problems))


def rules_files(folder: str) -> list[str]:
    """The rules files of a directory, by name; none if the directory does not exist."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(folder, error) from None
    paths = [os.path.join(folder, name) for name in names if name.endswith(SUFFIX)]
    return [path for path in paths if not os.path.isdir(path)]


def _checked(statements: Statements, earlier: Mapping[str, HostExecutable]) -> Policy:
    policy = Policy(
        tuple(statements.rules), {**earlier, **statements.hosts}, tuple(statements.network)
    )
    resolve = resolver(working_directory(), os.path.expanduser("~"))
    for examples, source in statements.examples:
        sentence = examples.broken(policy, resolve)
        if sentence:
            raise RulesFileError(sentence, path=source.path, line=source.line)
    return policy


def read_text(path: str) -> str:
    """The text of a rules file; raises RulesFileError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(data) > SIZE_LIMIT:
        raise RulesFileError(f"larger than {SIZE_LIMIT} bytes", path=path)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RulesFileError("not UTF-8 text", path=path, line=line) from None


def _unreadable(path: str, error: OSError) -> RulesFileError:
    return RulesFileError(f"cannot be read: {error.strerror}", path=path)
