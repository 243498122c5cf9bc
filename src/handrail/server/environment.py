"""Facts about this machine, for ``environment/info``."""

from __future__ import annotations

import hashlib
import os
import pwd
from collections.abc import Mapping

from handrail.process.keeper_client.launcher import Abilities
from handrail.process.output.spool import can_splice
from handrail.process.stdin.log import can_send
from handrail.protocol.environment import EnvironmentInfo, Shell
from handrail.protocol.path_uri import to_uri
from handrail.version import __version__

#: Capabilities of the peer: which of them this server has.
_WIRE_CAPABILITIES = {
    "networkProxyLaunch": False,
    "networkProxyReviewDomains": False,
    "credentialMasking": False,
    "credentialMaskingCustomProviders": False,
    "capabilityDiscoverySandbox": False,
    "fsWatchMissing": True,
    "capabilityDiscoveryV2": False,
    "environmentConfigRead": True,
    "httpHeaderEnvVars": False,
    "sandboxedFileStreaming": True,
    "fileWriteStreaming": True,
    "shellSnapshotV2": False,
    "windowsMxc": False,
    "linuxRootWritePreservesDevices": False,
    "linuxApprovedRootWritePreservesRestrictions": False,
}

#: Our own capabilities, so that a client can check before it uses them.
EXTENSIONS = {
    "resumeSecret": True,
    "detachTtl": True,
    "processName": True,
    "percentWords": True,
    "processSize": True,
    "processResize": True,
    "processCloseStdin": True,
    "writeBusy": True,
    "processList": True,
    "processSignals": True,
    "processWait": True,
    "waitId": True,
    "terminateGrace": True,
    "exitInfo": True,
    "omitted": True,
    "onLag": True,
    "timeout": True,
    "detach": True,
    "heldOpen": True,
    "sessionClose": True,
    "sessionTemporary": True,
    "privateTmp": True,
    "sandboxBackend": True,
    "denials": True,
    "watchDenials": True,
    "keeper": True,
}


def describe(
    environ: Mapping[str, str],
    abilities: Abilities,
    *,
    header_env: bool = False,
    waits: bool = True,
) -> EnvironmentInfo:
    """Describe this machine once; nothing of it changes while a server runs.

    ``waits``: whether a waiting request leaves the others free.  If not, a client that waits for a
    process could not write to it meanwhile, and should follow the output instead.
    """
    shell = _shell(environ)
    home = environ.get("HOME") or _passwd_field(5)
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
            **_WIRE_CAPABILITIES,
            "httpHeaderEnvVars": header_env,
            "handrail": {**EXTENSIONS, "processWait": waits, **_machine(abilities)},
        },
    )


def _machine(abilities: Abilities) -> dict[str, bool]:
    """What depends on the machine: how trees are ended, which limits can be set, and whether output
    in flight survives a killed server."""
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


def _shell(environ: Mapping[str, str]) -> str:
    for path in (_passwd_field(6), environ.get("SHELL", ""), "/bin/bash"):
        if path and os.access(path, os.X_OK):
            return path
    return "/bin/sh"


def _passwd_field(index: int) -> str:
    try:
        return str(pwd.getpwuid(os.getuid())[index])
    except KeyError:
        return ""
