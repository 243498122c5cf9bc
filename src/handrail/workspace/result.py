"""Results, events, and the answer of a wait.  Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from handrail.errors import ProcessError
from handrail.executor.base import WaitReason
from handrail.process.exit_status import ExitInfo, ExitKind

if TYPE_CHECKING:
    from typing import Any

#: ``str`` or ``bytes``: what ``text=`` asked for.
Text = TypeVar("Text", str, bytes)


@dataclass(frozen=True, slots=True)
class Denial:
    """One thing the sandbox refused.

    ``kind`` is ``file``, ``network``, ``process`` or ``unknown``; ``op`` and ``path`` say what
    was tried, as far as it is known.  ``certain`` is false when it is concluded from the output.
    """

    kind: str
    op: str = ""
    path: str = ""
    source: str = ""
    certain: bool = False

    @classmethod
    def from_evidence(cls, evidence: Mapping[str, object]) -> Denial:
        """Read one element of ``denials`` from the wire; never raises."""
        return cls(
            kind=str(evidence.get("kind") or "unknown"),
            op=str(evidence.get("op") or ""),
            path=str(evidence.get("path") or ""),
            source=str(evidence.get("source") or ""),
            certain=evidence.get("certain") is True,
        )


@dataclass(frozen=True, slots=True)
class Result(Generic[Text]):
    """The result of a command.

    ``exit`` says how it ended and is None while it still runs, which only happens with ``wait=``;
    ``process`` is the process then.  ``duration`` is in seconds, from the start to the exit or to
    the return.  ``omitted`` counts bytes of output that are not in it.  ``held_open`` says that a
    descendant outlived the command and may still write.
    """

    argv: tuple[str | bytes, ...]
    stdout: Text
    stderr: Text
    exit: ExitInfo | None
    duration: float
    denials: tuple[Denial, ...] = ()
    omitted: int = 0
    held_open: bool = False
    #: The running process, a ``Process`` or an ``AsyncProcess``; None when it has ended.
    process: Any = field(default=None, repr=False, compare=False)
    #: The last line of its output as an error shows it, where the output is bytes.
    last_line: str | None = field(default=None, repr=False, compare=False)

    @property
    def exit_code(self) -> int | None:
        """What a shell would show: 128+N for signal N; None while it runs or if it is not known."""
        return self.exit.code if self.exit is not None else None

    @property
    def ok(self) -> bool:
        """Whether it is known to have ended by itself, with 0."""
        return self.exit is not None and self.exit.kind is ExitKind.EXITED and self.exit.code == 0

    @property
    def complete(self) -> bool:
        """Whether it and its streams have ended, and all of its output is here."""
        return self.exit is not None and not self.omitted and not self.held_open

    @property
    def timed_out(self) -> bool:
        """Whether ``timeout`` ended it."""
        return self.exit is not None and self.exit.kind is ExitKind.TIMED_OUT

    def check(self) -> Result[Text]:
        """Return this result, or raise CommandFailed unless ``ok``."""
        if not self.ok:
            raise CommandFailed(self)
        return self


class CommandFailed(ProcessError):
    """A command failed although ``check`` was set; ``result`` has its output and its exit."""

    def __init__(self, result: Result[str] | Result[bytes]) -> None:
        self.result = result
        said = result.last_line
        if said is None:
            said = last_line(result.stderr or result.stdout)
        said = f"; last line of its output: {said}" if said else ""
        super().__init__(f"`{show(result.argv)}` {_ending(result)}{said}")


def _ending(result: Result[Any]) -> str:
    end = result.exit
    if end is None:
        return "still runs"
    if end.kind is ExitKind.TIMED_OUT:
        return f"was ended after its timeout ({result.duration:.1f} s)"
    if end.kind is ExitKind.LOST:
        return "ended, and how is not known"
    if end.limit is not None:
        return f"went beyond its limit of {end.limit}"
    if end.signal is not None:
        return f"was ended by {end.signal}"
    return f"exited with {end.code}"


def last_line(said: str | bytes) -> str:
    """The last line of some output, shortened; "" if there is none."""
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    lines = text.strip().splitlines()
    return lines[-1][:500] if lines else ""


def show(argv: tuple[str | bytes, ...]) -> str:
    """A command in readable form; a shell's script without the shell around it."""
    import shlex

    words = [w.decode("utf-8", "replace") if isinstance(w, bytes) else w for w in argv]
    if len(words) == 3 and words[1] == "-c":
        return words[2]
    return shlex.join(words)


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of output.

    ``stream`` is ``stdout`` or ``stderr``; all of a terminal's is ``stdout``.  ``text`` is
    ``data`` as UTF-8 with secrets masked; a character or secret that was split is kept for the
    next piece.  ``omitted`` bytes before it were not kept (0: nothing lost); iterating gives them
    as a ``Gap`` too.
    """

    stream: str
    data: bytes = field(repr=False)
    text: str
    seq: int
    omitted: int = 0


@dataclass(frozen=True, slots=True)
class Gap:
    """So many bytes of output at this place were not kept; an event of its own."""

    omitted: int


@dataclass(frozen=True, slots=True)
class Exited:
    """The last event: how the process ended."""

    exit: ExitInfo


#: What iterating over a process gives.
Event = Output | Gap | Exited


@dataclass(frozen=True, slots=True)
class Waited:
    """Why ``wait_for`` returned; true if a pattern matched.

    ``index`` is the pattern's position among the arguments and ``match`` the text it matched.
    ``exit`` is set when the process has ended.
    """

    reason: WaitReason
    match: str = ""
    index: int | None = None
    exit: ExitInfo | None = None

    def __bool__(self) -> bool:
        return self.reason is WaitReason.PATTERN
