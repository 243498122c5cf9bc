"""The table of methods: name -> shapes, family, lane, origin.

Everything else about a method follows from its row: which handshake error it gives, in which
lane it waits, what ``docs/protocol.md`` says about it.  Rows without shapes are methods of the
wire that this server does not offer yet.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from handrail.protocol import capability, configuration, environment, filesystem, http, process


class Lane(enum.Enum):
    """Requests of one lane never wait for those of the other."""

    CONTROL = "control"
    ORDINARY = "ordinary"


class Origin(enum.Enum):
    """Whether the wire or handrail defines a method."""

    WIRE = "wire"
    OURS = "handrail"


@dataclass(frozen=True, slots=True)
class Method:
    """One call a client can make."""

    name: str
    family: str
    params: type[Any] | None
    result: type[Any] | None
    lane: Lane = Lane.ORDINARY
    origin: Origin = Origin.WIRE
    about: str = ""


@dataclass(frozen=True, slots=True)
class ServerNotification:
    """One notification of the server."""

    name: str
    params: type[Any]
    about: str


_E, _F, _H, _P = environment, filesystem, http, process
_CONTROL, _OURS = Lane.CONTROL, Origin.OURS

INITIALIZE = "initialize"
INITIALIZED = "initialized"
START = "process/start"

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            INITIALIZE,
            "",
            _E.InitializeParams,
            _E.InitializeResult,
            about="Begin a session or resume one.",
        ),
        Method(
            "environment/info",
            "environment info",
            _E.Empty,
            _E.EnvironmentInfo,
            _CONTROL,
            about="Shell, directories, version and capabilities of this machine.",
        ),
        Method(
            "environment/status",
            "environment status",
            _E.Empty,
            _E.EnvironmentStatus,
            _CONTROL,
            about="Whether commands can be run.",
        ),
        Method(
            START,
            "exec",
            _P.StartParams,
            _P.StartResult,
            about="Start one process on pipes or in a terminal.",
        ),
        Method(
            "process/read",
            "exec",
            _P.ReadParams,
            _P.ReadResult,
            about="Retained output above a number; waits up to `waitMs` for some.",
        ),
        Method(
            "process/write",
            "exec",
            _P.WriteParams,
            _P.WriteResult,
            about="Bytes for stdin, applied once per `writeId`.",
        ),
        Method(
            "process/signal",
            "exec",
            _P.SignalParams,
            _E.Nothing,
            _CONTROL,
            about="Signal the process group (`interrupt`, or ours: any signal by name).",
        ),
        Method(
            "process/terminate",
            "exec",
            _P.TerminateParams,
            _P.TerminateResult,
            _CONTROL,
            about="Kill the whole tree, after a grace if one is given.",
        ),
        Method(
            "process/resize",
            "exec",
            _P.ResizeParams,
            _E.Nothing,
            _CONTROL,
            _OURS,
            about="Set the size of a terminal.",
        ),
        Method(
            "process/closeStdin",
            "exec",
            _P.ProcessParams,
            _E.Nothing,
            Lane.ORDINARY,
            _OURS,
            about="End of file on stdin; a terminal gets its end-of-file key.",
        ),
        Method(
            "process/wait",
            "exec",
            _P.WaitParams,
            _P.WaitResult,
            Lane.ORDINARY,
            _OURS,
            about="Wait for a pattern in the output, idleness, the exit or a deadline.",
        ),
        Method(
            "process/list",
            "exec",
            _E.Empty,
            _P.ListResult,
            _CONTROL,
            _OURS,
            about="The processes of this session.",
        ),
        Method(
            "session/close",
            "exec",
            _E.Empty,
            _E.Nothing,
            _CONTROL,
            _OURS,
            about="End the session and every process of it now.",
        ),
        Method(
            "session/temporary",
            "exec",
            _E.Empty,
            _E.TemporaryResult,
            Lane.ORDINARY,
            _OURS,
            about="A private directory for temporary files, made once; it goes with the session.",
        ),
        Method(
            "fs/readFile",
            "filesystem",
            _F.LinkParams,
            _F.ReadFileResult,
            about="The whole content of a regular file.",
        ),
        Method(
            "fs/writeFile",
            "filesystem",
            _F.WriteFileParams,
            _E.Nothing,
            about="Put content in place, entirely or not at all.",
        ),
        Method(
            "fs/createDirectory",
            "filesystem",
            _F.CreateDirectoryParams,
            _E.Nothing,
            about="Make a directory, with its parents.",
        ),
        Method(
            "fs/getMetadata",
            "filesystem",
            _F.LinkParams,
            _F.MetadataResult,
            about="What a path leads to.",
        ),
        Method(
            "fs/canonicalize",
            "filesystem",
            _F.PathParams,
            _F.PathResult,
            about="The path without links and dots.",
        ),
        Method(
            "fs/readDirectory",
            "filesystem",
            _F.PathParams,
            _F.ReadDirectoryResult,
            about="The names in a directory.",
        ),
        Method(
            "fs/walk",
            "filesystem",
            _F.WalkParams,
            _F.WalkResultShape,
            about="A bounded listing of a tree.",
        ),
        Method(
            "fs/remove",
            "filesystem",
            _F.RemoveParams,
            _E.Nothing,
            about="Remove a file, a link or a tree.",
        ),
        Method(
            "fs/copy",
            "filesystem",
            _F.CopyParams,
            _E.Nothing,
            about="Copy a file, a link or a tree.",
        ),
        Method(
            "fs/open",
            "filesystem",
            _F.OpenParams,
            _F.HandleResult,
            about="Open a file to read or replace it in blocks.",
        ),
        Method(
            "fs/readBlock",
            "filesystem",
            _F.ReadBlockParams,
            _F.ReadBlockResult,
            about="A block of an open file.",
        ),
        Method(
            "fs/writeBlock",
            "filesystem",
            _F.WriteBlockParams,
            _E.Nothing,
            about="A block into an open file.",
        ),
        Method(
            "fs/close",
            "filesystem",
            _F.HandleParams,
            _E.Nothing,
            _CONTROL,
            about="Close an open file; a replaced one is put in place now.",
        ),
        Method(
            "fs/watchMissing",
            "filesystem",
            _F.WatchMissingParams,
            _F.WatchMissingResult,
            about="Be told once when a missing path appears.",
        ),
        Method(
            "http/request",
            "http",
            _H.HttpRequestParams,
            _H.HttpResponseResult,
            about="One HTTP request from this machine; the body whole or streamed.",
        ),
        Method(
            "capabilityRoots/discoverV1",
            "capability discovery",
            capability.DiscoverRootsParams,
            capability.DiscoverRootsResult,
            about="Plugin and skill files below some directories.",
        ),
        Method(
            "environmentConfig/read",
            "environment config",
            configuration.ConfigReadParams,
            configuration.ConfigReadResult,
            about="Chosen keys of the configuration files, as TOML.",
        ),
        # Of the wire, not offered: it answers -32601 after the handshake checks.
        Method("capabilities/discoverV2", "capability discovery", None, None),
    )
}

NOTIFICATIONS: tuple[ServerNotification, ...] = (
    ServerNotification("process/output", _P.OutputNotification, "Output, as it happens."),
    ServerNotification("process/exited", _P.ExitedNotification, "The process has exited."),
    ServerNotification(
        "process/closed", _P.ClosedNotification, "Exited, and every stream has ended."
    ),
    ServerNotification(
        "fs/missingChanged", _F.MissingChangedNotification, "A missing path has appeared."
    ),
    ServerNotification(
        "http/request/bodyDelta", _H.BodyDeltaNotification, "A piece of a streamed HTTP body."
    ),
)
