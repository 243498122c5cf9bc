"""Results, events, and the answer of a wait.  Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from handrail.errors import ProcessError
from handrail.executor.base import WaitReason
from handrail.name_hints import NamesChecked
from handrail.process.exit_status import ExitInfo, ExitKind

if TYPE_CHECKING:
    from handrail.secret_masks import Secrets
    from handrail.workspace.output.kept_output import KeptOutput

#: ``str`` or ``bytes``: what ``text=`` asked for.
Text = TypeVar("Text", str, bytes)


@dataclass(frozen=True, slots=True)
class Denial(NamesChecked):
    """One thing the sandbox refused.

    ``kind`` is ``file``, ``network``, ``process`` or ``unknown``; ``op`` and ``path`` say what
    was tried, as far as it is known.  ``certain`` is false when it is concluded from the output.

    Of a host that a managed network refused, ``path`` is host and port; ``protocol``, ``method``,
    ``pid`` and ``comm`` say how and what asked, ``reason`` why not and ``count`` how often.  The
    last record may have ``omitted``: so many further hosts are not listed.
    """

    kind: str
    op: str = ""
    path: str = ""
    source: str = ""
    certain: bool = False
    host: str | None = None
    port: int | None = None
    protocol: str | None = None
    method: str | None = None
    reason: str | None = None
    pid: int | None = None
    comm: str | None = None
    count: int = 1
    omitted: int = 0

    @classmethod
    def from_evidence(cls, evidence: Mapping[str, object]) -> Denial:
        """Read one element of ``denials`` from the wire; never raises."""
        return cls(
            kind=str(evidence.get("kind") or "unknown"),
            op=str(evidence.get("op") or ""),
            path=str(evidence.get("path") or ""),
            source=str(evidence.get("source") or ""),
            certain=evidence.get("certain") is True,
            host=_text(evidence, "host"),
            port=_number(evidence, "port"),
            protocol=_text(evidence, "protocol"),
            method=_text(evidence, "method"),
            reason=_text(evidence, "reason"),
            pid=_number(evidence, "pid"),
            comm=_text(evidence, "comm"),
            count=_number(evidence, "count") or 1,
            omitted=_number(evidence, "omitted") or 0,
        )


def _text(evidence: Mapping[str, object], name: str) -> str | None:
    value = evidence.get(name)
    return value if isinstance(value, str) else None


def _number(evidence: Mapping[str, object], name: str) -> int | None:
    value = evidence.get(name)
    return value if isinstance(value, int) else None


class Later:
    """Output that is read from its file when it is first asked for."""

    __slots__ = ("_kept", "_secrets", "_text")

    def __init__(self, kept: KeptOutput, secrets: Secrets, *, text: bool) -> None:
        self._kept = kept
        self._secrets = secrets
        self._text = text

    def read(self) -> str | bytes:
        """The output."""
        if self._text:
            return self._kept.text(self._secrets)
        return self._kept.take()

    def end(self) -> bytes:
        """The newest bytes of it, with secrets masked; the rest stays in its file."""
        return self._kept.end(self._secrets)

    def __reduce__(self) -> tuple[Any, ...]:
        kind = str if self._text else bytes
        return kind, (self.read(),)


def output_of(
    kept: KeptOutput, secrets: Secrets, *, text: bool, final: bool
) -> str | bytes | Later:
    """The output for a result; what is in a file stays there until it is asked for.

    ``final``: no more of it will come.
    """
    if kept.in_file and final:
        return Later(kept, secrets, text=text)
    return kept.text(secrets) if text else kept.take()


def shown_last_line(
    out: KeptOutput, err: KeptOutput, secrets: Secrets, *, text: bool
) -> str | None:
    """The last line for an error, where the output itself is bytes that show secrets."""
    if text or not secrets:
        return None
    return last_line(err.end(secrets) or out.end(secrets))


class _OutputField:
    """``stdout`` or ``stderr`` of a result, which may be in a file."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, result: Any, owner: type | None = None) -> Any:
        if result is None:
            raise AttributeError(self._name)  # so that the field has no default
        value = result.__dict__[self._name]
        if isinstance(value, Later):
            value = result.__dict__[self._name] = value.read()
        return value

    def __set__(self, result: Any, value: Any) -> None:
        result.__dict__[self._name] = value


@dataclass(frozen=True)
class Result(NamesChecked, Generic[Text]):
    """The result of a command.

    ``exit`` says how it ended and is None while it still runs, which only happens with ``wait=``;
    ``process`` is the process then.  ``duration`` is in seconds, from the start to the exit or to
    the return.  ``omitted`` counts bytes of output that are not in it.  ``held_open`` says that a
    descendant outlived the command and may still write.
    """

    argv: tuple[str | bytes, ...]
    if TYPE_CHECKING:
        stdout: Text
        stderr: Text
    else:
        stdout: Text = _OutputField()
        stderr: Text = _OutputField()
    exit: ExitInfo | None
    duration: float
    denials: tuple[Denial, ...] = ()
    omitted: int = 0
    held_open: bool = False
    #: One sentence on what the sandbox refused to a command that failed, and how to allow it; None
    #: if it seems to have refused nothing.
    refusal: str | None = None
    #: The running process, a ``Process`` or an ``AsyncProcess``; None when it has ended.
    process: Any = field(default=None, repr=False, compare=False)
    #: The last line of its output as an error shows it, where the output is bytes.
    last_line: str | None = field(default=None, repr=False, compare=False)
    #: Sentences for a model about hosts that were refused, and rules that were saved.
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """How it ended, with the last line of its output and the refusal; then the notes."""
        return "\n".join([_sentence(self), *self.notes])

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
        """Whether it and its streams are known to have ended, and all of its output is here."""
        known = self.exit is not None and self.exit.kind is not ExitKind.LOST
        return known and not self.omitted and not self.held_open

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
        super().__init__(_sentence(result))


def _sentence(result: Result[Any]) -> str:
    said = result.last_line
    if said is None:
        said = last_line(_newest(result, "stderr") or _newest(result, "stdout"))
    said = f"; last line of its output: {said}" if said else ""
    refused = f"; {result.refusal}" if result.refusal else ""
    return f"`{show(result.argv)}` {_ending(result)}{said}{refused}"


def _newest(result: Result[Any], stream: str) -> str | bytes:
    """A stream of a result, or its end where the rest is in a file."""
    value: str | bytes | Later = vars(result)[stream]
    return value.end() if isinstance(value, Later) else value


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


def decoded(said: str | bytes) -> str:
    """Text, also of bytes that are none."""
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else said


def last_line(said: str | bytes) -> str:
    """The last line of some output, shortened; "" if there is none."""
    lines = decoded(said).strip().splitlines()
    return lines[-1][:500] if lines else ""


def show(argv: tuple[str | bytes, ...]) -> str:
    """A command in readable form; a shell's script without the shell around it."""
    import shlex

    words = list(map(decoded, argv))
    if len(words) == 3 and words[1] == "-c":
        return words[2]
    return shlex.join(words)


@dataclass(frozen=True, slots=True)
class Output(NamesChecked):
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
class Gap(NamesChecked):
    """So many bytes of output at this place were not kept; an event of its own."""

    omitted: int


@dataclass(frozen=True, slots=True)
class Exited(NamesChecked):
    """The last event: how the process ended."""

    exit: ExitInfo


#: What iterating over a process gives.
Event = Output | Gap | Exited


@dataclass(frozen=True, slots=True)
class Waited(NamesChecked):
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
