"""Why a chunk was not found, for whoever has to write it again.  Pure.

The tool's own sentence only repeats what was looked for.  This looks for the place that comes
closest and names the first line that differs.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from handrail.patch.rewrite import ChunkNotFoundError
from handrail.patch.seek import Haystack, plain

# Beyond this many candidates the rest of the file is not compared any more.
_CANDIDATES = 2000
_ALIKE = 0.6


def explain(error: ChunkNotFoundError) -> str:
    """One or two sentences, or nothing if no place in the file comes close.

    Line numbers count from 1, as editors do.
    """
    lines, wanted = error.lines, error.wanted
    earlier = Haystack(lines[: error.start]).find(wanted, 0)
    if earlier is not None:
        return (
            f"These lines stand at line {earlier.position + 1}, before the place the search "
            f"had already reached (line {error.start + 1}). Chunks of a file must come in its "
            "order."
        )
    position = _closest(lines, wanted)
    if position is None:
        return ""
    last = min(position + len(wanted), len(lines))
    place = f"line {last}" if last - position == 1 else f"lines {position + 1} to {last}"
    for offset, line in enumerate(wanted):
        index = position + offset
        if index >= len(lines):
            return f"The closest place is {place}, where the file ends before '{line}'."
        if plain(lines[index]) != plain(line):
            return (
                f"The closest place is {place}; line {index + 1} is '{lines[index]}', not '{line}'."
            )
    return f"The lines stand at {place}, but not where the patch wants them."


def _closest(lines: Sequence[str], wanted: Sequence[str]) -> int | None:
    """The position where most of ``wanted`` is found, or the most similar single line."""
    plain_lines = [plain(line) for line in lines]
    plain_wanted = [plain(line) for line in wanted]
    votes: dict[int, int] = {}
    for offset, line in enumerate(plain_wanted):
        if not line:
            continue  # empty lines are everywhere
        for index, candidate in enumerate(plain_lines):
            if candidate == line and index >= offset:
                votes[index - offset] = votes.get(index - offset, 0) + 1
    if votes:
        return max(votes, key=lambda position: (votes[position], -position))
    return _most_similar(plain_lines[:_CANDIDATES], plain_wanted[0])


def _most_similar(lines: Sequence[str], wanted: str) -> int | None:
    matcher = difflib.SequenceMatcher(b=wanted)
    best, found = _ALIKE, None
    for index, line in enumerate(lines):
        matcher.set_seq1(line)
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best:
            ratio = matcher.ratio()
            if ratio > best:
                best, found = ratio, index
    return found
