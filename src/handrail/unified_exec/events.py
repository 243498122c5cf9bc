"""Events of processes as they happen: for a user interface, a log, a progress bar.

For each process one ``Begin``, then ``Delta`` and ``Interaction`` in their order, then one
``End``, after which nothing follows.  A listener is called at once and must not block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from handrail.process.exit_status import ExitInfo

if TYPE_CHECKING:
    from handrail.patch.plan import Change

MAX_DELTA_BYTES = 8_192
MAX_DELTAS = 10_000


@dataclass(frozen=True, slots=True)
class Begin:
    """A process runs; ``attempt`` is 2 for the rerun after a sandbox denial."""

    call_id: str
    process_id: int
    argv: tuple[str, ...]
    cwd: str
    cmd: str
    tty: bool
    source: str = "agent"
    attempt: int = 1

    @property
    def commands(self) -> tuple[tuple[str, ...], ...] | None:
        """The script's plain commands; None if it is more than those."""
        from handrail.policy.strict_script_reader import plain_commands

        return plain_commands(self.cmd)


@dataclass(frozen=True, slots=True)
class Delta:
    """Output, cut between characters where possible."""

    call_id: str
    process_id: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Interaction:
    """A call wrote to a process, or waited for it and left it running (``stdin`` empty)."""

    call_id: str
    process_id: int
    stdin: str


@dataclass(frozen=True, slots=True)
class End:
    """A process ended.  ``exit_code`` is -1 where it is not known or ``error`` says why not."""

    call_id: str
    process_id: int
    exit_code: int
    output: bytes = field(repr=False)
    duration: float
    status: str
    exit: ExitInfo | None = None
    error: str = ""
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class PatchBegin:
    """A patch that came as a command is about to be written."""

    call_id: str
    cwd: str
    changes: tuple[Change, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class PatchEnd:
    """``status`` is completed, failed or declined."""

    call_id: str
    status: str
    message: str = ""


Event = Begin | Delta | Interaction | End | PatchBegin | PatchEnd
Listener = Callable[[Event], None]


def emit_boundary(data: bytes | bytearray) -> int:
    """How much of ``data`` can be shown now: all but the start of an unfinished character.

    Bytes that can become no character count as finished; they are shown raw.
    """
    size = len(data)
    for back in range(1, min(3, size) + 1):
        byte = data[size - back]
        if byte & 0xC0 == 0x80:
            continue
        unfinished = _length(byte) > back and _may_follow(byte, data[size - back + 1 :])
        return size - back if unfinished else size
    return size


def _length(lead: int) -> int:
    if 0xC2 <= lead <= 0xDF:
        return 2
    if 0xE0 <= lead <= 0xEF:
        return 3
    return 4 if 0xF0 <= lead <= 0xF4 else 1


#: Second bytes that some leads do not allow: overlong forms, surrogates, beyond U+10FFFF.
_SECOND = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}


def _may_follow(lead: int, rest: bytes | bytearray) -> bool:
    low, high = _SECOND.get(lead, (0x80, 0xBF))
    return not rest or low <= rest[0] <= high


class Frames:
    """Cuts output into pieces for ``Delta``: small, few enough, with whole characters."""

    __slots__ = ("_held", "_left")

    def __init__(self, most: int = MAX_DELTAS) -> None:
        self._held = b""
        self._left = most

    def cut(self, data: bytes, *, final: bool = False) -> list[bytes]:
        """The pieces that are ready; ``final`` also gives what was kept back."""
        if not self._left:
            return []
        data = self._held + data if self._held else data
        pieces: list[bytes] = []
        at, size = 0, len(data)
        while at < size and self._left:
            part = data[at : at + MAX_DELTA_BYTES]
            ready = len(part) if final and at + len(part) == size else emit_boundary(part)
            if not ready:
                break
            pieces.append(part[:ready])
            self._left -= 1
            at += ready
        self._held = data[at:] if self._left else b""
        return pieces
