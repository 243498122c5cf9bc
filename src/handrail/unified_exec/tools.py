"""``exec_command``, ``write_stdin`` and ``read_output``: arguments and answers.

Arguments come from a model, so they are read leniently (unknown fields are ignored, a number may
be a string of digits) and refused with a sentence that names the field.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from handrail.errors import HandrailError, UsageError
from handrail.name_hints import unknown_option

SANDBOX_PERMISSIONS = ("use_default", "require_escalated", "with_additional_permissions")


class ToolFailed(HandrailError):
    """A call has no answer; the text is for the model.  ``output`` is what came before."""

    def __init__(self, text: str, *, output: bytes = b"") -> None:
        super().__init__(text)
        self.output = output


class UnknownProcess(ToolFailed):
    """No process of that id: never started, pruned, or reported as ended before."""

    def __init__(self, tool: str, process_id: int, more: str = "") -> None:
        super().__init__(f"{tool} failed: Unknown process id {process_id}{more}")
        self.process_id = process_id


class ExecCommandArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Start a command."""

    cmd: str
    workdir: str | None = None
    tty: bool = False
    yield_time_ms: int | None = None
    max_output_tokens: int | None = None
    shell: str | None = None
    login: bool | None = None
    sandbox_permissions: str | None = None
    justification: str | None = None
    prefix_rule: tuple[str, ...] | None = None
    additional_permissions: dict[str, object] | None = None
    environment_id: str | None = None


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a terminal."""

    rows: int
    cols: int


class WriteStdinArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Write to a running command, or ask for its output."""

    session_id: int
    chars: str = ""
    keys: tuple[str, ...] = ()
    resize: Size | None = None
    yield_time_ms: int | None = None
    max_output_tokens: int | None = None


class ReadOutputArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Read a range of everything a session has printed."""

    session_id: int
    offset: int = 0
    max_bytes: int = 32768


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecAnswer:
    """The answer of a call.

    ``text`` is for a model; ``raw`` are the bytes of this answer before any fitting to a budget,
    ``omitted_bytes`` what was dropped before that.  ``process_id`` is set only while the process
    runs, ``exit_code`` only once it ended.  ``output_start`` and ``output_end`` are the offsets of
    this answer in the session's whole output.
    """

    call_id: str
    command: tuple[str, ...]
    wall_time: dt.timedelta
    output: str
    text: str = field(repr=False)
    raw: bytes = field(default=b"", repr=False)
    chunk_id: str | None = None
    exit_code: int | None = None
    process_id: int | None = None
    original_token_count: int | None = None
    omitted_bytes: int = 0
    output_start: int = 0
    output_end: int = 0
    notes: tuple[str, ...] = ()

    @property
    def wall_time_seconds(self) -> float:
        """``wall_time`` in seconds."""
        return self.wall_time.total_seconds()

    def structured(self) -> dict[str, object]:
        """The answer as data; what is not known is left out.  Never raises."""
        fields: dict[str, object | None] = {
            "chunk_id": self.chunk_id,
            "wall_time_seconds": self.wall_time_seconds,
            "exit_code": self.exit_code,
            "session_id": self.process_id,
            "original_token_count": self.original_token_count,
            "output": self.output,
            "notes": list(self.notes) or None,
        }
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class OutputRange:
    """A range of a transcript: ``data`` starts at ``offset``, which may be later than requested.

    ``total`` is the size so far; ``missing`` bytes before ``data`` are no longer kept.
    """

    offset: int
    data: bytes
    total: int
    missing: int = 0


def read_arguments(arguments: object) -> Mapping[str, Any]:
    """The arguments by name; raises UsageError, with a sentence for the model.

    An empty text stands for no arguments, as some models write it.
    """
    if isinstance(arguments, str | bytes | bytearray):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise UsageError(f"failed to parse function arguments: no JSON: {error}") from None
    if not isinstance(arguments, Mapping):
        raise UsageError("failed to parse function arguments: expected an object with named fields")
    try:
        for name, value in arguments.items():
            if not _can_be_sent(name) or not _can_be_sent(value):
                raise UsageError(
                    f"failed to parse function arguments: `{ascii(name)[1:-1]}` holds half of a"
                    " surrogate pair, which is no character: write the whole character"
                )
    except RecursionError:
        raise UsageError("failed to parse function arguments: nested too deep") from None
    return arguments


def _can_be_sent(value: object) -> bool:
    """Whether every text in it is UTF-8: JSON can spell half a surrogate pair, UTF-8 cannot."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
    elif isinstance(value, Mapping):
        return all(_can_be_sent(part) for pair in value.items() for part in pair)
    elif isinstance(value, list | tuple):
        return all(_can_be_sent(part) for part in value)
    return True


def exec_command_args(arguments: Mapping[str, object]) -> ExecCommandArgs:
    """Read the arguments of a call; raises UsageError naming what is wrong with which field."""
    args = _read(arguments, ExecCommandArgs)
    _not_negative(args.yield_time_ms, "yield_time_ms")
    _not_negative(args.max_output_tokens, "max_output_tokens")
    if args.sandbox_permissions not in (None, *SANDBOX_PERMISSIONS):
        raise UsageError(
            f"unknown value `{args.sandbox_permissions}` for field `sandbox_permissions`, expected"
            f" one of {', '.join(SANDBOX_PERMISSIONS)}"
        )
    if args.justification is not None and args.sandbox_permissions is None:
        raise UsageError(
            "`justification` is only for a call that asks for more permissions: set"
            " `sandbox_permissions` too, or leave `justification` out"
        )
    return args


def write_stdin_args(arguments: Mapping[str, object]) -> WriteStdinArgs:
    """Like ``exec_command_args``, for write_stdin."""
    args = _read(_with_number(arguments), WriteStdinArgs)
    _not_negative(args.yield_time_ms, "yield_time_ms")
    _not_negative(args.max_output_tokens, "max_output_tokens")
    return args


def read_output_args(arguments: Mapping[str, object]) -> ReadOutputArgs:
    """Like ``exec_command_args``, for read_output."""
    args = _read(_with_number(arguments), ReadOutputArgs)
    _not_negative(args.offset, "offset")
    _not_negative(args.max_bytes, "max_bytes")
    return args


def check_fields(given: Iterable[str], kind: type[msgspec.Struct]) -> None:
    """Raise UsageError for a field that a program mistyped; those of a model are ignored."""
    for name in given:
        if name not in kind.__struct_fields__:
            raise unknown_option(name, kind.__struct_fields__)


def _with_number(arguments: Mapping[str, object]) -> Mapping[str, object]:
    """Accept an id as a number or, as in earlier versions, a string."""
    given = arguments.get("session_id")
    # Python makes no number of some thousand digits.
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 20:
        return {**arguments, "session_id": int(given)}
    return arguments


_Args = TypeVar("_Args", ExecCommandArgs, WriteStdinArgs, ReadOutputArgs)


def _read(arguments: Mapping[str, object], shape: type[_Args]) -> _Args:
    # A model writes null where it means that a field is absent.
    given = {name: value for name, value in arguments.items() if value is not None}
    try:
        return msgspec.convert(given, shape)
    except msgspec.ValidationError as error:
        raise UsageError(f"failed to parse function arguments: {error}") from error


def _not_negative(value: int | None, name: str) -> None:
    if value is not None and value < 0:
        raise UsageError(
            f"failed to parse function arguments: `{name}` is {value}, expected 0 or more"
        )
