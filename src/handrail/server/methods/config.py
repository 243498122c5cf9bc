"""``environmentConfig/read``: chosen keys of Codex configuration files, as TOML.

Codex clients keep their settings in these files; handrail has none of its own there.
"""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from handrail.errors import FilesError, RpcError
from handrail.filesystem.pool import DEADLINE
from handrail.protocol import path_uri, toml_text
from handrail.protocol.envelope import INTERNAL_ERROR, INVALID_PARAMS
from handrail.protocol.environment import (
    ConfigLayer,
    ConfigLayers,
    ConfigReadParams,
    ConfigReadResult,
)
from handrail.server import codex_config
from handrail.server.codex_config import Layer, Layers, LayersError

if TYPE_CHECKING:
    from handrail.server.connection import Connection


#: Requested names and, below each, what is requested of it; empty means all of it.
Wanted = dict[str, "Wanted"]


async def read_config(conn: Connection, params: ConfigReadParams) -> ConfigReadResult:
    try:
        cwd = path_uri.to_path(params.cwd)
    except (path_uri.BadUri, path_uri.NotNative) as error:
        raise RpcError(INVALID_PARAMS, str(error)) from None
    if not params.config_paths and not params.requirements_paths:
        text = "at least one config or requirements path is required"
        raise RpcError(INVALID_PARAMS, text)
    config, requirements = _wanted(params.config_paths), _wanted(params.requirements_paths)
    environment = conn.server.own_environment
    try:
        return await conn.files.pool.run(
            _read, cwd, environment, config, requirements, deadline=DEADLINE
        )
    except (LayersError, FilesError) as error:
        text = f"failed to load executor-local config: {error}"
        raise RpcError(INTERNAL_ERROR, text) from None
    except RecursionError:  # dotted keys nest without bound, and are read without recursion
        text = "failed to load executor-local config: a file is nested too deeply"
        raise RpcError(INTERNAL_ERROR, text) from None


def _wanted(paths: list[list[str]]) -> Wanted:
    """The requested paths as a tree; a path covers those below it."""
    top: Wanted = {}
    for path in paths:
        if not path:
            raise RpcError(INVALID_PARAMS, "TOML paths must contain at least one key segment")
    for path in sorted(paths, key=len, reverse=True):
        level = top
        for name in path[:-1]:
            level = level.setdefault(name, {})
        level[path[-1]] = {}
    return top


def _read(
    cwd: bytes, environment: Mapping[str, str], config: Wanted, requirements: Wanted
) -> ConfigReadResult:
    home = environment.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir
    codex_home = _codex_home(environment, home)
    for_config, for_requirements = codex_config.load(cwd, codex_home)
    return ConfigReadResult(
        user_home_dir=path_uri.to_uri(os.fsencode(home)),
        codex_home_dir=path_uri.to_uri(codex_home),
        hostname=_hostname(),
        config=_shapes(for_config, config),
        requirements=_shapes(for_requirements, requirements),
    )


def _codex_home(environment: Mapping[str, str], home: str) -> bytes:
    given = environment.get("CODEX_HOME")
    if not given:
        return os.path.join(os.fsencode(home), b".codex")
    if not os.path.isdir(given):
        what = "is not a directory" if os.path.exists(given) else "does not exist"
        text = f'failed to find Codex home: CODEX_HOME points to "{given}", but that path {what}'
        raise RpcError(INTERNAL_ERROR, text)
    return os.path.realpath(os.fsencode(given))


@cache
def _hostname() -> str:
    """The host name, fully qualified where the resolver knows it; cached."""
    name = socket.gethostname().lower()
    try:
        found = socket.getaddrinfo(name, None, flags=socket.AI_CANONNAME)[0][3]
    except (OSError, UnicodeError):
        return name
    return found.rstrip(".").lower() or name


def _shapes(layers: Layers, wanted: Wanted) -> ConfigLayers:
    shapes = [_shape(layer, wanted) for layer in layers.layers]
    below = shapes[: layers.below_cloud]
    return ConfigLayers(
        layers=[shape for shape in shapes if shape is not None],
        cloud_insertion_index=sum(shape is not None for shape in below),
    )


def _shape(layer: Layer, wanted: Wanted) -> ConfigLayer | None:
    chosen = {
        name: _choose(value, wanted[name]) for name, value in layer.values.items() if name in wanted
    }
    if not chosen:
        return None
    return ConfigLayer(
        source=layer.source,
        base_dir=path_uri.to_uri(layer.base),
        toml=toml_text.document(chosen),
    )


def _choose(value: Any, wanted: Wanted) -> Any:
    """The requested part of a value; one that is no table is taken whole."""
    if not wanted or not isinstance(value, Mapping):
        return value
    return {name: _choose(item, wanted[name]) for name, item in value.items() if name in wanted}


CONFIGURATION_HANDLERS: dict[str, Callable[[Connection, Any], Any]] = {
    "environmentConfig/read": read_config,
}
