"""Options that several commands share, and what they tell of an exit."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from handrail import exit_codes, units
from handrail.cli import error_output, foreground_command
from handrail.cli.stdio import say
from handrail.errors import ExecutorSpawnFailed, HandrailError, UsageError
from handrail.process.exit_status import ExitInfo

if TYPE_CHECKING:
    from handrail.cli.output_thread import Writer
    from handrail.workspace.result import Output


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``, which every command has."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add ``--at`` and its token."""
    text = "the server: ws://, wss://, unix:/path, stdio:program or ssh://host"
    parser.add_argument("--at", metavar="URL", help=text)
    add_token(parser)


def add_token(parser: argparse.ArgumentParser) -> None:
    """Add the options for a token by file or HANDRAIL_TOKEN: every user can see an argument."""
    parser.add_argument(
        "--token-file", metavar="PATH", help="file with the server's token (or: $HANDRAIL_TOKEN)"
    )


def token(args: argparse.Namespace, at: str | None = None) -> str | None:
    """The token that was given for ``at``; raises UsageError when its file cannot be read.

    The variable is for every server that asks for one, and others are not given it.
    """
    if args.token_file is None:
        asks = at is None or at.startswith(("ws://", "wss://"))
        return (os.environ.get("HANDRAIL_TOKEN") or None) if asks else None
    from handrail.secret_file import read_secret

    return read_secret(args.token_file, "the token in").decode()


def seconds(text: str) -> float:
    """For argparse: parse a duration, in seconds or with a unit."""
    try:
        number = foreground_command.duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 0 <= number < 10**9:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration from 0 to 10**9 seconds")
    return number


def number_from(least: int) -> Callable[[str], int]:
    """For argparse: what parses a whole number that is at least so large."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} on")
        return int(text)

    return parse


def size(text: str) -> int:
    """For argparse: parse a size, in bytes or with a unit."""
    try:
        return units.parse_size(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def to_end(main: Coroutine[Any, Any, int]) -> int:
    """Run a command's coroutine; its failures are reported in one line."""
    try:
        import asyncio

        return asyncio.run(main)
    except HandrailError as error:
        number = error.errno if isinstance(error, ExecutorSpawnFailed) else 0
        return error_output.tell(error, exit_codes.of_unstarted(number))
    except error_output.Interrupted as error:
        return error_output.tell(error, 128 + error.signal)
    finally:
        main.close()  # or a Ctrl-C before it has begun would be followed by a warning


def told_exit(info: ExitInfo) -> int:
    """The exit code for it; what the code does not say is told in a line."""
    code = exit_codes.of_exit(info)
    if info.code is None:
        say("handrail: the process ended and how is not known")
    elif info.limit is not None:
        say(f"handrail: the command went beyond its limit of {info.limit}")
    return code


def exit_json(info: ExitInfo | None) -> dict[str, object] | None:
    """An exit as JSON."""
    if info is None:
        return None
    return {
        "kind": info.kind.value,
        "code": info.code,
        "signal": info.signal,
        "coreDumped": info.core_dumped,
        "limit": info.limit,
    }


def usage_json(info: ExitInfo | None) -> dict[str, object] | None:
    """The resources that a process has used, as JSON; a value of null is not known."""
    if info is None or info.usage is None:
        return None
    used = info.usage
    known = used.user_ms is not None and used.system_ms is not None
    return {
        "wallMs": used.wall_ms,
        "cpuMs": (used.user_ms or 0) + (used.system_ms or 0) if known else None,
        "userMs": used.user_ms,
        "systemMs": used.system_ms,
        "memoryBytes": used.max_rss_bytes,
    }


def print_json(value: object) -> None:
    """Print one line of JSON, in UTF-8 whatever the terminal's encoding."""
    sys.stdout.flush()
    sys.stdout.buffer.write(json_line(value))
    sys.stdout.buffer.flush()


async def write_event(writer: Writer, event: Output, *, as_json: bool) -> None:
    """Write a process's output to its stream, or as a line of JSON."""
    if as_json:
        record = {
            "stream": event.stream,
            "seq": event.seq,
            "text": event.text,
            "omitted": event.omitted,
        }
        await writer.write(1, json_line(record))
        return
    if event.omitted:
        await writer.write(2, no_longer_kept(event.omitted))
    await writer.write(1 if event.stream == "stdout" else 2, event.data, event.omitted)


def no_longer_kept(size: int) -> bytes:
    """The note for a reader that came too late for some output; the terminal may be raw."""
    return f"handrail: {size} bytes of output are no longer kept\r\n".encode()


def json_line(value: object) -> bytes:
    """One line of JSON as bytes, for the caller to write."""
    try:
        return json.dumps(value, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # a name that is not UTF-8: a lone surrogate, which JSON can escape
        return json.dumps(value).encode() + b"\n"
