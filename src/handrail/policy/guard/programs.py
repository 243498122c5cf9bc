"""Programs and variables that can run something, for the guard; the names are in ``tables.txt``.

A program that is in none of these tables is ordinary: whatever its arguments are, it runs no
program that they name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from handrail.policy.guard.words import Word
from handrail.policy.programs import option_table, verb_wrappers, wrappers
from handrail.policy.tables import entries, names, words

DECLARATIONS = frozenset({"declare", "typeset", "local", "export", "readonly"})
#: Never read: editors, debuggers, terminals, schedulers, and other evaluators.
OPAQUE = names("opaque")

Check = Callable[[Sequence[Word]], bool]


def _any(words: Sequence[Word]) -> bool:
    return True


def _without(*prefixes: str) -> Check:
    def check(words: Sequence[Word]) -> bool:
        values = [word.value for word in words[1:]]
        return not any(value is None or value.startswith(prefixes) for value in values)

    return check


def _git_lists(words: Sequence[Word]) -> bool:
    verb, rest = words[1].value if len(words) > 1 else None, words[2:]
    if verb == "rev-parse":
        return all(re.fullmatch(r"--[\w-]+|HEAD|@", word.value or "") for word in rest)
    if verb in ("diff", "log"):
        lists = (
            ("--name-only", "--name-status") if verb == "diff" else ("--format=%H", "--format=%h")
        )
        return any(word.value in lists for word in rest) and len(rest) <= 3
    return verb in ("ls-files", "status", "branch") and _without("--format", "-c")(words)


def _names_files(words: Sequence[Word]) -> bool:
    """``grep -rl``, ``rg --files``: names of files, and not what is in them."""
    options = [word.value or "" for word in words[1:]]
    return any(
        re.fullmatch(r"-[A-Za-z]*[lL][A-Za-z]*|--files(?:-with(?:out)?-match(?:es)?)?", option)
        for option in options
    ) and not any(option.startswith("--label") for option in options)


def names_a_program(words: Sequence[Word]) -> bool:
    """``which X``, ``command -v X``: prints the path of a program."""
    options = [word.value for word in words[1:-1]]
    return {
        "which": not options,
        "command": options == ["-v"],
        "type": options in (["-p"], ["-P"]),
    }.get(words[0].value or "", False) and words[-1].value is not None


#: Commands that print existing things: paths, mostly.
LISTERS: dict[str, Check] = {
    **dict.fromkeys(
        ("ls", "pwd", "nproc", "whoami", "id", "hostname", "uname", "mktemp", "wc"), _any,
    ),
    "find": _without("-printf", "-exec", "-ok", "-fprint"),
    "fd": _without("-x", "-X", "--exec", "--format"),
    "grep": _names_files,
    "rg": _names_files,
    "git": _git_lists,
    "seq": _without("-f", "-s", "--f", "--s"),
}  # fmt: skip
#: Programs that print a path which they make of their words.
PATH_PRINTERS = frozenset({"dirname", "realpath", "basename"})
FILTERS = frozenset({"sort", "uniq", "head", "tail", "grep", "wc", "cat", "tac"})


def filters(words: Sequence[Word]) -> bool:
    """True if this passes on what it is fed, and prints nothing of files or of its own words."""
    name = words[0].value if words else None
    operands = [
        word
        for word, before in zip(words[1:], words, strict=False)
        if not (word.value or "").startswith("-")
        and before.value not in ("-n", "-c", "-k", "-t", "-e", "-A", "-B", "-C", "-m")
    ]
    has_pattern = any(
        re.match(r"-[a-zA-Z]*[ef]|--(?:regexp|file)", w.value or "") for w in words[1:]
    )
    return name in FILTERS and len(operands) <= (name == "grep" and not has_pattern)


def _counts(words: Sequence[Word]) -> bool:
    """``grep -c PATTERN [FILE]`` prints a number; for several files it prints the names."""
    options = [word.value for word in words[1:] if (word.value or "").startswith("-")]
    counts = any(option in ("-c", "-ic", "-vc", "-cv", "-ci") for option in options)
    quiet = all(re.fullmatch(r"-[civEFwx]+", option or "") for option in options)
    return counts and quiet and len(words) - len(options) <= 3 and all(word.one for word in words)


def _prints_seconds(words: Sequence[Word]) -> bool:
    return (
        all(re.fullmatch(r"\+[%sNYmdHMSj]+|-u", word.value or "") for word in words[1:])
        and len(words) > 1
    )


def _has(option: str) -> Check:
    return lambda words: any(word.value == option for word in words[1:])


def _reads_stdin(words: Sequence[Word]) -> bool:
    return all((word.value or "").startswith("-") for word in words[1:])


NUMBER_PRINTERS: dict[str, Check] = {
    "wc": _reads_stdin,
    "nproc": _any,
    "grep": _counts,
    "date": _prints_seconds,
    "id": _has("-u"),
}


#: Programs that run the command behind their own words.
LAUNCHERS = wrappers("launchers")
#: Launchers with a verb: ``uv run X``.
VERB_LAUNCHERS = verb_wrappers("verb launchers")
#: Verbs of ordinary programs that run what cannot be seen.
OPAQUE_VERBS = frozenset(
    (program, verb) for program, verbs in entries("opaque verbs").items() for verb in verbs
)

COMPILERS = ("gcc", "g++", "cc", "c++", "clang", "clang++", "cpp", "c89", "c99", "gfortran", "gnat")
#: Variables with options of compilers, and the options that run something.
FLAG_VARIABLES = re.compile(r"\w*(?:FLAGS|LIBS|LDLIBS)")
RUNNING_FLAGS = re.compile(
    r"(?:^|[\s=])(?:-B|-wrapper|-fplugin|-?-specs|-fuse-ld|-Xclang|@|--ld-path)|linker"
)

#: Options that run something; a long one counts from its shortest abbreviation on.
RUNNING_OPTIONS = option_table("running options")
#: ``find`` runs these, or writes files of any name by them.
FIND_ACTIONS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})

#: Settings of git and of ssh that run nothing.
GIT_CONFIG_KEYS = re.compile("|".join(words("git config keys")))
_SSH = "|".join(words("ssh settings"))
SSH_SETTINGS = re.compile(rf"(?:{_SSH})[= ][\w./-]+", re.IGNORECASE)
GIT_OPTIONS = words("git options")
GIT_OPAQUE = names("git opaque")
GIT_VERBS = names("git verbs")

SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ash"})
#: Interpreters that are given a file; their program texts on the command line are not read.
INTERPRETERS = names("file interpreters")
#: Tools that run what the project's own files say.
PROJECT_RUNNERS = names("project runners")
PROJECT_FILES = names("project files")
PROGRAM_FILE = re.compile(
    r"\.(?:py|pth|js|mjs|cjs|ts|tsx|jsx|sh|bash|zsh|mk|go|rs|c|h|cc|cpp|hpp|java|kt|rb|pl|pm|php|lua"
    r"|ninja|cmake|gradle|awk|sed|so|node|ini|toml|cfg)$"
)
#: These make a file whose name is that of another without its end.
DECOMPRESSORS = names("decompressors")
#: Whatever these are given may become a file of that name.
WRITERS = names("writers") | DECOMPRESSORS
#: Writing to these has no effect on files.
HARMLESS_TARGETS = frozenset({"/dev/null", "/dev/stderr", "/dev/stdout", "/dev/tty"})

#: Variables that tell shells, loaders and programs what to run or load.
LIVE_VARIABLES = re.compile("|".join(words("live variables")), re.ASCII)
#: Values of such variables that run nothing.
QUIET_VALUES = names("quiet values") | {""}
QUIET_VARIABLES = re.compile(
    r"GIT_(?:AUTHOR|COMMITTER)_(?:NAME|EMAIL|DATE)|GIT_TERMINAL_PROMPT|GIT_OPTIONAL_LOCKS"
)
#: A function must not redefine these names, on which the guard relies.
RELIED_ON = frozenset({
    *LISTERS, *FILTERS, *NUMBER_PRINTERS, *LAUNCHERS, *RUNNING_OPTIONS, *WRITERS, *SHELLS,
    *INTERPRETERS, *DECLARATIONS, "sed", "awk", "perl", "python", "python3", "make", "read",
    "printf",
    "test", "set", "eval", "trap", "source", "unset", "mapfile", "cd", "shift", "echo",
})  # fmt: skip
