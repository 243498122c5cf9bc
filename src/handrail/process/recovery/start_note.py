"""What the next server has to know of a process, stored in the keeper.  Pure.

Written with the request that starts the process, so there is no moment at which one is without
the other.  The environment is left out: it is not needed again, and it may hold secrets.  Those
that were named as such are in it, for the next server has to mask what it stores; the note is in
memory alone.
"""

from __future__ import annotations

import msgspec

from handrail.process.spec import Limits, OnLag, ProcessSpec

#: Longer argument lists are only shown, so only their beginning is kept.
_LONGEST_ARGV = 16_384


class Note(msgspec.Struct, array_like=True, frozen=True):
    """One process, as its starter described it."""

    owner: str
    key: str
    argv: list[bytes]
    cwd: bytes
    tty: bool
    pipe_stdin: bool
    name: str | None
    started_at: float
    started: float  # monotonic
    on_lag: OnLag | None = None
    timeout: float | None = None
    output_bytes: int | None = None
    detach: bool = False
    sandboxed: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, bytes], ...] = ()
    #: Its managed network, as the one that carries it wrote it.
    network: str | None = None
    cpu_seconds: int | None = None
    file_size: int | None = None
    #: The network that it shares: name, key and address.
    loopback: tuple[str, str, str] | None = None

    def spec(self) -> ProcessSpec:
        """The spec that was started, without its environment."""
        return ProcessSpec(
            argv=tuple(self.argv),
            cwd=self.cwd,
            env={},
            tty=self.tty,
            pipe_stdin=self.pipe_stdin,
            name=self.name,
            on_lag=self.on_lag,
            timeout=self.timeout,
            limits=Limits(
                output=self.output_bytes, cpu_seconds=self.cpu_seconds, file_size=self.file_size
            ),
            detach=self.detach,
            sandboxed=self.sandboxed,
            labels=self.labels,
            secrets=self.secrets,
            loopback=self.loopback,
        )


#: Instead of a note, on the process that carries the connections of managed networks.
PORTER_NOTE = b"handrail porter"

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Note)


def encode(owner: str, key: str, spec: ProcessSpec, at: tuple[float, float]) -> bytes:
    """A note without a NUL, as the keeper's link wants it; ``at``: by both clocks."""
    words, cwd = spec.command
    argv = list(words)
    if sum(map(len, argv)) > _LONGEST_ARGV:
        argv = _beginning(argv)
    note = Note(
        owner,
        key,
        argv,
        cwd,
        spec.tty,
        spec.pipe_stdin,
        spec.name,
        *at,
        spec.on_lag,
        spec.timeout,
        spec.limits.output,
        spec.detach,
        spec.sandboxed,
        spec.labels,
        spec.secrets,
        None if spec.network is None else spec.network.note,
        spec.limits.cpu_seconds,
        spec.limits.file_size,
        spec.loopback,
    )
    return _encoder.encode(note)


def decode(data: bytes) -> Note | None:
    """Decode a note; None for one of another version."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class Move(msgspec.Struct, array_like=True, frozen=True):
    """The new owner of a process that changed its owner, and its id there."""

    owner: str
    key: str
    detached: bool


def move(owner: str, key: str, *, detached: bool = False) -> bytes:
    """A note that a process belongs to another session, or to none."""
    return _encoder.encode(Move(owner, key, detached))


def moved(data: bytes | None) -> Move | None:
    """Read such a note."""
    return None if data is None else msgspec.json.decode(data, type=Move)


def _beginning(argv: list[bytes]) -> list[bytes]:
    kept: list[bytes] = []
    left = _LONGEST_ARGV
    for word in argv:
        kept.append(word[:left])
        left -= len(word)
        if left <= 0:
            break
    return kept
