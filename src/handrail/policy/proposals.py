"""Which rule to offer with a question: «yes, and always for commands that start like this».

Some prefixes are never offered, because they would allow almost anything: shells, interpreters
with and without their eval flag, and a few programs that are many.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence

from handrail.policy.rules import Argv, Decision, Policy, PrefixRule, Words, strictest

_SHELLS = (
    "bash", "sh", "zsh", "dash", "ksh", "fish", "csh", "tcsh", "ash", "cmd", "cmd.exe", "pwsh",
    "powershell", "powershell.exe",
)  # fmt: skip
_SHELL_FLAGS = (
    "-c", "-lc", "-ic", "-lic", "-l", "-i", "-s", "-Command", "-EncodedCommand", "/c", "/C",
)  # fmt: skip
#: Interpreter -> the flags that make the next word a program.
_INTERPRETERS = {
    **dict.fromkeys(["python", "python2", "python3", "py", "pypy", "pypy3"], ("-c", "-m", "-")),
    **dict.fromkeys(("node", "nodejs"), ("-e", "--eval", "-p", "--print")),
    **dict.fromkeys(("ruby", "perl", "lua", "luajit", "julia"), ("-e", "-E")),
    "php": ("-r",),
    "R": ("-e",),
    "Rscript": ("-e",),
    "deno": ("eval", "run"),
    "bun": ("-e", "run", "x"),
    "osascript": ("-e",),
    "awk": (),
}
_MANY = (
    "env", "sudo", "doas", "su", "git", "rm", "xargs", "eval", "exec", "command", "nohup", "nice",
    "timeout",
)  # fmt: skip
_RUNNERS = ("npm", "pnpm", "yarn", "bun")

#: Prefixes that are refused as rules; only the whole prefix counts, a longer one is narrower.
TOO_BROAD: frozenset[Argv] = frozenset(
    {
        *((shell,) for shell in _SHELLS),
        *((shell, flag) for shell in _SHELLS for flag in _SHELL_FLAGS),
        *((program,) for program in _INTERPRETERS),
        *((program, flag) for program, flags in _INTERPRETERS.items() for flag in flags),
        *((program,) for program in _MANY),
        *((program, verb) for program in _RUNNERS for verb in ("run", "exec")),
        *((program,) for program in _RUNNERS),
    }
)


def is_too_broad(prefix: Sequence[str]) -> bool:
    """True if a rule with this prefix would allow almost anything."""
    if not prefix:
        return True
    return (posixpath.basename(prefix[0]), *prefix[1:]) in TOO_BROAD


def proposed_prefix(
    policy: Policy,
    commands: Iterable[Argv],
    asked: Sequence[Words],
    wanted: Sequence[str] | None,
) -> Argv | None:
    """The prefix to offer: the wanted one if it is narrow and settles all, else the first
    command that asks, whole."""
    if wanted and not is_too_broad(wanted):
        rule = PrefixRule(wanted[0], tuple((word,) for word in wanted[1:]))
        extended = policy.extended([rule])
        if all(strictest(extended.matches(command)) is Decision.ALLOW for command in commands):
            return tuple(wanted)
    return first_of(asked)


def first_of(commands: Sequence[Words]) -> Argv | None:
    """The first command that is known word by word."""
    for command in commands:
        words = tuple(word for word in command if word is not None)
        if words and len(words) == len(command):
            return words
    return None
