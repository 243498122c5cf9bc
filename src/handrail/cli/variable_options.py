"""``--inherit-env`` and ``--secret``: the variables of commands, and which are masked."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable

from handrail.errors import UsageError
from handrail.secret_file import read_secret


def add_variables(parser: argparse.ArgumentParser) -> None:
    """Add both options."""
    parser.add_argument(
        "--inherit-env",
        choices=("all", "core", "none"),
        default="all",
        help="which variables it inherits, never one that looks like a secret (default:"
        " %(default)s)",
    )
    add_secret(parser)


def add_secret(parser: argparse.ArgumentParser) -> None:
    """Add ``--secret``."""
    parser.add_argument(
        "--secret",
        metavar="NAME[=@FILE]",
        action="append",
        default=[],
        help="a variable of this shell, or one with a file's content, for the command alone: its"
        " value is masked in all output; may be given again",
    )


def secrets(given: Iterable[str]) -> dict[str, str | bytes]:
    """Read what ``--secret`` names, by variable; raises UsageError, which shows no value."""
    found: dict[str, str | bytes] = {}
    for text in given:
        name, mark, path = text.partition("=")
        if not name or (mark and not path.startswith("@")):
            raise UsageError(
                f"--secret is NAME, for a variable of this shell, or NAME=@FILE; not"
                f" {name or 'nothing'}=VALUE, which every user could see in the list of processes"
            )
        if mark:
            found[name] = read_secret(path[1:], f"the secret {name} in")
        elif name in os.environ:
            found[name] = os.environ[name]
        else:
            raise UsageError(f"--secret {name}: there is no variable {name} here; export it first")
    return found
