"""The result of a run, also of a failed one.  Pure.

``normalise`` always returns the same class: the run's own object for success and for a timeout, a
new one for anything else.
"""

from __future__ import annotations

from dataclasses import dataclass

from handrail.errors import HandrailError

#: A message for people is cut in its middle to this length.
MESSAGE_LIMIT = 2048
TIMEOUT_EXIT_CODE = 124
UNKNOWN_EXIT_CODE = -1


@dataclass(frozen=True, slots=True)
class ExecOutput:
    """The result of a command.  Streams are bytes; ``omitted`` of them were not kept."""

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""
    aggregated: bytes = b""
    duration: float = 0.0
    timed_out: bool = False
    omitted: int = 0
    #: Sentences for a model about hosts that were refused, and rules that were saved.
    notes: tuple[str, ...] = ()


class CommandTimedOut(HandrailError):
    """The time was up; ``output`` is what was printed until then."""

    def __init__(self, output: ExecOutput, limit: float) -> None:
        super().__init__(f"command timed out after {limit * 1000:.0f} milliseconds")
        self.output = output
        self.limit = limit


class KilledBySignal(HandrailError):
    """A signal that handrail did not send ended it; ``output`` is what was printed until then."""

    def __init__(self, signal: str, output: ExecOutput) -> None:
        super().__init__(f"command was killed by {signal}")
        self.signal = signal
        self.output = output


def normalise(result: ExecOutput | BaseException) -> ExecOutput:
    """The output of a run or of its error."""
    if isinstance(result, ExecOutput):
        return result
    if isinstance(result, CommandTimedOut):
        return result.output
    data = readable(result).encode("utf-8", "replace")
    return ExecOutput(UNKNOWN_EXIT_CODE, b"", data, data)


def readable(error: BaseException) -> str:
    """A sentence for people, not longer than the limit."""
    return cut_middle(str(error) or type(error).__name__, MESSAGE_LIMIT)


def cut_middle(text: str, limit: int) -> str:
    """``text`` without its middle if it is longer than ``limit`` bytes."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return text
    marker = f"…{len(data) - limit} bytes cut…"
    room = max(limit - len(marker.encode()), 0)
    head = data[: room // 2].decode("utf-8", "ignore")
    tail = data[len(data) - (room - room // 2) :].decode("utf-8", "ignore")
    return head + marker + tail


def aggregate(stdout: bytes, stderr: bytes, cap: int) -> bytes:
    """stdout, then stderr; over the cap a third and two thirds, unused space goes to the other."""
    if len(stdout) + len(stderr) <= cap:
        return stdout + stderr
    for_stdout = min(len(stdout), cap // 3)
    for_stderr = min(len(stderr), cap - for_stdout)
    for_stdout = min(len(stdout), cap - for_stderr)
    return stdout[:for_stdout] + stderr[:for_stderr]
