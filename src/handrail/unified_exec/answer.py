"""Makes an answer: fits the output, says what is missing and where it can be read.  Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from handrail.executor.output.head_tail import HeadTail
from handrail.unified_exec.process import Process
from handrail.unified_exec.settings import Settings
from handrail.unified_exec.tools import ExecAnswer
from handrail.unified_exec.truncate import (
    DEFAULT_TOKENS,
    Budget,
    approx_tokens,
    effective_budget,
    fit,
    kept_prefix,
)

REPLACEMENT = "\ufffd".encode()


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What an answer says besides the output."""

    chunk_id: str
    seconds: float
    alive: bool
    notes: tuple[str, ...] = ()


def response_text(
    *,
    wall_time_s: float,
    output: str,
    chunk_id: str | None = None,
    exit_code: int | None = None,
    session_id: int | None = None,
    original_token_count: int | None = None,
    notes: Sequence[str] = (),
) -> str:
    """What a model reads.  Lines without a value are left out; notes come before the output."""
    lines = []
    if chunk_id:
        lines.append(f"Chunk ID: {chunk_id}")
    lines.append(f"Wall time: {wall_time_s:.4f} seconds")
    if exit_code is not None:
        lines.append(f"Process exited with code {exit_code}")
    if session_id is not None:
        lines.append(f"Process running with session ID {session_id}")
    if original_token_count is not None:
        lines.append(f"Original token count: {original_token_count}")
    lines += [f"Note: {note}" for note in notes]
    lines.append("Output:")
    lines.append(output)
    return "\n".join(lines)


def make_answer(
    process: Process,
    taken: HeadTail,
    circumstances: Circumstances,
    settings: Settings,
    max_output_tokens: int | None,
) -> ExecAnswer:
    """The answer of one call, as text and as data."""
    end = process.reported
    start = end - taken.total
    raw = taken.content()
    whole = taken.rendered().decode("utf-8", "replace")
    wish = DEFAULT_TOKENS if max_output_tokens is None else max_output_tokens
    budget = effective_budget(wish, settings.model_budget)
    exit_code = None if circumstances.alive else process.exit_code
    process_id = process.origin.process_id
    session_id = process_id if circumstances.alive else None

    def text(output: str, notes: tuple[str, ...]) -> str:
        return response_text(
            wall_time_s=circumstances.seconds,
            output=output,
            chunk_id=circumstances.chunk_id,
            exit_code=exit_code,
            session_id=session_id,
            original_token_count=approx_tokens(taken.total),
            notes=notes if settings.notes_in_text else (),
        )

    def all_notes(budget: Budget) -> tuple[str, ...]:
        prefix = kept_prefix(whole, budget)
        if not taken.omitted and len(prefix) == len(whole.encode("utf-8", "surrogatepass")):
            return circumstances.notes
        first = start + _shown_bytes(prefix, taken)
        note = (
            f"part of this output is left out; read_output with session_id {process_id} and offset"
            f" {first} reads on from there (this answer covers bytes {start} to {end})"
        )
        return (*circumstances.notes, note)

    provisional = all_notes(budget)
    shown, budget = fit(
        whole,
        budget,
        settings.model_budget,
        lambda output: text(output, provisional),
        omitted=taken.omitted,
        total_bytes=taken.total if taken.omitted else None,
    )
    notes = all_notes(budget)
    return ExecAnswer(
        call_id=process.origin.call_id,
        command=process.origin.argv,
        wall_time=dt.timedelta(seconds=circumstances.seconds),
        # A program gets everything unless it asked for less.
        output=whole if max_output_tokens is None else shown,
        text=text(shown, notes),
        raw=raw,
        chunk_id=circumstances.chunk_id,
        exit_code=exit_code,
        process_id=session_id,
        original_token_count=approx_tokens(taken.total),
        omitted_bytes=taken.omitted,
        output_start=start,
        output_end=end,
        notes=notes,
    )


def _shown_bytes(prefix: bytes, taken: HeadTail) -> int:
    """How many bytes of the output precede the first omitted one; 0 if that is unclear."""
    if REPLACEMENT in prefix:  # longer than the bytes it replaces
        return 0
    return min(len(prefix), len(taken.head)) if taken.omitted else len(prefix)
