"""How a failure is reported: a sentence on stderr, or with ``--json`` one object on stdout.

On stdout, because the program that asked for JSON reads there: it gets either the
answer or this, ``{"error": {"kind", "message", "exitCode", "fields"}}``.  ``kind`` is the error's
name in ``handrail.errors`` as in ``sandboxUnavailable``, ``fields`` is what it carries.
"""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn, TypeGuard

from handrail.cli.stdio import OutputFailed, printable, say
from handrail.errors import (
    ExecutorSpawnFailed,
    HandrailError,
    SandboxUnavailable,
    UsageError,
)

#: The exit code of argparse.
WRONG_USAGE = 2
_json = False


def use_json(wanted: bool) -> None:
    """Set whether failures are reported as JSON from now on."""
    global _json
    _json = wanted


def wanted_as_json() -> bool:
    """Whether failures are reported as JSON."""
    return _json


def asks_for_json(words: list[str]) -> bool:
    """Whether ``--json`` is among handrail's own arguments, as far as that can be seen early."""
    ours = words[: words.index("--")] if "--" in words else words
    return "--json" in ours


def tell(error: BaseException, code: int, prefix: str = "handrail: ") -> int:
    """Report a failure; returns the exit code unchanged."""
    if _json:
        print(as_json(error, code), flush=True)
    else:
        say(f"{prefix}{sentence(error)}")
    return code


def sentence(error: BaseException) -> str:
    """The sentence of an error: what failed, why, and what to do."""
    if _is_systems(error):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    if isinstance(error, ExecutorSpawnFailed):
        return error.detail  # "failed to spawn" says no more
    return str(error)


def as_json(error: BaseException, code: int) -> str:
    """The object, in one line."""
    import json  # a starting server does not need it

    fields = {name: value for name, value in vars(error).items() if not name.startswith("_")}
    if isinstance(error, HandrailError) and error.detail != str(error):
        fields = {"detail": error.detail, **fields}
    if isinstance(error, OSError) and not isinstance(error, HandrailError):
        fields = {"errno": error.errno, "path": error.filename, **fields}
    told = {
        "kind": kind(error),
        "message": " ".join(sentence(error).split()),
        "exitCode": code,
        "fields": fields,
    }
    return json.dumps({"error": told}, default=_shown)


def kind(error: BaseException) -> str:
    """``SandboxUnavailable`` as ``sandboxUnavailable``, ``UsageError`` as ``usage``."""
    if _is_systems(error):
        return "os"
    if isinstance(error, SandboxUnavailable):  # whichever executor met it
        return "sandboxUnavailable"
    name = type(error).__name__.removesuffix("Error")
    return name[:1].lower() + name[1:]


def _is_systems(error: BaseException) -> TypeGuard[OSError]:
    """Whether it is an error of the operating system and of nothing here."""
    return isinstance(error, OSError) and not isinstance(error, OutputFailed | HandrailError)


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)


class Interrupted(Exception):
    """A signal (``signal``, its number) ended the command before there was an answer."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by signal {number} before there was an answer")
        self.signal = number


#: Lines of a usage that is printed before an error.
_SHORT_USAGE = 5


class Parser(argparse.ArgumentParser):
    """A parser that reports its errors like the rest."""

    _prints = False

    def _get_formatter(self) -> argparse.HelpFormatter:
        """A formatter; the width of the terminal is found out for one that prints.

        argparse wants one for each argument that is added, and imports ``shutil`` to measure.
        """
        if self._prints:
            return super()._get_formatter()
        return self.formatter_class(prog=self.prog, width=80)  # type: ignore[call-arg]

    def format_usage(self) -> str:
        """The usage, as wide as the terminal."""
        self._prints = True
        return super().format_usage()

    def format_help(self) -> str:
        """The help, as wide as the terminal."""
        self._prints = True
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Report it and exit with 2."""
        from handrail.cli import suggestion

        message = suggestion.improved(self, message)
        if not _json:
            message = printable(message)
            usage = self.format_usage()
            if usage.count("\n") <= _SHORT_USAGE:
                super().error(message)
            # The message would be below a screen of options.
            self.exit(WRONG_USAGE, f"{self.prog}: error: {message}\nsee {self.prog} --help\n")
        tell(UsageError(f"{message}; see {self.prog} --help"), WRONG_USAGE)
        sys.exit(WRONG_USAGE)
