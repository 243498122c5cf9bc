"""Decisions on connections in a file, a JSON object a line: for ``handrail network log``.

All servers of a user append to one file in the state home, which sandboxed commands cannot reach.
At its size limit it becomes ``network.log.1``, in place of the one before.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping

from handrail import private_places
from handrail.network.records import END, Record

NAME = "network.log"
LARGEST = 16 * 1024 * 1024
_FOLLOW_SECONDS = 0.2


def default_path() -> str:
    """The file of this user; raises what `private_places.state_home` raises."""
    return os.path.join(private_places.state_home(), NAME)


class NetworkLog:
    """The file, to write."""

    def __init__(self, path: str) -> None:
        self.path = path

    def append(self, records: Iterable[Record], about: Mapping[str, object] | None = None) -> None:
        """Append records with what else is known of their process; raises OSError."""
        from msgspec.json import encode

        tail = b"}\n" if not about else b"," + encode(about)[1:] + b"\n"
        lines = b"".join(encode(one)[:-1] + tail for one in records)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self.path, flags, 0o600)
        try:
            # One write: lines of several servers do not mix.
            os.write(fd, lines)
            full = os.fstat(fd).st_size >= LARGEST
        finally:
            os.close(fd)
        if full:
            with contextlib.suppress(OSError):
                os.replace(self.path, self.path + ".1")


def read(path: str, *, follow: bool = False) -> Iterator[dict[str, object]]:
    """The lines of the file and of the one before it; with ``follow`` also those to come."""
    for old in (path + ".1", path):
        with contextlib.suppress(FileNotFoundError), open(old, "rb") as file:
            if old == path and follow:
                yield from _follow(path, file.fileno())
                return
            for line in file:
                yield from _parsed(line)
    if follow:
        while not os.path.exists(path):
            time.sleep(_FOLLOW_SECONDS)
        yield from read(path, follow=True)


def _follow(path: str, fd: int) -> Iterator[dict[str, object]]:
    """The lines of an open file, then those of each file that takes its place."""
    fd = os.dup(fd)
    try:
        held = b""
        while True:
            data = os.read(fd, 1 << 16)
            if data:
                *lines, held = (held + data).split(b"\n")
                for line in lines:
                    yield from _parsed(line)
                continue
            with contextlib.suppress(FileNotFoundError):
                if not os.path.samestat(os.stat(path), os.fstat(fd)):
                    new = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    os.dup2(new, fd)
                    os.close(new)
                    held = b""
                    continue
            time.sleep(_FOLLOW_SECONDS)
    finally:
        os.close(fd)


def _parsed(line: bytes) -> Iterator[dict[str, object]]:
    try:
        found = json.loads(line)
    except ValueError:
        return  # cut short by a full disk
    if isinstance(found, dict):
        yield found


def shown(line: Mapping[str, object]) -> str:
    """A line for people."""
    at = line.get("time")
    when = time.strftime("%H:%M:%S", time.localtime(at)) if isinstance(at, float) else "--:--:--"
    target = f"{line.get('host')}:{line.get('port')}"
    if line.get("op") == "resolve":
        target = str(line.get("host"))
    what = [when, f"process {line.get('process')}"]
    if line.get("kind") == END:
        what += ["ended", target, f"{line.get('sent')} bytes sent, {line.get('received')} received"]
        what += [f"{line.get('milliseconds')} ms", str(line.get("outcome"))]
    else:
        method = line.get("method") or line.get("protocol")
        what += [str(line.get("decision")), target, f"{method}", f"({line.get('reason')})"]
        if line.get("rule"):
            what.append(f"by {line['rule']}")
    if line.get("comm"):
        what.append(f"[{line['comm']} {line.get('pid')}]")
    return "  ".join(what)
