"""What a shell session writes to its shell: the start, one command, an end mark.  Pure.

The shell reads its script from stdin, so that no process is started for a command: each one is
evaluated in the shell itself, with a stdin of its own.  After it the shell prints an end mark on
copies of its first stdout and stderr, with the status and the directory.

A timeout sends SIGINT to the shell's process group.  A POSIX shell that is interactive goes back to
its script then, but drops what it has read of it.  An interactive bash does too, and talks about
its jobs on stderr, so bash is not interactive here: its trap returns from the sourced script, and
a DEBUG trap from all functions around it.  A background process without our streams, the
*monitor*, ends the shell's children: by SIGTERM on SIGURG, by SIGKILL on SIGWINCH, as
``shell_interrupt.py`` tells it.  The default action of both signals is to be ignored, so they
disturb nothing else in the group.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from handrail.errors import UsageError

#: Separates an end mark from output; never the start of one alone.
EDGE = b"\x1e"

#: Signals to the group after which the monitor ends the children of the shell.
TERM_CHILDREN, KILL_CHILDREN = "urg", "winch"

_MONITOR = """\
( ( kids() { k=; read -r k </proc/$1/task/$1/children; }
end() { kids $2; for c in $k; do end $1 $c; done; kill -$1 $2; }
all() { kids $$; for c in $k; do end $1 $c; done; }
trap 'all TERM' URG; trap 'all KILL' WINCH
while :; do sleep 1000000 & s=$!; while kill -0 $s; do wait $s; done; done
) </dev/null >/dev/null 2>&1 @1>&- @2>&- & )
"""
_START = """\
exec @1>&1 @2>&2
__handrail_was() { return $1; }
__handrail_end() { command printf '\\036%s:%s %.4096s:%s\\036' "$1$2" "$?" "$PWD" "$1$2" >&@1
command printf '\\036%s::%s\\036' "$1$2" "$1$2" >&@2; }
"""
#: Without them no command would have an end: `unset -f $(compgen -A function)` leaves them.
_BASH_KEEP = "readonly -f __handrail_was __handrail_end\n"
_BASH_TRAP = (
    "trap 'set -T; trap \"if [ \\${#BASH_SOURCE[@]} = 0 ]; then trap - DEBUG; set +T;"
    " else return 130; fi\" DEBUG; return 130 2>/dev/null' INT\n"
)
#: bash leaves its wait for a child by our trap, without putting back the handler it had replaced.
_BASH_RESTORE = 'eval "$(trap -p INT)"\n'
#: bash 5.2 exits at a `$(` without its end, also in ``eval``, unless it is interactive.
_BASH_CHECK = '"$BASH" -nc "$__handrail" @1>&- @2>&- </dev/null || __handrail="__handrail_was 2"\n'
_QUOTED_IN_INPUT = re.compile(rb"[^\n\x20-\x26\x28-\x5b\x5d-\x7e]")


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of shell: its arguments and the parts of its script."""

    arguments: tuple[str, ...]
    start: str
    evaluate: str
    resume: str = ""
    #: Replaces a command that does not parse, after the message, by one that fails with 2.
    check: str = ""
    #: Changes of its environment; None removes a variable.
    env: tuple[tuple[str, str | None], ...] = ()
    #: It can be given any bytes as input of a command.
    binary_input: bool = False


def _numbered(text: str, first: int) -> str:
    for place in (1, 2, 3):
        text = text.replace(f"@{place}", str(first + place - 1))
    return text


BASH = Dialect(
    ("--norc", "--noprofile"),
    _numbered(_START + _BASH_KEEP + _BASH_TRAP + _MONITOR, 40),
    _numbered(". /dev/fd/@3 @3<<<'eval \"$__handrail\" @1>&- @2>&- @3<&-'", 40),
    _BASH_RESTORE,
    _numbered(_BASH_CHECK, 40),
    binary_input=True,
)
SH = Dialect(
    ("-i", "+m"),
    "PS1= PS2=\n" + _numbered(_START + _MONITOR, 8),  # one digit is all that every sh knows
    _numbered('command eval "$__handrail" @1>&- @2>&-', 8),
    env=(("ENV", None),),
)


def begin(dialect: Dialect, token: str) -> bytes:
    """The start of the session and its first end mark."""
    return dialect.start.encode() + end(token)


def command(
    dialect: Dialect, script: bytes, token: str, *, status: int, stdin: bytes | None
) -> bytes:
    """One command and its end mark; ``status`` is ``$?`` before it."""
    was = f"case $- in *e*) ;; *) __handrail_was {status};; esac\n" if status else ""
    given, rest = _stdin(dialect, stdin, token)
    check = dialect.check if script.count(b"(") != script.count(b")") else ""
    line = f"{check}{was}{dialect.evaluate} ".encode() + given
    text = b"{ __handrail=" + quoted(script) + b"; } 2>/dev/null\n"
    return text + line + b"\n" + rest + end(token)


def resume(dialect: Dialect, token: str) -> bytes:
    """After an interrupt: put right what that has left, and one more end mark."""
    return end(token, dialect.resume)


def end(token: str, then: str = "") -> bytes:
    """An end mark.  In the script it is in two parts, for ``set -v`` prints that on stderr; the
    redirection keeps ``set -x`` from printing it."""
    return f"{{ __handrail_end {token[:4]} {token[4:]}; }} 2>/dev/null\n{then}".encode()


def _stdin(dialect: Dialect, data: bytes | None, token: str) -> tuple[bytes, bytes]:
    """A redirection, and the lines that follow it."""
    if not data:
        return b"</dev/null", b""
    if dialect.binary_input:
        text = _QUOTED_IN_INPUT.sub(lambda found: b"\\0%03o" % found[0][0], data)
        return b"< <(command printf %b '" + text + b"')", b""
    return b"<<'" + token.encode() + b"'", data + token.encode() + b"\n"


def quoted(word: bytes) -> bytes:
    """A word of a script that is taken literally."""
    return b"'" + word.replace(b"'", b"'\\''") + b"'"


def encoded(command: object) -> bytes:
    """A command as the shell is given it; raises UsageError."""
    if not isinstance(command, str | bytes):
        raise UsageError(
            f"a command of a shell session is text, not {command!r}; for a list of words use"
            " shlex.join, or run of the workspace"
        )
    try:
        script = os.fsencode(command)
    except UnicodeEncodeError:
        raise UsageError(f"{command!r} holds a lone surrogate that stands for no byte") from None
    if b"\0" in script:
        raise UsageError("the command contains NUL, which no shell can be given")
    return script


def check_input(program: str, stdin: bytes | None) -> None:
    """Raise UsageError for input that this shell cannot be given."""
    if program == "sh" and stdin and (b"\0" in stdin or not stdin.endswith(b"\n")):
        raise UsageError(
            "sh takes only lines as input: text without NUL that ends with a newline; use"
            " shell('bash'), or a file"
        )
