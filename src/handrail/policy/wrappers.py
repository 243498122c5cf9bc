"""Programs that run other programs: what stands behind ``sudo``, ``timeout``, ``bash -c``, ...

``sightings`` gives every command an argv may start, itself first, through wrappers and scripts
of any nesting (bounded).  Like ``glimpses.py`` it serves forbid and ask only; what it misses is
caught by the sandbox, what it sees too much costs a question.

The wrappers are data: which options take a value, how many words come before the command.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

from handrail.policy.glimpses import glimpses
from handrail.policy.rules import Words

#: Wrappers inside wrappers are followed this far; deeper ones leave the picture unclear.
DEPTH_LIMIT = 32
#: So many different commands are noted for one argv.
SIGHTING_LIMIT = 5000
#: Shells by file name; more than the strict reader takes apart, since seeing is free here.
_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh", "mksh", "ash", "rbash", "fish"})
#: Letters that may stand in one word with ``-c`` before a script.
_SHELL_VALUE_FLAGS = frozenset("oO")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")


@dataclass(frozen=True, slots=True)
class Wrapper:
    """How a program's own words end and the command's begin."""

    #: Options whose value is the next word: single letters, and long names with their dashes.
    values: frozenset[str] = frozenset()
    #: Words of its own before the command, options apart.
    skip: int = 0
    #: NAME=VALUE words may stand before the command.
    assignments: bool = False
    #: These options mean that nothing is run.
    inert: frozenset[str] = frozenset()
    #: The program adds words of its own behind the command.
    appends: bool = False


def _wrapper(values: str = "", skip: int = 0, inert: str = "", **more: bool) -> Wrapper:
    return Wrapper(frozenset(values.split()), skip, inert=frozenset(inert.split()), **more)


WRAPPERS: dict[str, Wrapper] = {
    # what the shell itself offers; the reserved words turn up here around syntax errors
    **dict.fromkeys(("!", "{", "if", "then", "else", "elif", "while", "until", "do"), _wrapper()),
    "builtin": _wrapper(),
    "command": _wrapper(inert="-v -V"),
    "coproc": _wrapper(),
    "exec": _wrapper("a"),
    "time": _wrapper("f o --format --output"),
    # another user, another environment, another root
    "sudo": _wrapper(
        "u g h p C r t T U D R --user --group --chdir --host --prompt", assignments=True
    ),
    "doas": _wrapper("u C"),
    "pkexec": _wrapper("--user"),
    "runuser": _wrapper("u g G --user --group"),
    "env": _wrapper("u C --unset --chdir", assignments=True),
    "chroot": _wrapper(skip=1),
    "unshare": _wrapper("S G --setuid --setgid --root --wd"),
    "nsenter": _wrapper("t S G --target --setuid --setgid"),
    "fakeroot": _wrapper("l s i b"),
    # scheduling, limits, tracing
    "nice": _wrapper("n --adjustment"),
    "ionice": _wrapper("c n --class --classdata"),
    "chrt": _wrapper("T P D", skip=1),
    "taskset": _wrapper(skip=1),
    "numactl": _wrapper("i N m C p"),
    "timeout": _wrapper("k s --kill-after --signal", skip=1),
    "stdbuf": _wrapper("i o e --input --output --error"),
    "nohup": _wrapper(),
    "setsid": _wrapper(),
    "prlimit": _wrapper(),
    "flock": _wrapper("w E --timeout --wait --conflict-exit-code", skip=1),
    "systemd-run": _wrapper("p u E t --property --unit --setenv"),
    "strace": _wrapper("e o p s a b E I O P S u X"),
    "ltrace": _wrapper("e o p s a n u"),
    "busybox": _wrapper(),
    "toybox": _wrapper(),
    # one command for many arguments
    "xargs": _wrapper(
        "I n P L s d E a --max-args --max-procs --delimiter --arg-file", appends=True
    ),
    "parallel": _wrapper("j I n N a S --jobs --colsep", appends=True),
    "watch": _wrapper("n --interval"),
    "entr": _wrapper(),
    # project runners
    "npx": _wrapper("p c --package"),
}
#: The same with a verb: ``uv run X``.
VERB_WRAPPERS: dict[tuple[str, str], Wrapper] = {
    ("uv", "run"): _wrapper("p --with --python --project --directory --env-file --extra --group"),
    ("poetry", "run"): _wrapper(),
    ("pipenv", "run"): _wrapper(),
    ("hatch", "run"): _wrapper(),
    ("bundle", "exec"): _wrapper(),
    ("npm", "exec"): _wrapper("--package"),
    ("pnpm", "exec"): _wrapper(),
    ("yarn", "exec"): _wrapper(),
}
#: Programs with verbs, whose own options come first: ``git -C x push`` is a ``git push``, too.
VERB_PROGRAMS: dict[str, Wrapper] = {
    "git": _wrapper("C c --git-dir --work-tree --namespace --exec-path --config-env"),
    "docker": _wrapper("c H l --config --context --host --log-level"),
    "podman": _wrapper("c --connection --url --root --runroot"),
    "kubectl": _wrapper("n s --namespace --context --cluster --kubeconfig --server --user"),
    "helm": _wrapper("n --namespace --kube-context --kubeconfig"),
    "terraform": _wrapper(),
    "gh": _wrapper("R --repo --hostname"),
    "npm": _wrapper("C w --prefix --workspace --registry"),
    "pnpm": _wrapper("C F --dir --filter"),
    "yarn": _wrapper("--cwd"),
    "cargo": _wrapper("C Z --config --color"),
    "uv": _wrapper("--directory --project --config-file --cache-dir"),
    "pip": _wrapper("--python --log --proxy --cache-dir"),
    "systemctl": _wrapper("H M p t --host --machine --property --type"),
}
#: Options of these programs that carry a whole script.
SCRIPT_OPTIONS: dict[str, frozenset[str]] = {
    "su": frozenset({"-c", "--command"}),
    "runuser": frozenset({"-c", "--command"}),
    "script": frozenset({"-c", "--command"}),
    "flock": frozenset({"-c", "--command"}),
    "env": frozenset({"-S", "--split-string"}),
    "nix-shell": frozenset({"--run", "--command"}),
}
_FIND_ACTIONS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})


@dataclass(frozen=True, slots=True)
class Sightings:
    """The commands an argv may start, each with «for certain»: False behind an unknown program,
    as in ``$SUDO rm x``.  ``clear`` is False if there may be others."""

    commands: tuple[tuple[Words, bool], ...]
    clear: bool


def sightings(argv: Words) -> Sightings:
    """Every command that ``argv`` may start, itself first."""
    seen: dict[Words, bool] = {}
    clear = _look(argv, None, 0, seen, certain=True)
    return Sightings(tuple(seen.items()), clear)


def _look(
    words: Words, stdin: str | None, depth: int, seen: dict[Words, bool], *, certain: bool
) -> bool:
    """Note a command and whatever it wraps; True if nothing stayed hidden."""
    if depth > DEPTH_LIMIT or len(seen) >= SIGHTING_LIMIT:
        return False
    if not words:
        return True
    if words[0] is None:
        _look(words[1:], stdin, depth + 1, seen, certain=False)
        return False
    if stdin is None and (seen.get(words) or (words in seen and not certain)):
        return True
    seen[words] = certain
    clear = True
    for inner in _wrapped(words):
        clear &= _look(inner, None, depth + 1, seen, certain=certain)
    for script in _scripts(words, stdin):
        found = glimpses(script)
        clear &= found.clear
        for glimpse in found.commands:
            clear &= _look(glimpse.words, glimpse.stdin, depth + 1, seen, certain=certain)
    return clear


def _wrapped(words: Words) -> Iterator[Words]:
    """The commands that stand as words behind this program."""
    name = posixpath.basename(words[0] or "")
    if name == "find":
        yield from _find_commands(words)
    if name == "coproc" and words[2:3] == ("{",):  # coproc NAME { X; }
        yield words[3:]
    if name in VERB_PROGRAMS:
        inner = _behind_options(words[1:], VERB_PROGRAMS[name])
        if inner and inner != words[1:]:
            yield (words[0], *inner)
    verb = words[1] if len(words) > 1 else None
    wrapper = WRAPPERS.get(name)
    rest = words[1:]
    if wrapper is None and verb is not None and (name, verb) in VERB_WRAPPERS:
        wrapper, rest = VERB_WRAPPERS[name, verb], words[2:]
    if wrapper is None:
        return
    inner = _behind_options(rest, wrapper)
    if inner:
        yield (*inner, None) if wrapper.appends else inner


def _behind_options(words: Words, wrapper: Wrapper) -> Words:
    skip, at = wrapper.skip, 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            return words[at + skip :]
        if word is not None and word.startswith("-") and len(word) > 1:
            if word in wrapper.inert:
                return ()
            at += _takes_next(word, wrapper.values)
        elif word is not None and wrapper.assignments and _ASSIGNMENT.match(word):
            continue
        elif skip:
            skip -= 1
        else:
            return words[at - 1 :]
    return ()


def _takes_next(option: str, values: frozenset[str]) -> bool:
    """True if the value of this option is the next word."""
    if option.startswith("--"):
        return option in values
    for at, letter in enumerate(option[1:], 2):
        if letter in values:
            return at == len(option)
    return False


def _find_commands(words: Words) -> Iterator[Words]:
    for at, word in enumerate(words):
        if word in _FIND_ACTIONS:
            rest = list(words[at + 1 :])
            ends = [rest.index(mark) for mark in (";", "+") if mark in rest]
            yield tuple(None if part == "{}" else part for part in rest[: min(ends, default=None)])


def _scripts(words: Words, stdin: str | None) -> Iterator[str]:
    """The shell scripts among the words of a command, or on its stdin."""
    name = posixpath.basename(words[0] or "")
    if name in _SHELLS:
        yield from _shell_scripts(words, stdin)
    elif name in ("eval", "watch"):
        yield " ".join(word for word in words[1:] if word is not None)
    elif name == "trap":
        actions = [word for word in words[1:] if word != "--"]
        if actions and actions[0]:
            yield actions[0]
    for option in SCRIPT_OPTIONS.get(name, ()):
        for at, word in enumerate(words):
            following = words[at + 1] if at + 1 < len(words) else None
            if word == option and following:
                yield following
            elif word and word.startswith(option) and word != option:
                yield word[len(option) :].removeprefix("=")


def _shell_scripts(words: Words, stdin: str | None) -> Iterator[str]:
    has_script = False
    rest = iter(words[1:])
    for word in rest:
        if word is None:
            continue
        if word.startswith(("-", "+")) and word not in ("-", "--"):
            if word.startswith("--"):
                continue
            has_script |= word.startswith("-") and "c" in word
            if _SHELL_VALUE_FLAGS & set(word[1:]):
                next(rest, None)
        elif word not in ("-", "--"):
            if has_script:
                yield word
            return
    if stdin is not None and not has_script:
        yield stdin
