"""The servers under test: ours, and on request the peer's own, each on both transports.

A WebSocket server is started once and serves every task.  A stdio server is started by the
client itself, from ``environments.toml``, once for each task.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.interop.codex import toml_list
from tests.interop.recorder import Cut, Recorder
from tests.interop.recording import Recording, load
from tests.interop.tasks import FILES, HTTP, SANDBOX
from tests.wire.servers import WebSocketServer

PEER_WANTED = os.environ.get("HANDRAIL_INTEROP_PEER") == "1"
#: What each server can do beyond running commands.  Whoever adds it to ours adds it here.
OFFERS = {"ours": frozenset({FILES, HTTP, SANDBOX}), "peer": frozenset({FILES, HTTP, SANDBOX})}
#: Variables of the server's own surroundings, for the task that looks for them.
SURROUNDINGS = {"HANDRAIL_INTEROP_SERVER": "kept", "HANDRAIL_INTEROP_DROP": "dropped"}
TAP = Path(__file__).with_name("stdio_tap.py")


@dataclass(frozen=True)
class Kind:
    """Whose server, and how it is reached."""

    who: str
    transport: str

    @property
    def name(self) -> str:
        """As it is called in the names of tests."""
        return f"{self.who}-{self.transport}"

    @property
    def offers(self) -> frozenset[str]:
        """What it can do beyond running commands."""
        return OFFERS[self.who]

    def command(self, codex: str, home: Path, listen: str) -> list[str]:
        """How it is started."""
        if self.who == "ours":
            return [sys.executable, "-m", "handrail", "serve", "--listen", listen]
        # Its sandbox works only with a home outside the system's temporary directory.
        return ["env", f"CODEX_HOME={home}", codex, "exec-server", "--listen", listen]


KINDS = [
    Kind(who, transport)
    for who in (("ours", "peer") if PEER_WANTED else ("ours",))
    for transport in ("ws", "stdio")
]


class Servers:
    """The listening servers; each is started when it is first needed."""

    def __init__(self, codex: str, home: Path) -> None:
        self._codex = codex
        self._home = home
        self._running: dict[str, WebSocketServer] = {}

    def url(self, kind: Kind) -> str:
        """Where a server listens."""
        if kind.who not in self._running:
            # Nothing of what a user's shell reads on its own; it may print something.
            settings = ["-u", "BASH_ENV", f"HOME={self._home}"]
            settings += [f"{name}={value}" for name, value in SURROUNDINGS.items()]
            command = kind.command(self._codex, self._home, "ws://127.0.0.1:0")
            self._running[kind.who] = WebSocketServer(["env", *settings, *command])
        return self._running[kind.who].url

    def stop(self) -> dict[str, list[str]]:
        """End them all; gives the command lines of what was left of each."""
        return {who: server.stop() for who, server in self._running.items()}


@dataclass(frozen=True)
class Attachment:
    """What the client has to be given to find a server, and what they said to each other."""

    environment: Mapping[str, str]
    recording: Recording


@contextmanager
def over_websocket(url: str, cuts: tuple[Cut, ...]) -> Iterator[Attachment]:
    """The client is pointed at a proxy in front of the server, by a variable."""
    with Recorder(url, cuts).listening() as recorder:
        yield Attachment({"CODEX_EXEC_SERVER_URL": recorder.url}, recorder.recording)
    assert recorder.cut_count == len(cuts), "the line was not cut where it was to be"


@contextmanager
def over_stdio(kind: Kind, codex: str, home: Path) -> Iterator[Attachment]:
    """The client finds in its home how to start the server, with a tap in between."""
    log = home / "wire.jsonl"
    command = kind.command(codex, home / "server", "stdio")
    settings = ", ".join(f'{name} = "{value}"' for name, value in SURROUNDINGS.items())
    (home / "environments.toml").write_text(
        f"""\
default = "remote"
include_local = false

[[environments]]
id = "remote"
program = "{sys.executable}"
args = {toml_list([str(TAP), str(log), *command])}
env = {{ {settings} }}
"""
    )
    recording = Recording()
    yield Attachment({}, recording)
    with log.open() as lines:
        recording.frames[:] = load(lines).frames
