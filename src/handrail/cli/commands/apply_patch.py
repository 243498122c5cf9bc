"""``handrail apply-patch``: apply a patch in the current directory.

The texts are those that models know.  All or nothing, unless ``--compatible`` asks for one hunk
after another, where what came before a failure stays.
"""

from __future__ import annotations

import argparse
import io
import os
import sys

from handrail.cli import error_output, options
from handrail.errors import PatchError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Apply a patch (*** Begin Patch ... *** End Patch), given as one argument or on"
        " standard input, to the files in this directory."
    )
    parser.epilog = "Exit codes: 0 applied, 1 not applied, 2 wrong usage."
    parser.add_argument(
        "--compatible",
        action="store_true",
        help="apply one change after the other; after a failure the earlier ones stay",
    )
    options.add_json(parser)
    parser.add_argument("patch", metavar="PATCH", nargs="*", help="the whole patch")


def run(args: argparse.Namespace) -> int:
    """Apply the patch."""
    from handrail.patch.apply import Mode
    from handrail.patch.command import run as apply
    from handrail.patch.report import NO_DIRECTORY

    mode = Mode.COMPATIBLE if args.compatible else Mode.ATOMIC
    stdout, stderr = io.BytesIO(), io.BytesIO()
    try:
        cwd = os.getcwd()
    except FileNotFoundError:
        return error_output.tell(PatchError(NO_DIRECTORY.rstrip("\n")), 1, "")
    code = apply(args.patch, sys.stdin.buffer, stdout, stderr, cwd, mode=mode)
    if code != 0:
        return error_output.tell(PatchError(stderr.getvalue().decode().rstrip("\n")), code, "")
    if args.json:
        options.print_json({"summary": stdout.getvalue().decode()})
    else:
        sys.stdout.buffer.write(stdout.getvalue())
    return 0
