"""The environment variables that lead a command's programs to the proxy.  Pure.

They are laid over those of the request.  A name in another letter case than ours is removed: some
programs read it, and it must not lead anywhere else.  Nothing is enforced by variables; a sandboxed
command that ignores them reaches nothing.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: Where the proxy of a sandboxed command listens, in its own network namespace.
INNER_PORT = 800
#: And where names are asked for there.
RESOLVER_PORT = 53
INNER_HOST = "127.0.0.1"

_BOTH_CASES = ("HTTP_PROXY", "HTTPS_PROXY", "WS_PROXY", "WSS_PROXY", "GRPC_PROXY")
_HTTP = (
    *_BOTH_CASES,
    *map(str.lower, _BOTH_CASES),
    "YARN_HTTP_PROXY",
    "YARN_HTTPS_PROXY",
    "BUNDLE_HTTP_PROXY",
    "BUNDLE_HTTPS_PROXY",
    "PIP_PROXY",
    "DOCKER_HTTP_PROXY",
    "DOCKER_HTTPS_PROXY",
    "npm_config_proxy",
    "npm_config_https_proxy",
    "NPM_CONFIG_PROXY",
    "NPM_CONFIG_HTTPS_PROXY",
)
_SOCKS = ("ALL_PROXY", "all_proxy", "FTP_PROXY", "ftp_proxy")
_EXEMPT = (
    "NO_PROXY",
    "no_proxy",
    "npm_config_noproxy",
    "NPM_CONFIG_NOPROXY",
    "YARN_NO_PROXY",
    "BUNDLE_NO_PROXY",
)
#: Hosts that programs reach without the proxy, where local addresses are allowed.
_LOCAL = "localhost,127.0.0.1,::1,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16"
#: Not set, for npm warns of it each time, and not left to lead elsewhere either.
_REMOVED = ("npm_config_http_proxy",)


def proxied(
    env: Mapping[bytes, bytes],
    *,
    socks: bool,
    local_binding: bool,
    java: bool = False,
    port: int = INNER_PORT,
) -> dict[bytes, bytes]:
    """The environment of a command whose proxy listens on this port of loopback.

    ``socks``: whether SOCKS is served.  ``local_binding``: programs connect to local addresses
    directly.  ``java``: the command can start a JVM, which reads no proxy variable.
    """
    ours, closed, ssh = _ours(port, socks, local_binding)
    found = {name: value for name, value in env.items() if name.lower() not in closed}
    found |= ours
    if java:
        options = f"-Dhttp{{}}.proxyHost={INNER_HOST} -Dhttp{{}}.proxyPort={port}"
        given = found.get(b"JAVA_TOOL_OPTIONS", b"")
        added = f"{options.format('', '')} {options.format('s', 's')}".encode()
        found[b"JAVA_TOOL_OPTIONS"] = given + b" " + added if given else added
    found.setdefault(b"GIT_SSH_COMMAND", ssh)
    return found


@lru_cache(16)
def _ours(
    port: int, socks: bool, local_binding: bool
) -> tuple[dict[bytes, bytes], frozenset[bytes], bytes]:
    """Our variables, the names in lower case that are closed to others, and the ssh of git."""
    values = {name.encode(): value.encode() for name, value in _values(port, socks, local_binding)}
    closed = frozenset((*map(bytes.lower, values), *map(str.encode, _REMOVED)))
    return values, closed, _ssh(port).encode()


def _values(port: int, socks: bool, local_binding: bool) -> list[tuple[str, str]]:
    address = f"{INNER_HOST}:{port}"
    http = f"http://{address}"
    exempt = _LOCAL if local_binding else ""
    return [
        *((name, http) for name in _HTTP),
        *((name, f"socks5h://{address}" if socks else http) for name in _SOCKS),
        *((name, exempt) for name in _EXEMPT),
        ("NODE_USE_ENV_PROXY", "1"),
        ("ELECTRON_GET_USE_PROXY", "true"),
        ("CODEX_NETWORK_PROXY_ACTIVE", "1"),
        ("CODEX_NETWORK_ALLOW_LOCAL_BINDING", "1" if local_binding else "0"),
        ("CLOUDSDK_PROXY_TYPE", "http"),
        ("CLOUDSDK_PROXY_ADDRESS", INNER_HOST),
        ("CLOUDSDK_PROXY_PORT", str(port)),
        ("RSYNC_PROXY", address),
    ]


def _ssh(port: int) -> str:
    """The ``ssh`` that git starts: through a tunnel of the proxy, on a connection of its own."""
    from shlex import join, quote

    program = os.path.join(os.path.dirname(__file__), "tunnel_program.py")
    words = [sys.executable, "-I", "-S", "-B", program, INNER_HOST, str(port)]
    tunnel = quote(f"ProxyCommand={join(words)} %h %p")
    return f"ssh -o ControlMaster=no -o ControlPath=none -o {tunnel}"
