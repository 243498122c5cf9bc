"""``capabilityRoots/discoverV1``: the files below a directory that describe plugins and skills.

Nothing is interpreted except where a manifest says that its companions are; contents are sent
as they are.  What cannot be read is a warning, and a root that cannot be looked at fails alone.

The rules are those of exec-server 0.166.0, observed from its answers: one bounded walk that
follows links to directories; manifests and skills only as regular files of that walk, the root's
own manifest and all companions through links too; the first manifest of a directory counts, and
at the root the first that can be read; without one there, the nearest above it.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from handrail.errors import FilesError, RpcError
from handrail.filesystem import regular_file, walk
from handrail.filesystem.errors import native, os_errors, os_text, utf8_text
from handrail.filesystem.pool import DEADLINE
from handrail.protocol import codec, path_uri
from handrail.protocol.capability import (
    CapabilityFile,
    DiscoveredRoot,
    DiscoverRootsParams,
    PluginFiles,
    RootParams,
    SkillFiles,
)
from handrail.protocol.envelope import INVALID_PARAMS, INVALID_REQUEST
from handrail.server.raw_results import Parts

if TYPE_CHECKING:
    from handrail.server.connection import Connection

MOST_ROOTS = 128
FILE_LIMIT = 1024 * 1024
BUNDLE_LIMIT = 16 * 1024 * 1024
#: Our own bound: what all roots of one request may hold together.
ANSWER_LIMIT = 128 * 1024 * 1024
BOUNDS = walk.WalkOptions(
    max_depth=6, max_directories=2000, max_entries=20_000, follow_directory_symlinks=True
)

MANIFESTS = (
    b".codex-plugin/plugin.json",
    b".claude-plugin/plugin.json",
    b".cursor-plugin/plugin.json",
)
SKILL = b"SKILL.md"
METADATA = b"agents/openai.yaml"


async def discover_roots(conn: Connection, params: DiscoverRootsParams) -> Parts:
    if len(params.roots) > MOST_ROOTS:
        text = f"capability root discovery accepts at most {MOST_ROOTS} roots"
        raise RpcError(INVALID_REQUEST, text)
    places = [_place(root) for root in params.roots]
    parts: list[bytes] = []
    room = ANSWER_LIMIT
    for root, (uri, path) in zip(params.roots, places, strict=True):
        if path is None:
            found, used = _failed(root.id, uri, f"'{uri}' is invalid on 'linux'"), 0
        else:
            try:
                found, used = await conn.files.pool.run(
                    _discover, root.id, uri, path, min(room, BUNDLE_LIMIT), deadline=DEADLINE
                )
            except FilesError as error:
                found, used = _failed(root.id, uri, str(error)), 0
        room -= used
        parts += (b",", found)
    return Parts([b'{"roots":[', *parts[1:], b"]}"])


def _place(root: RootParams) -> tuple[str, bytes | None]:
    """The URI as it is answered, and its path if it is one of this machine."""
    _refuse_sandbox(root.sandbox)
    try:
        path = path_uri.to_path(root.path)
    except path_uri.NotNative as error:
        return error.uri, None
    except path_uri.BadUri as error:
        raise RpcError(INVALID_PARAMS, str(error)) from None
    return path_uri.to_uri(path), path


def _refuse_sandbox(sandbox: dict[str, Any] | None) -> None:
    """Refuse a profile that restricts files: a scan cannot be sandboxed."""
    if sandbox is None:
        return
    permissions = sandbox.get("permissions")
    if isinstance(permissions, dict) and permissions.get("type") in ("disabled", "external"):
        return
    raise RpcError(INVALID_PARAMS, "sandbox intent cannot be enforced on this executor")


def _failed(root_id: str, uri: str, why: str) -> bytes:
    return _encoded(root_id, uri, error=f"failed to inspect capability root {uri}: {why}")


def _encoded(
    root_id: str,
    uri: str,
    *,
    bundle: Bundle | None = None,
    plugin: PluginFiles | None = None,
    skills: list[SkillFiles] | None = None,
    manifests: list[CapabilityFile] | None = None,
    error: str | None = None,
) -> bytes:
    return codec.encode(
        DiscoveredRoot(
            id=root_id,
            path=uri,
            plugin=plugin,
            skills=skills or [],
            namespace_manifests=manifests or [],
            warnings=bundle.warnings if bundle is not None else [],
            error=error,
        )
    )


# --- in a thread of the file pool ---------------------------------------------------------------


class Bundle:
    """Reads the files of one root within its bounds, and notes what went wrong."""

    def __init__(self, limit: int) -> None:
        self.warnings: list[str] = []
        self.used = 0
        self._limit = limit

    def read(self, path: bytes) -> CapabilityFile | None:
        """Read a regular file; None if it is none, with a warning unless it is missing."""
        uri = path_uri.to_uri(path)
        try:
            status = os.stat(path)
        except OSError as error:
            if error.errno != errno.ENOENT:
                why = os_text(error.errno or 0)
                self.warnings.append(f"failed to inspect capability file {uri}: {why}")
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        if status.st_size > FILE_LIMIT:
            text = f"capability file {uri} exceeds the {FILE_LIMIT}-byte limit"
            self.warnings.append(text)
            return None
        try:
            data = regular_file.read_file(path, limit=FILE_LIMIT)
        except FilesError as error:
            self.warnings.append(f"failed to read capability file {uri}: {error}")
            return None
        try:
            contents = utf8_text(data)
        except FilesError as error:
            self.warnings.append(f"capability file {uri} is not UTF-8: {error}")
            return None
        if self.used + len(data) > self._limit:
            self.warnings.append(f"capability root bundle exceeds the {self._limit}-byte limit")
            return None
        self.used += len(data)
        return CapabilityFile(path=uri, contents=contents)

    def manifest(self, directory: bytes) -> CapabilityFile | None:
        """The first manifest of a directory that can be read."""
        for name in MANIFESTS:
            found = self.read(os.path.join(directory, name))
            if found is not None:
                return found
        return None


def _discover(root_id: str, uri: str, path: bytes, limit: int) -> tuple[bytes, int]:
    """Look at one root; returns the answer as JSON and how many bytes of files it has."""
    root = native(path)
    with os_errors(root):
        is_directory = stat.S_ISDIR(os.stat(root).st_mode)
    if not is_directory:
        return _encoded(root_id, uri, error=f"capability root {uri} is not a directory"), 0
    found = walk.walk(root, BOUNDS)
    bundle = Bundle(limit)
    for problem in found.errors:
        place = path_uri.to_uri(problem.path)
        bundle.warnings.append(f"failed to scan capability path {place}: {problem.message}")
    if found.truncated:
        text = f"capability scan reached its traversal limit (root: {uri})"
        bundle.warnings.append(text)
    files = [entry.path for entry in found.entries if not entry.is_directory]
    manifest = bundle.manifest(root)
    manifests = _namespaces(bundle, root, manifest, files)
    plugin = None if manifest is None else _plugin(bundle, root, manifest)
    skills = _skills(bundle, files)
    answer = _encoded(
        root_id, uri, bundle=bundle, plugin=plugin, skills=skills, manifests=manifests
    )
    return answer, bundle.used


def _namespaces(
    bundle: Bundle, root: bytes, own: CapabilityFile | None, files: list[bytes]
) -> list[CapabilityFile]:
    """The manifest of each directory that has one, by the directories' URIs."""
    chosen: dict[bytes, bytes] = {}
    for name in MANIFESTS:
        for path in files:
            if path.endswith(b"/" + name):
                chosen.setdefault(path[: -len(name) - 1] or b"/", path)
    found: dict[str, CapabilityFile] = {}
    if own is not None:
        chosen.pop(root, None)
        found[path_uri.to_uri(root)] = own
    for directory in sorted(chosen, key=path_uri.to_uri):
        manifest = bundle.read(chosen[directory])
        if manifest is not None:
            found[path_uri.to_uri(directory)] = manifest
    above = root
    while path_uri.to_uri(root) not in found and above != b"/":
        above = os.path.dirname(above)
        manifest = bundle.manifest(above)
        if manifest is not None:
            found[path_uri.to_uri(above)] = manifest
            break
    return [found[uri] for uri in sorted(found)]


def _skills(bundle: Bundle, files: list[bytes]) -> list[SkillFiles]:
    skills: list[SkillFiles] = []
    for path in sorted((p for p in files if p.endswith(b"/" + SKILL)), key=path_uri.to_uri):
        instructions = bundle.read(path)
        if instructions is not None:
            metadata = bundle.read(path.removesuffix(SKILL) + METADATA)
            skills.append(SkillFiles(instructions=instructions, metadata=metadata))
    return skills


# --- what a manifest says about its companions ---------------------------------------------------


def _plugin(bundle: Bundle, root: bytes, manifest: CapabilityFile) -> PluginFiles:
    fields = _fields(manifest.contents)
    return PluginFiles(
        manifest=manifest,
        mcp_config=_companion(bundle, root, manifest, fields, "mcpServers", b".mcp.json"),
        apps_config=_companion(bundle, root, manifest, fields, "apps", b".app.json"),
    )


def _fields(contents: str) -> dict[str, Any]:
    """The top of a manifest; empty when it is no object, or repeats a name that we need.

    Objects are read as tuples of pairs, in which a repeated name still shows.
    """
    try:
        value = json.loads(contents, object_pairs_hook=tuple)
        codec.encode(value)  # refuses half of a surrogate pair, as the peer's reader does
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, tuple):
        return {}
    names = [name for name, _ in value]
    if names.count("mcpServers") > 1 or names.count("apps") > 1:
        return {}
    return dict(value)


def _companion(
    bundle: Bundle,
    root: bytes,
    manifest: CapabilityFile,
    fields: dict[str, Any],
    field: str,
    usual: bytes,
) -> CapabilityFile | None:
    value = fields.get(field)
    if isinstance(value, str):
        wrong = _objection(value)
        if wrong is None:
            names = [name for name in os.fsencode(value).split(b"/") if name not in (b"", b".")]
            return bundle.read(b"/".join([root.rstrip(b"/"), *names]))
        bundle.warnings.append(f"ignoring {field} in {manifest.path}: {wrong}")
    elif isinstance(value, tuple) and field == "mcpServers":
        return None  # the manifest itself has the servers
    return bundle.read(os.path.join(root, usual))


def _objection(path: str) -> str | None:
    if not path.startswith("./"):
        return "path must start with `./`"
    rest = path[2:]
    if not rest or rest.startswith("/") or "\0" in rest or ".." in rest.split("/"):
        return "path must remain below the capability root"
    return None


CAPABILITY_HANDLERS: dict[str, Callable[[Connection, Any], Any]] = {
    "capabilityRoots/discoverV1": discover_roots,
}
