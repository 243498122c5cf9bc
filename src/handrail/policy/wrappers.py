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
from dataclasses import dataclass, replace

from handrail.policy.expansions import Variables, positional
from handrail.policy.glimpses import Glimpse, glimpses
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
    "gdb": _wrapper("x p c --command --pid"),
    "valgrind": _wrapper(),
    "busybox": _wrapper(),
    "toybox": _wrapper(),
    # another machine type, display, session or confinement
    **dict.fromkeys(("setarch", "arch"), _wrapper(skip=1)),
    **dict.fromkeys(("linux32", "linux64", "i386", "x86_64", "uname26"), _wrapper()),
    "xvfb-run": _wrapper("n e f p s w --server-num --server-args --error-file"),
    **dict.fromkeys(("dbus-run-session", "dbus-launch", "caffeinate", "proot"), _wrapper()),
    "firejail": _wrapper(),
    "catchsegv": _wrapper(),
    "rlwrap": _wrapper(),
    "unbuffer": _wrapper(),
    # a file that the shell reads as a script
    ".": _wrapper(),
    "source": _wrapper(),
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
    ("conda", "run"): _wrapper("n p --name --prefix --cwd"),
    ("mamba", "run"): _wrapper("n p --name --prefix --cwd"),
    ("pipx", "run"): _wrapper("--spec --python"),
    ("uvx", "run"): _wrapper(),
    ("perf", "stat"): _wrapper("e o p t"),
    ("perf", "record"): _wrapper("e o p t F c"),
    ("perf", "trace"): _wrapper("e o p t"),
    **dict.fromkeys(
        (("docker", "run"), ("podman", "run")),
        _wrapper(
            "e v w u p h l m --name --env --volume --workdir --user --publish --network --mount"
            " --entrypoint --label --memory --cpus --platform --hostname",
            skip=1,
        ),
    ),
    **dict.fromkeys(
        (("docker", "exec"), ("podman", "exec")), _wrapper("e w u --env --workdir --user", skip=1)
    ),
    ("kubectl", "exec"): _wrapper("n c --namespace --container", skip=1),
    **dict.fromkeys(
        (("tmux", "new-session"), ("tmux", "new"), ("tmux", "new-window"), ("tmux", "neww")),
        _wrapper("s n c t x y F e"),
    ),
    ("tmux", "split-window"): _wrapper("c t l p F e"),
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
    "npx": frozenset({"-c", "--call"}),
    "npm": frozenset({"-c", "--call"}),
    "tar": frozenset({"--checkpoint-action=exec", "--to-command", "--use-compress-program"}),
    "rsync": frozenset({"-e", "--rsh"}),
    "mapfile": frozenset({"-C"}),
    "readarray": frozenset({"-C"}),
    "tmux": frozenset({"-c"}),
}
_FIND_ACTIONS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
#: Programs that take a command from their stdin to run it later.
_READS_SCRIPT = frozenset({"at", "batch"})
_SOURCES = frozenset({".", "source"})
_STDIN_NAMES = frozenset({"/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})
_STDIN_FILES = tuple((name,) for name in _STDIN_NAMES)
#: The program that starts programs: ``/lib64/ld-linux-x86-64.so.2 /bin/rm``.
_LOADER = re.compile(r"ld(-linux[\w.-]*|-musl[\w.-]*|\.so|64)?\.so\.\d+|ld\.so")
_LOADER_OPTIONS = _wrapper(
    "--library-path --preload --audit --argv0 --inhibit-rpath --glibc-hwcaps-mask"
)
_SSH = _wrapper("b c D E e F I i J L l m O o p Q R S W w")
_GIT_PROGRAMS = frozenset({
    "core.pager", "core.editor", "core.sshcommand", "core.fsmonitor", "core.askpass",
    "sequence.editor", "diff.external", "credential.helper", "gpg.program",
})  # fmt: skip
#: Interpreters and the options that carry a program; none: any argument may.
CODE_OPTIONS: dict[str, frozenset[str]] = {
    "python": frozenset({"-c"}),
    "pypy": frozenset({"-c"}),
    "perl": frozenset({"-e", "-E"}),
    "ruby": frozenset({"-e"}),
    "node": frozenset({"-e", "-p", "--eval", "--print"}),
    "bun": frozenset({"-e", "--eval"}),
    "php": frozenset({"-r"}),
    "lua": frozenset({"-e"}),
    "tclsh": frozenset({"-c"}),
    "expect": frozenset({"-c"}),
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), frozenset[str]()),
}
_STRING = re.compile(r"""(["'`])((?:(?!\1)[^\\\n]|\\.)+)\1""")


@dataclass(frozen=True, slots=True)
class Sightings:
    """The commands an argv may start, each with «for certain»: False behind an unknown program,
    as in ``$SUDO rm x``.  ``clear`` is False if there may be others."""

    commands: tuple[tuple[Words, bool], ...]
    clear: bool


def sightings(argv: Words) -> Sightings:
    """Every command that ``argv`` may start, itself first."""
    seen: dict[Words, bool] = {}
    clear = _look(Glimpse(argv), {}, 0, seen, certain=True)
    return Sightings(tuple(seen.items()), clear)


def _look(
    command: Glimpse, variables: Variables, depth: int, seen: dict[Words, bool], *, certain: bool
) -> bool:
    """Note a command and whatever it wraps; True if nothing stayed hidden."""
    words = command.words
    if depth > DEPTH_LIMIT or len(seen) >= SIGHTING_LIMIT:
        return False
    if not words:
        return True
    if words[0] is None:
        _look(replace(command, words=words[1:]), variables, depth + 1, seen, certain=False)
        return False
    plain = command.stdin is None and not command.files
    if plain and (seen.get(words) or (words in seen and not certain)):
        return True
    seen[words] = certain or seen.get(words, False)
    clear = True
    variables = {**variables, **_set_before(words)}
    for inner in _wrapped(words):
        # What is fed to ``sudo sh`` is read by ``sh``.
        below = replace(command, words=inner)
        clear &= _look(below, variables, depth + 1, seen, certain=certain)
    for script, arguments in _scripts(command):
        found = glimpses(script, {**variables, **positional(arguments)})
        clear &= found.clear
        for glimpse in found.commands:
            clear &= _look(glimpse, found.variables, depth + 1, seen, certain=certain)
    for text in _strings_of_code(words):
        # A program in another language may hand any of its strings to a shell, or none.
        for glimpse in glimpses(text).commands:
            _look(glimpse, {}, DEPTH_LIMIT, seen, certain=False)
    return clear


def _set_before(words: Words) -> dict[str, tuple[str, ...]]:
    """``env X=rm sh -c '$X y'``"""
    pairs = [word.partition("=") for word in words if word is not None and _ASSIGNMENT.match(word)]
    return {name.rstrip("+"): (value,) for name, _, value in pairs if value}


def _wrapped(words: Words) -> Iterator[Words]:
    """The commands that stand as words behind this program."""
    name = posixpath.basename(words[0] or "")
    if name == "find":
        yield from _find_commands(words)
    if name in ("fd", "fdfind"):
        yield from _behind_any(words, ("-x", "-X", "--exec", "--exec-batch"))
    if name == "bwrap":
        yield from _behind_flags(words)
    if _LOADER.fullmatch(name):
        yield _behind_options(words[1:], _LOADER_OPTIONS)
    if name == "screen":
        yield _behind_options(words[1:], _wrapper("S c s t h e T"))
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


def _behind_any(words: Words, options: tuple[str, ...]) -> Iterator[Words]:
    for at, word in enumerate(words):
        if word in options:
            yield tuple(words[at + 1 :])


def _behind_flags(words: Words) -> Iterator[Words]:
    """What may be the command of a program with more options than can be known: any tail."""
    for at in range(2, min(len(words), 200)):
        before, word = words[at - 1], words[at]
        if word is not None and not word.startswith("-") and before is not None:
            yield words[at:]


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


def _scripts(command: Glimpse) -> Iterator[tuple[str, Words]]:
    """The shell scripts among the words of a command, or on its stdin, each with its arguments."""
    words, stdin = command.words, command.stdin
    name = posixpath.basename(words[0] or "")
    if name in _SHELLS:
        yield from _shell_scripts(words, stdin)
    elif name in ("eval", "watch", "hyperfine"):
        yield " ".join(word for word in words[1:] if word is not None), ()
    elif name == "trap":
        actions = [word for word in words[1:] if word != "--"]
        if actions and actions[0]:
            yield actions[0], ()
    elif name == "ssh":
        yield from ((script, ()) for script in _ssh_scripts(words))
    elif name == "git":
        yield from ((script, ()) for script in _git_scripts(words))
    elif stdin is not None and (
        name in _READS_SCRIPT or (name in _SOURCES and words[1:2] in _STDIN_FILES)
    ):
        yield stdin, words[1:]
    if name in _SHELLS or name in _SOURCES:
        yield from ((text, ()) for text in command.files)
    for option in SCRIPT_OPTIONS.get(name, ()):
        yield from ((script, ()) for script in _option_scripts(words, option))


def _option_scripts(words: Words, option: str) -> Iterator[str]:
    short = len(option) == 2
    for at, word in enumerate(words):
        following = words[at + 1] if at + 1 < len(words) else None
        if word is None or len(word) < 2 or word[0] != "-":
            continue
        joined = short and word[1] != "-" and word[1:-1].isalpha() and word.endswith(option[1])
        if (word == option or joined) and following:
            yield following
        elif word.startswith(option) and word != option:
            yield word[len(option) :].removeprefix("=")


def _ssh_scripts(words: Words) -> Iterator[str]:
    behind = _behind_options(words[1:], _SSH)
    if len(behind) > 1:
        yield " ".join(word for word in behind[1:] if word is not None)


def _git_scripts(words: Words) -> Iterator[str]:
    """``git -c alias.x='!rm y' x``, ``git -c core.pager=rm log``"""
    for at, word in enumerate(words[1:], 1):
        if word == "-c" and at + 1 < len(words):
            key, _, value = (words[at + 1] or "").partition("=")
            if value.startswith("!"):
                yield value[1:]
            elif key.lower() in _GIT_PROGRAMS:
                yield value


def _strings_of_code(words: Words) -> Iterator[str]:
    """The strings in the program text that an interpreter is given as an argument."""
    name = posixpath.basename(words[0] or "").rstrip("0123456789.")
    if name not in CODE_OPTIONS:
        return
    options = CODE_OPTIONS[name]
    for at, word in enumerate(words[1:], 1):
        before = words[at - 1] or ""
        given = before in options or (before.startswith("-") and before[-1:] in _letters(options))
        if word is not None and (given or not options):
            for found in _STRING.finditer(word):
                yield found[2]


def _letters(options: frozenset[str]) -> set[str]:
    return {option[1] for option in options if len(option) == 2}


def _shell_scripts(words: Words, stdin: str | None) -> Iterator[tuple[str, Words]]:
    has_script = False
    rest = iter(range(1, len(words)))
    for at in rest:
        word = words[at]
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
                yield word, words[at + 1 :]
            elif stdin is not None and (word in _STDIN_NAMES or "-s" in words):
                yield stdin, (None, *words[at + 1 :])
            return
    if stdin is not None and not has_script:
        yield stdin, ()
