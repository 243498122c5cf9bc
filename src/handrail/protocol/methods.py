"""The table of methods: name -> shapes, family, lane.

Everything else about a method follows from its row: which handshake error it gives, and in which
lane it waits.  Rows without shapes are methods of the wire that this server does not offer yet.
``docs/protocol.md`` is made from this table by ``scripts/protocol_reference``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from handrail.protocol import (
    capability,
    environment,
    file_trees,
    filesystem,
    http,
    loopback,
    network,
    process,
    workspace,
)


class Lane(enum.Enum):
    """Requests of one lane never wait for those of the other."""

    CONTROL = "control"
    ORDINARY = "ordinary"


@dataclass(frozen=True, slots=True)
class Method:
    """One call a client can make."""

    name: str
    family: str
    params: type[Any] | None
    result: type[Any] | None
    lane: Lane = Lane.ORDINARY


_E, _F, _H, _L, _P, _T = environment, filesystem, http, loopback, process, file_trees
_N, _W = network, workspace
_CONTROL = Lane.CONTROL

INITIALIZE = "initialize"
INITIALIZED = "initialized"
START = "process/start"
#: The one request of a server, and the notification of what was decided.
POLICY_REQUEST, POLICY_DECISION = "network/policyRequest", "network/policyDecision"

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(INITIALIZE, "", _E.InitializeParams, _E.InitializeResult),
        Method("environment/info", "environment info", _E.Empty, _E.EnvironmentInfo, _CONTROL),
        Method(
            "environment/status", "environment status", _E.Empty, _E.EnvironmentStatus, _CONTROL
        ),
        Method(START, "exec", _P.StartParams, _P.StartResult),
        Method("process/read", "exec", _P.ReadParams, _P.ReadResult),
        Method("process/write", "exec", _P.WriteParams, _P.WriteResult),
        Method("process/signal", "exec", _P.SignalParams, _E.Nothing, _CONTROL),
        Method("process/terminate", "exec", _P.TerminateParams, _P.TerminateResult, _CONTROL),
        # From here to the temporary directory: not of the peer's wire.
        Method("process/resize", "exec", _P.ResizeParams, _E.Nothing, _CONTROL),
        Method("process/closeStdin", "exec", _P.ProcessParams, _E.Nothing),
        Method("process/wait", "exec", _P.WaitParams, _P.WaitResult),
        Method("process/list", "exec", _P.ListParams, _P.ListResult, _CONTROL),
        Method("session/close", "exec", _E.Empty, _E.Nothing, _CONTROL),
        Method("session/temporary", "exec", _E.Empty, _E.TemporaryResult),
        Method("session/detach", "exec", _E.DetachParams, _E.Nothing, _CONTROL),
        Method("session/result", "exec", _E.ResultParams, _E.ResultResult),
        Method("server/status", "environment info", _E.Empty, _E.ServerStatus, _CONTROL),
        # Files, by the peer's names.
        Method("fs/readFile", "filesystem", _F.LinkParams, _F.ReadFileResult),
        Method("fs/writeFile", "filesystem", _F.WriteFileParams, _E.Nothing),
        Method("fs/createDirectory", "filesystem", _F.CreateDirectoryParams, _E.Nothing),
        Method("fs/getMetadata", "filesystem", _F.LinkParams, _F.MetadataResult),
        Method("fs/canonicalize", "filesystem", _F.PathParams, _F.PathResult),
        Method("fs/readDirectory", "filesystem", _F.PathParams, _F.ReadDirectoryResult),
        Method("fs/walk", "filesystem", _F.WalkParams, _F.WalkResultShape),
        Method("fs/remove", "filesystem", _F.RemoveParams, _E.Nothing),
        Method("fs/copy", "filesystem", _F.CopyParams, _E.Nothing),
        Method("fs/open", "filesystem", _F.OpenParams, _F.HandleResult),
        Method("fs/readBlock", "filesystem", _F.ReadBlockParams, _F.ReadBlockResult),
        Method("fs/writeBlock", "filesystem", _F.WriteBlockParams, _E.Nothing),
        Method("fs/close", "filesystem", _F.HandleParams, _E.Nothing, _CONTROL),
        Method("fs/watchMissing", "filesystem", _F.WatchMissingParams, _F.WatchMissingResult),
        # Trees and watches: ours.
        Method("fs/move", "filesystem", _T.MoveParams, _E.Nothing),
        Method("fs/listTree", "filesystem", _T.ListTreeParams, _T.ListTreeResult),
        Method("fs/listNames", "filesystem", _T.ListNamesParams, _T.ListNamesResult),
        Method("fs/readFiles", "filesystem", _T.ReadFilesParams, _T.ReadFilesResult),
        Method("fs/writeFiles", "filesystem", _T.WriteFilesParams, _T.WriteFilesResult),
        Method("fs/watch", "filesystem", _T.WatchParams, _E.Nothing),
        Method("fs/watchRead", "filesystem", _T.WatchReadParams, _T.WatchReadResult),
        Method("fs/unwatch", "filesystem", _T.UnwatchParams, _E.Nothing, _CONTROL),
        Method("http/request", "http", _H.HttpRequestParams, _H.HttpResponseResult),
        Method(
            "capabilityRoots/discoverV1",
            "capability discovery",
            capability.DiscoverRootsParams,
            capability.DiscoverRootsResult,
        ),
        Method(
            "environmentConfig/read",
            "environment config",
            environment.ConfigReadParams,
            environment.ConfigReadResult,
        ),
        # What was decided about hosts, for a process that runs: ours.
        Method("network/update", "network", _N.UpdateParams, _E.Nothing, _CONTROL),
        # Connections to what processes listen on, ours.
        Method("loopback/connect", "loopback", _L.ConnectParams, _E.Nothing),
        Method("loopback/read", "loopback", _L.ConnectionParams, _L.ReadResult),
        Method("loopback/write", "loopback", _L.WriteParams, _E.Nothing),
        Method("loopback/close", "loopback", _L.ConnectionParams, _E.Nothing, _CONTROL),
        # Workspaces of a fleet, all ours.
        Method("workspace/hold", "workspace", _W.HoldParams, _W.HoldResult, _CONTROL),
        Method("workspace/create", "workspace", _W.CreateParams, _W.WorkspaceResult),
        Method("workspace/enter", "workspace", _W.WorkspaceParams, _W.WorkspaceResult),
        Method("workspace/adopt", "workspace", _W.WorkspaceParams, _W.AdoptResult),
        Method("workspace/release", "workspace", _W.WorkspaceParams, _E.Nothing, _CONTROL),
        Method("workspace/list", "workspace", _W.ListParams, _W.ListResult, _CONTROL),
        Method("workspace/pool", "workspace", _W.PoolParams, _W.PoolResult),
        Method("template/add", "workspace", _W.TemplateAddParams, _E.Nothing),
        # Of the wire, not offered: it answers -32601 after the handshake checks.
        Method("capabilities/discoverV2", "capability discovery", None, None),
    )
}
