"""The text of an answer, line by line.  Pure."""

from __future__ import annotations

from collections.abc import Sequence


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
