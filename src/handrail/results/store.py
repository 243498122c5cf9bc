"""The directory of stored results: one directory for each process, and which of them may go.

Named by session and process id, so that the program that left the process finds it without a
server.  ``about`` is written at the beginning, without an exit, and again at the end; ``output``
has the records and is locked by the server that writes it.  Nothing in it depends on a pid or
on a boot.  Directories are for their owner alone (``private_places``).  How long and how much is
kept, a week unless said otherwise, is in ``server_settings.ResultBounds``; ``sweep`` applies it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from _blake2 import blake2b  # without the rest of hashlib, which loads OpenSSL
from collections.abc import Iterator
from typing import Any

import msgspec

from handrail import private_files, private_places
from handrail.errors import UsageError
from handrail.filesystem.content import write_all
from handrail.results.record import Decoder, Record, encode
from handrail.server_settings import ResultBounds

_ABOUT, _OUTPUT = "about", "output"
_PAGE = 256 * 1024


class Exit(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a process ended, by the names of ``ExitInfo``."""

    kind: str
    code: int | None = None
    signal: str | None = None
    core_dumped: bool = False
    limit: str | None = None
    #: wall_ms, user_ms, system_ms, max_rss_bytes.
    usage: tuple[int, int | None, int | None, int | None] | None = None


class About(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is stored of a process beside its output; secrets in its words are masked."""

    session: str
    owner: str
    process_id: str
    argv: list[str]
    started_at: float
    name: str | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    tty: bool = False
    detach: bool = False
    #: The state directory of its server, by which its keeper is found.
    state_dir: str | None = None
    #: None: it ran when its server was last heard of.
    exit: Exit | None = None
    ended_at: float | None = None
    output_bytes: int = 0
    #: Bytes that were not stored behind the last record.
    omitted: int = 0
    held_open: bool = False
    denied: bool = False
    denials: list[dict[str, Any]] = msgspec.field(default_factory=list)
    #: Why output is missing, if that was not for its size.
    problem: str | None = None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(About)


class Stored:
    """One stored result."""

    __slots__ = ("about", "path")

    def __init__(self, path: str, about: About) -> None:
        self.path = path
        self.about = about

    @property
    def size(self) -> int:
        """Bytes on disk, of its output and of what is known beside that."""
        total = 0
        for name in (_OUTPUT, _ABOUT):
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(self.path, name)).st_size
        return total

    @property
    def changed_at(self) -> float:
        """When it was last written to, in seconds since the epoch."""
        times = []
        for name in (_ABOUT, _OUTPUT):
            with contextlib.suppress(OSError):
                times.append(os.stat(os.path.join(self.path, name)).st_mtime)
        if not times:  # it is being made
            with contextlib.suppress(OSError):
                times.append(os.stat(self.path).st_mtime)
        return max(times, default=0.0)

    @property
    def in_use(self) -> bool:
        """Whether a server writes it."""
        try:
            file = _open(self.path, _OUTPUT, os.O_RDWR)
        except (OSError, UsageError):
            return False
        return private_files.is_locked(file)

    def read(self, offset: int, size: int = _PAGE) -> bytes:
        """Bytes of its output; raises OSError."""
        file = _open(self.path, _OUTPUT, os.O_RDONLY)
        try:
            return os.pread(file, size, offset)
        finally:
            os.close(file)

    def remove(self) -> int:
        """Remove it; returns how many bytes that were."""
        size = self.size
        for name in (_OUTPUT, f"{_ABOUT}.new", _ABOUT):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.path, name))
        with contextlib.suppress(OSError):
            os.rmdir(self.path)
        return size


class ResultFile:
    """A result that is being written; its output is locked.  Everything raises OSError."""

    def __init__(self, about: About) -> None:
        """Begin it, or continue where a previous server has stopped.

        Raises BlockingIOError while another server writes it, UsageError without a directory.
        """
        self.path = path_of(about.session, about.process_id)
        self._file = _open(self.path, _OUTPUT, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            #: Everything up to this sequence number is stored.
            self.last = 0
            #: Bytes of the process that its records stand for, and bytes of the file.
            self.seen = self.stored = 0
            known = _read(self.path)
            if known is not None and known.about.started_at != about.started_at:
                os.ftruncate(self._file, 0)  # of another process: ids may be used again
            self._recover()
            self.write_about(about)
        except BaseException:
            os.close(self._file)
            raise

    def _recover(self) -> None:
        """Cut off what a killed server has not finished."""
        decoder = Decoder()
        at = seen = 0
        try:
            while data := os.pread(self._file, _PAGE, at):
                at += len(data)
                for record in decoder.feed(data):
                    seen += record.size + record.omitted
                    if record.first == record.last:
                        self.last, self.seen, self.stored = record.last, seen, decoder.position
        except ValueError:
            pass  # the machine went down while it was written
        if os.fstat(self._file).st_size != self.stored:
            os.ftruncate(self._file, self.stored)
        os.lseek(self._file, self.stored, os.SEEK_SET)

    def write(self, records: list[Record]) -> None:
        """Append records, all or none of them."""
        data = b"".join(map(encode, records))
        try:
            write_all(self._file, data)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self.stored)
                os.lseek(self._file, self.stored, os.SEEK_SET)
            raise
        self.stored += len(data)
        self.seen += sum(record.size + record.omitted for record in records)
        self.last = records[-1].last

    def write_about(self, about: About, *, sync: bool = False) -> None:
        """Replace what is stored beside the output; with ``sync`` all of it outlives a reboot.

        Raises FileNotFoundError once the result was removed: it must not come back without output.
        """
        if sync:
            os.fsync(self._file)
        if os.fstat(self._file).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the result was removed", self.path)
        data = _encoder.encode(about)
        directory = private_files.open_directory(self.path)
        try:
            private_files.replace_file(directory, _ABOUT, data, sync=sync)
        finally:
            os.close(directory)
        #: Bytes of it.
        self.beside = len(data)

    def close(self) -> None:
        """Unlock it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def path_of(session: str, process_id: str) -> str:
    """Where the result of a process is, or would be; raises NotOurs."""
    words = f"{session}\0{process_id}".encode("utf-8", "surrogatepass")
    name = blake2b(words, digest_size=16).hexdigest()
    return os.path.join(private_places.results_directory(), name)


def find(session: str, process_id: str) -> Stored | None:
    """The stored result of a process, on this machine."""
    try:
        return _read(path_of(session, process_id))
    except UsageError:
        return None  # there is no state home


def every(*, unfinished: bool = False) -> Iterator[Stored]:
    """All stored results of this machine; ``unfinished``: also what no reader can use."""
    try:
        directory = private_places.results_directory()
    except UsageError:
        return
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        found = _read(path)
        if found is not None:
            yield found
        elif unfinished:
            yield Stored(path, About(session="", owner="", process_id="", argv=[], started_at=0.0))


def sweep(bounds: ResultBounds, now: float | None = None) -> int:
    """Remove what is too old, and the oldest while there is too much; the bytes that are left.

    What a server writes stays.
    """
    now = time.time() if now is None else now
    left = []
    for stored in every(unfinished=True):
        changed = stored.changed_at
        if changed < now - bounds.keep and not stored.in_use:
            stored.remove()
        else:
            left.append((changed, stored.size, stored))
    total = sum(size for _, size, _ in left)
    for _, size, stored in sorted(left, key=lambda entry: entry[0]):
        if total <= bounds.total:
            break
        if not stored.in_use:
            stored.remove()
            total -= size
    return total


def keeper_waits(about: About) -> bool:
    """Whether the keeper of a process is there, with or without its server."""
    return about.state_dir is not None and keeper_in(about.state_dir, before=about.started_at)


def keeper_in(state_dir: str, before: float | None = None) -> bool:
    """Whether a keeper listens in a state directory, and did so ``before`` a time."""
    try:
        directory = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        made = os.stat("keeper.sock", dir_fd=directory, follow_symlinks=False).st_mtime
        if before is not None and made > before:
            return False  # of a later keeper
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(private_files.socket_address(directory, "keeper.sock"))
            return True
    except OSError:
        return False
    finally:
        os.close(directory)


def _read(path: str) -> Stored | None:
    try:
        file = os.open(
            os.path.join(path, _ABOUT), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        )
        with open(file, "rb") as opened:
            return Stored(path, _decoder.decode(opened.read()))
    except (OSError, msgspec.DecodeError):
        return None  # it is being made, or is none of this version


def _open(path: str, name: str, flags: int) -> int:
    if flags & os.O_CREAT:
        directory = private_files.open_directory(path)
    else:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return private_files.open_file(directory, name, flags)
    finally:
        os.close(directory)
