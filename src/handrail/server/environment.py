"""Facts about this machine, for ``environment/info``."""

from __future__ import annotations

import hashlib
import os
import pwd
from collections.abc import Mapping

from handrail.process.default_shell import default_shell
from handrail.process.keeper_client.answers import Abilities
from handrail.process.output.spool import can_splice
from handrail.process.stdin.log import can_send
from handrail.protocol.environment import EnvironmentInfo, Shell
from handrail.protocol.path_uri import to_uri
from handrail.version import __version__

#: Capabilities of the peer, and those of them that this server has.
_WIRE_CAPABILITIES = (
    "networkProxyLaunch", "networkProxyReviewDomains", "credentialMasking",
    "credentialMaskingCustomProviders", "capabilityDiscoverySandbox", "fsWatchMissing",
    "capabilityDiscoveryV2", "environmentConfigRead", "httpHeaderEnvVars", "sandboxedFileStreaming",
    "fileWriteStreaming", "shellSnapshotV2", "windowsMxc", "linuxRootWritePreservesDevices",
    "linuxApprovedRootWritePreservesRestrictions",
)  # fmt: skip
_HAS = frozenset({
    "networkProxyLaunch", "fsWatchMissing", "environmentConfigRead", "sandboxedFileStreaming",
    "fileWriteStreaming",
})  # fmt: skip

#: Our own capabilities, so that a client can check before it uses them.
EXTENSIONS = (
    "resumeSecret", "detachTtl", "processName", "percentWords", "processSize", "processResize",
    "processCloseStdin", "writeBusy", "processList", "processSignals", "processWait", "waitId",
    "terminateGrace", "exitInfo", "omitted", "onLag", "timeout", "detach", "heldOpen",
    "sessionClose", "sessionTemporary", "privateTmp", "sandboxBackend", "denials", "watchDenials",
    "fileBatches", "fileWatch", "keeper", "labels", "secretEnv", "processUsage", "sessionDetach",
    "sessionResult", "serverStatus", "network", "loopback", "networkUpdate",
    "startGather",
)  # fmt: skip


def describe(
    environ: Mapping[str, str],
    abilities: Abilities,
    *,
    header_env: bool = False,
    waits: bool = True,
    workspaces: bool = False,
) -> EnvironmentInfo:
    """Describe this machine once; nothing of it changes while a server runs.

    ``waits``: whether a waiting request leaves the others free.  If not, a client that waits for a
    process could not write to it meanwhile, and should follow the output instead.
    ``workspaces``: whether it was given a directory to hold workspaces in.
    """
    shell = default_shell(environ)
    home = environ.get("HOME") or _home()
    tmpdir = environ.get("TMPDIR")
    identity = hashlib.sha256(f"handrail {__version__}".encode()).hexdigest()
    return EnvironmentInfo(
        shell=Shell(name=os.path.basename(shell), path=shell),
        executor_version=__version__,
        provider_id=f"sha256:{identity}",
        cwd=to_uri(_cwd()),
        user_home_dir=to_uri(os.fsencode(home)) if home else None,
        platform_os="linux",
        prepend_path_dirs=[],
        temporary_directories=[to_uri(os.fsencode(tmpdir))] if tmpdir else [],
        temp_dir=to_uri(os.fsencode(tmpdir or "/tmp")),  # noqa: S108 (the system's default)
        capabilities={
            **{name: name in _HAS for name in _WIRE_CAPABILITIES},
            "httpHeaderEnvVars": header_env,
            "handrail": {
                **dict.fromkeys(EXTENSIONS, True),
                "processWait": waits,
                "workspaces": workspaces,
                **_machine(abilities),
            },
        },
    )


def of_fleet(environ: Mapping[str, str]) -> dict[str, str]:
    """The server's own environment without what a fleet has in it: no command is to see that."""
    return {n: v for n, v in environ.items() if not n.startswith(("RAY_", "HANDRAIL_"))}


def _machine(abilities: Abilities) -> dict[str, bool]:
    """Facts that depend on the machine: how trees are ended, which limits can be set, and whether
    output in flight survives a killed server."""
    limits = abilities.limits
    return {
        "treeKillCgroup": abilities.trees == "cgroup",
        "treeKillWalk": abilities.trees == "walk",
        "splice": can_splice() and can_send(),
        "limitOutputBytes": True,
        "limitMemoryBytes": "memory" in limits,
        "limitPids": "pids" in limits,
        "limitCpuSeconds": "cpu" in limits,
        "limitAddressSpaceBytes": "space" in limits,
        "limitOpenFiles": "files" in limits,
        "limitFileBytes": "filesize" in limits,
    }


def _cwd() -> bytes:
    try:
        return os.getcwdb()
    except FileNotFoundError:  # the directory was removed under us
        return b"/"


def _home() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""
