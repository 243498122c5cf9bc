"""Starting a server under test, and seeing to it that nothing of it stays behind.

A server may hand its children to a helper that outlives it.  So every server gets a mark in
its environment: marked processes and all below them are one household, and when the server
has ended, whoever of the household is still there is a leftover and is ended by us.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tests.support.processes import children, command_line, has_ended, open_pidfd

MARK = "HANDRAIL_REPLAY_MARK"
LOCAL = "127.0.0.1,localhost"
START_LIMIT = 20.0
STOP_LIMIT = 10.0
#: How long members of a household may take to follow their server.
GRACE = 3.0


class ServerFailed(Exception):
    """A server did not say where it listens."""


class Household:
    """The processes that belong to one server, however they are related to it."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex

    def environment(self) -> Mapping[str, str]:
        """The environment of the server; requests to the fixture must not meet a proxy."""
        return {**os.environ, "NO_PROXY": LOCAL, "no_proxy": LOCAL, MARK: self.mark}

    def members(self) -> set[int]:
        """Marked processes and everything below them, for children may have any environment."""
        mark = f"{MARK}={self.mark}".encode()
        found: set[int] = set()
        todo = [pid for pid in all_pids() if mark in read(f"/proc/{pid}/environ").split(b"\0")]
        while todo:
            pid = todo.pop()
            if pid not in found:
                found.add(pid)
                todo += children(pid)
        return found

    @contextmanager
    def cleared(self, leftovers: list[str]) -> Iterator[None]:
        """Around the end of the server: afterwards nobody of the household is left.

        Who does not go within GRACE is killed, and its command line added to ``leftovers``.
        """
        handles = {pid: fd for pid in self.members() if (fd := open_pidfd(pid)) is not None}
        try:
            yield
            for pid in self.members() - set(handles):  # came while it was ending
                if (fd := open_pidfd(pid)) is not None:
                    handles[pid] = fd
            deadline = time.monotonic() + GRACE
            for pid, fd in handles.items():
                if not has_ended(fd, deadline - time.monotonic()):
                    leftovers.append(command_line(pid))
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            for fd in handles.values():
                os.close(fd)


class WebSocketServer:
    """A server that listens on a port of its choice and prints the URL."""

    def __init__(self, command: Sequence[str]) -> None:
        self.household = Household()
        self.leftovers: list[str] = []
        self.stderr = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            env=self.household.environment(),
        )
        try:
            self.url = self.read_url()
        except ServerFailed:
            self.stop()
            raise

    def read_url(self) -> str:
        """The one line it prints."""
        poll = select.poll()
        poll.register(self.process.stdout, select.POLLIN)
        deadline = time.monotonic() + START_LIMIT
        line = b""
        while not line.endswith(b"\n"):
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise ServerFailed(f"no URL after {START_LIMIT:g} s; {self.last_words()}")
            piece = os.read(self.process.stdout.fileno(), 4096)
            if not piece:
                raise ServerFailed(f"it ended before it listened; {self.last_words()}")
            line += piece
        return line.decode().strip()

    def last_words(self) -> str:
        """The end of what it said on stderr."""
        self.stderr.seek(0)
        return "stderr: " + self.stderr.read()[-600:].decode("utf-8", "replace")

    def stop(self) -> list[str]:
        """End it and its household; gives the command lines of whoever had to be killed."""
        with self.household.cleared(self.leftovers):
            self.process.terminate()
            try:
                self.process.wait(STOP_LIMIT)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()
        self.stderr.close()
        return self.leftovers


def all_pids() -> list[int]:
    """Every process there is."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read(path: str) -> bytes:
    """A file of /proc; nothing when the process is gone or not ours."""
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError:
        return b""
