"""«Did you mean»: the command or option that a mistyped word is nearest to."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator

_CHOICE = re.compile(r"invalid choice: '(?P<word>[^']*)' \(choose from (?P<choices>.*)\)$")
_UNKNOWN = "unrecognized arguments: "
#: What other programs call a command -> ours.
_ELSEWHERE = {
    "help": "--help",
    "version": "--version",
    "list": "ps",
    "ls": "ps",
    "status": "ps",
    "rm": "prune",
    "copy": "cp",
    "scp": "cp",
    "upload": "cp",
    "download": "cp",
    "bash": "shell",
    "sh": "shell",
}


def improved(parser: argparse.ArgumentParser, message: str) -> str:
    """A message of argparse, with the word that was meant if there is one like it."""
    found = _CHOICE.search(message)
    if found is not None:
        choices = [word.strip().strip("'") for word in found["choices"].split(",")]
        meant = nearest(found["word"], choices)
        if message.startswith("argument COMMAND"):
            if parser.prog == "handrail":
                meant = _ELSEWHERE.get(found["word"], meant)
            all_of_them = ", ".join(choices)
            hint = f"did you mean `{meant}`?" if meant else f"they are {all_of_them}"
            return f"there is no command `{found['word']}`; {hint}"
        if meant:
            return f"{message}; did you mean `{meant}`?"
        return message + _no_value_needed(parser, message)
    if message.startswith(_UNKNOWN):
        for word in message.removeprefix(_UNKNOWN).split():
            name = word.partition("=")[0]
            meant = nearest(name, _options(parser)) if name.startswith("-") else None
            if meant:
                return f"there is no option {name}; did you mean {meant}?"
    return message


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like another one, if any is like it."""
    from difflib import get_close_matches  # only after a mistake

    found = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def _no_value_needed(parser: argparse.ArgumentParser, message: str) -> str:
    """A hint if the option takes no value too: the word may be the command behind it."""
    name = message.removeprefix("argument ").partition(":")[0]
    if all(action.nargs != argparse.REMAINDER for action in parser._actions):  # noqa: SLF001
        return ""  # no command follows
    for action in parser._actions:  # noqa: SLF001 (argparse has no other way)
        if name in action.option_strings and action.nargs == "?":
            return f"; {name} alone needs a -- before the command"
    return ""


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The options of a parser and of the commands below it that have arguments."""
    for action in parser._actions:  # noqa: SLF001 (argparse has no other way)
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for below in action.choices.values():
                yield from _options(below)
