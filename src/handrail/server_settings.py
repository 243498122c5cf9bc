"""Settings of a server, as frozen data.  The command line parses them."""

from __future__ import annotations

import ipaddress
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from handrail.errors import UsageError

if TYPE_CHECKING:
    from handrail.server.auth.tokens import AuthSettings

DEFAULT_LISTEN = "ws://127.0.0.1:0"
DEFAULT_CONCURRENT_REQUESTS = 64
DEFAULT_PROCESSES = 8192
DEFAULT_SESSION_PROCESSES = 2048
#: Signals that stop a server.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_SOCKET_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+)):([0-9]{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Listen:
    """Where to listen: ``kind`` is "websocket", "unix" or "stdio"."""

    kind: str
    host: str = ""
    port: int = 0
    path: str = ""
    #: Tried first where ``port`` is 0: clients of a server that has crashed know it.
    port_before: int = 0

    @property
    def key(self) -> str:
        """By which the next server at the same address finds what this one has left."""
        return f"{self.kind} {self.host} {self.port} {self.path}"

    @property
    def is_loopback(self) -> bool:
        return self.kind != "websocket" or ipaddress.ip_address(self.host).is_loopback


@dataclass(frozen=True, slots=True)
class Quota:
    """How much one session, and all of them, may have at a time."""

    session_processes: int = DEFAULT_SESSION_PROCESSES
    processes: int = DEFAULT_PROCESSES
    #: Retained output of the processes of one session.
    session_bytes: int = 1024 * 1024 * 1024
    #: Retained output of all sessions.
    bytes: int = 4 * 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class WorkspaceSettings:
    """Where a server holds workspaces for a fleet, and what it may give to them."""

    directory: str
    cpu_millis: int
    memory_bytes: int
    workspaces: int
    #: Bytes that have to stay free on the disk.
    min_free: int = 0
    #: Seconds after which everything ends unless a supervisor touches the stamp; None: never.
    supervised: float | None = None


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The certificate chain and the key of a TLS listener, by their paths."""

    certificate: str
    key: str


@dataclass(frozen=True, slots=True)
class ResultBounds:
    """How long and how much of the results of left processes is stored (``handrail.results``)."""

    #: Seconds after its last change.
    keep: float = 7 * 86_400.0
    #: Bytes of output of each process.
    each: int = 64 * 1024 * 1024
    #: Bytes of all of them; the oldest go first.
    total: int = 1024 * 1024 * 1024

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str], given: Mapping[str, float] | None = None
    ) -> ResultBounds:
        """The bounds that HANDRAIL_RESULTS_KEEP, _EACH and _TOTAL set; raises UsageError.

        Those that are ``given`` go before.
        """
        from handrail.units import parse_duration, parse_size

        given = given or {}
        found = replace(cls(), **given)  # type: ignore[arg-type]
        for name, parse in (("keep", parse_duration), ("each", parse_size), ("total", parse_size)):
            variable = f"HANDRAIL_RESULTS_{name.upper()}"
            if name not in given and (text := environ.get(variable)):
                try:
                    found = replace(found, **{name: parse(text)})  # type: ignore[arg-type]
                except UsageError as error:
                    raise UsageError(f"{variable}: {error}") from None
        return found


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """All settings a server gets at its start."""

    listen: Listen
    auth: AuthSettings
    #: Permits of each lane.
    concurrent_requests: int = DEFAULT_CONCURRENT_REQUESTS
    #: Given on the command line: then waiting requests count too, as with the peer.
    strict_lanes: bool = False
    detach_ttl: float = 30.0
    retention: float = 30.0
    on_stop: str = "end"
    #: Time that children get between TERM and KILL when the server stops.
    stop_grace: float = 1.0
    state_dir: str | None = None
    orphan_ttl: float = 600.0
    insecure_no_auth: bool = False
    #: Whether processes of other users of this machine may connect on loopback.
    any_user: bool = False
    #: Export metrics and spans by OTLP, as the OTEL_EXPORTER_* variables say.
    otel: bool = False
    quota: Quota = Quota()
    workspaces: WorkspaceSettings | None = None
    tls: TlsFiles | None = None
    results: ResultBounds = ResultBounds()
    #: Variables that look like secrets and that an HTTP request may send in a header.
    http_header_env: tuple[str, ...] = field(default=())
    allowed_hosts: tuple[str, ...] = field(default=())
    allowed_origins: tuple[str, ...] = field(default=())


def parse_listen(url: str) -> Listen:
    """Read ``--listen``; raises UsageError with the wire's sentences."""
    if url in ("stdio", "stdio://"):
        return Listen("stdio")
    if url.startswith("ws://"):
        match = _SOCKET_ADDRESS.fullmatch(url[5:])
        try:
            if match is None or int(match[3]) > 65_535:
                raise ValueError
            v6, v4, port = match.groups()
            host = str(ipaddress.IPv6Address(v6) if v6 else ipaddress.IPv4Address(v4))
        except ValueError:
            raise UsageError(
                f"invalid websocket --listen URL `{url}`; expected `ws://IP:PORT`"
            ) from None
        return Listen("websocket", host=host, port=int(port))
    if url.startswith("unix:"):
        path = url[5:].removeprefix("//")
        if path.startswith("/"):
            return Listen("unix", path=path)
        raise UsageError(f"invalid --listen URL `{url}`; expected `unix:/ABSOLUTE/PATH`")
    raise UsageError(
        f"unsupported --listen URL `{url}`; expected `ws://IP:PORT` or `stdio` or `unix:PATH`"
    )
